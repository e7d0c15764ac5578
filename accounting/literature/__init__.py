"""Results of the source documents and of the literature that no answer of the service rests on.

They are in the catalog and can be evaluated by id (`dpledger bound ID`). No other module of the
core but the catalog imports them. `refuted` holds what is wrong, retracted or conjectured.
"""

from typing import Any, Final

from accounting.guarantees import Theorem
from accounting.literature import (
    contraction,
    hypothesis_testing,
    local_dp,
    local_randomizers,
    refuted,
    shuffled_responses,
    subsampled_renyi,
    total_variation,
    toy_shuffle,
)

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *subsampled_renyi.THEOREMS,
    *local_randomizers.THEOREMS,
    *shuffled_responses.THEOREMS,
    *toy_shuffle.THEOREMS,
    *total_variation.THEOREMS,
    *hypothesis_testing.THEOREMS,
    *local_dp.THEOREMS,
    *contraction.THEOREMS,
    *refuted.THEOREMS,
)
