"""Passes of correlated noise that may be used elsewhere: refused ahead, and told of afterwards."""

from collections.abc import Sequence
from dataclasses import replace

from accounting.bounds.event_bounds import REASON_NOISE_AGAIN
from accounting.events import NoNoise
from service.errors import UnsupportedEventError
from service.ledger.append.admission import ChangeOf, PositionedSpan
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.event_counts import NOTHING


def reuses_noise(move: BudgetDelta) -> bool:
    """Whether a move counts a pass whose correlated noise may be used elsewhere."""
    return any(
        counts.passes > 0 and event.is_correlated and isinstance(event.mechanism, NoNoise)
        for event, counts in (*move.recorded.items(), *move.reserved.items())
    )


def records_reuse(move: BudgetDelta) -> bool:
    """The same of the steps that were recorded alone."""
    return reuses_noise(replace(move, reserved=NOTHING))


def require_fresh_noise(parts: Sequence[PositionedSpan], change_of: ChangeOf) -> None:
    """Refuse steps of correlated noise that may be used elsewhere.

    Args:
        parts: the steps.
        change_of: what some of them would change.

    Raises:
        UnsupportedEventError: names the first such event.
    """
    if not any(part.event.is_correlated for part in parts):
        return
    for count, part in enumerate(parts, start=1):
        if part.event.is_correlated and reuses_noise(change_of(parts[:count])):
            raise UnsupportedEventError(part.index, REASON_NOISE_AGAIN)
