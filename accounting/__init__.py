"""Privacy accounting: events in, proved bounds out. Numbers only.

Count events from spans (event_counts), ask for the guarantee of what is counted (accountants),
enforce a budget while steps are chosen one by one (filters). THEOREMS is every bound there is.
"""

from typing import TYPE_CHECKING, Any, Final

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts, OpenPass, advance, count_events
from accounting.events import Event, NeighboringRelation, Span
from accounting.filters import Filter, choose
from accounting.guarantees import Bound, Guarantee, Status, Theorem

__version__: Final = "0.1.0"

__all__ = [
    "THEOREMS",
    "Bound",
    "Event",
    "EventCounts",
    "Filter",
    "Guarantee",
    "NeighboringRelation",
    "OpenPass",
    "Span",
    "Status",
    "Theorem",
    "advance",
    "choose",
    "count_events",
    "guarantee",
]  # fmt: skip

if TYPE_CHECKING:
    from accounting.catalog import THEOREMS
else:

    def __getattr__(name: str) -> Any:
        if name == "THEOREMS":  # loaded when it is asked for: an answer needs half of the modules
            from accounting.catalog import THEOREMS

            return THEOREMS
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
