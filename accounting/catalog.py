"""The catalog: every bound there is, of every status."""

from typing import Any, Final

from accounting import (
    auditing,
    composition,
    correlated_noise,
    filters,
    gaussian,
    last_iterate,
    literature,
    privacy_profile,
    renyi,
    shuffling,
    subsampling,
)
from accounting.accountants import composed_bounds, event_grouping
from accounting.bounds import dominating_pairs
from accounting.guarantees import Theorem
from accounting.pld import certified_composition, interpolated_noises, replace_one

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *gaussian.THEOREMS,
    *renyi.THEOREMS,
    *dominating_pairs.THEOREMS,
    *subsampling.THEOREMS,
    *shuffling.THEOREMS,
    *correlated_noise.THEOREMS,
    *replace_one.THEOREMS,
    *event_grouping.THEOREMS,
    *certified_composition.THEOREMS,
    *interpolated_noises.THEOREMS,
    *composed_bounds.THEOREMS,
    *filters.THEOREMS,
    *privacy_profile.THEOREMS,
    *composition.THEOREMS,
    *auditing.THEOREMS,
    *last_iterate.THEOREMS,
    *literature.THEOREMS,
)
