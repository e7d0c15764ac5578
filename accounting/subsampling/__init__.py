"""Batches drawn afresh each step, other than by independent coins: pairs that dominate a step."""

from accounting.subsampling import (
    curves,
    replaced_records,
    replacement,
    special,
    truncated,
    units,
)

THEOREMS = (
    *replaced_records.THEOREMS,
    *special.THEOREMS,
    *truncated.THEOREMS,
    *replacement.THEOREMS,
    *units.THEOREMS,
    *curves.THEOREMS,
)
