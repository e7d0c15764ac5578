"""Privacy accounting: events in, proved bounds out. Numbers only.

Build a balance from spans of events (balances), ask for its guarantee (accountants), enforce a
budget while steps are chosen one by one (filters). THEOREMS is every bound there is.
"""

from typing import Any, Final

from accounting import answers, coarsening, curves, domination, filters, gaussian
from accounting.accountants import guarantee
from accounting.balances import Balance, OpenPass, advance, balance_of
from accounting.events import Event, NeighboringRelation, Span
from accounting.filters import RenyiFilter
from accounting.guarantees import Bound, Guarantee, Status
from accounting.pld import bracket
from accounting.pld import null as through_null
from accounting.renyi import (
    allocation,
    conversion,
    declared,
    fixed_size,
    laplace,
    passes,
    poisson,
    pure,
    randomized_response,
    revealed,
)
from accounting.shuffling import allocation as placements
from accounting.shuffling import clones, full, partial
from accounting.subsampling import curves as subsampled
from accounting.subsampling import replacement, special, truncated
from accounting.theorem import Theorem

__version__: Final = "0.1.0"

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *gaussian.THEOREMS,
    *poisson.THEOREMS,
    *fixed_size.THEOREMS,
    *passes.THEOREMS,
    *pure.THEOREMS,
    *laplace.THEOREMS,
    *randomized_response.THEOREMS,
    *allocation.THEOREMS,
    *subsampled.THEOREMS,
    *declared.THEOREMS,
    *revealed.THEOREMS,
    *conversion.THEOREMS,
    *domination.THEOREMS,
    *special.THEOREMS,
    *truncated.THEOREMS,
    *replacement.THEOREMS,
    *partial.THEOREMS,
    *full.THEOREMS,
    *clones.THEOREMS,
    *placements.THEOREMS,
    *through_null.THEOREMS,
    *coarsening.THEOREMS,
    *bracket.THEOREMS,
    *answers.THEOREMS,
    *filters.THEOREMS,
    *curves.THEOREMS,
)

__all__ = [
    "THEOREMS", "Balance", "Bound", "Event", "Guarantee", "NeighboringRelation", "OpenPass",
    "RenyiFilter", "Span", "Status", "Theorem", "advance", "balance_of", "guarantee",
]  # fmt: skip
