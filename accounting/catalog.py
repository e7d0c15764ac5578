"""The catalog: every bound there is, of every status."""

from typing import Any, Final

from accounting import (
    answers,
    coarsening,
    composition,
    curves,
    domination,
    filters,
    gaussian,
    hypothesis_testing,
    last_iterate,
    local,
    quarantine,
    renyi,
    shuffling,
    subsampling,
    total_variation,
)
from accounting.pld import bracket, null
from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *gaussian.THEOREMS,
    *renyi.THEOREMS,
    *domination.THEOREMS,
    *subsampling.THEOREMS,
    *shuffling.THEOREMS,
    *null.THEOREMS,
    *coarsening.THEOREMS,
    *bracket.THEOREMS,
    *answers.THEOREMS,
    *filters.THEOREMS,
    *curves.THEOREMS,
    *composition.THEOREMS,
    *total_variation.THEOREMS,
    *hypothesis_testing.THEOREMS,
    *local.THEOREMS,
    *last_iterate.THEOREMS,
    *quarantine.THEOREMS,
)
