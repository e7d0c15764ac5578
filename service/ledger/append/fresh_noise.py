"""Passes of correlated noise that may be used elsewhere are refused ahead."""

from collections.abc import Sequence

from accounting.bounds.event_bounds import REASON_NOISE_AGAIN
from service.errors import UnsupportedEventError
from service.ledger.append.admission import ChangeOf, PositionedSpan
from service.ledger.budgets.steps_and_passes import reuses_noise


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
        if part.event.is_correlated:
            move = change_of(parts[:count])
            if reuses_noise(move.recorded) or reuses_noise(move.reserved):
                raise UnsupportedEventError(part.index, REASON_NOISE_AGAIN)
