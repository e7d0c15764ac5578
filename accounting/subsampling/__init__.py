"""Batches drawn afresh each step, other than by independent coins: pairs that dominate a step."""

from accounting.subsampling import curves, replacement, special, truncated

THEOREMS = (
    *special.THEOREMS,
    *truncated.THEOREMS,
    *replacement.THEOREMS,
    *curves.THEOREMS,
)
