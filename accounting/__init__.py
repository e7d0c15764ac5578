"""Privacy accounting: events in, proved bounds out. Numbers only.

Build a balance from spans of events (balances), ask for its guarantee (accountants), enforce a
budget while steps are chosen one by one (filters). THEOREMS is every bound there is.
"""

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
from accounting.accountants import guarantee
from accounting.balances import Balance, OpenPass, advance, balance_of
from accounting.events import Event, NeighboringRelation, Span
from accounting.filters import Filter, choose
from accounting.guarantees import Bound, Guarantee, Status
from accounting.pld import bracket, null
from accounting.theorem import Theorem

__version__: Final = "0.1.0"

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

__all__ = [
    "THEOREMS", "Balance", "Bound", "Event", "Filter", "Guarantee", "NeighboringRelation",
    "OpenPass", "Span", "Status", "Theorem", "advance", "balance_of", "choose", "guarantee",
]  # fmt: skip
