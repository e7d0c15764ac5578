"""Passes of correlated noise that may be used elsewhere: refused ahead, and told of afterwards."""

from collections.abc import Sequence
from dataclasses import replace

from accounting.bounds.event_bounds import REASON_NOISE_AGAIN
from accounting.events import NoNoise
from service.errors import UnsupportedEventError
from service.ledger.append.admission import ChangeOf, PositionedSpan
from service.ledger.append.state import DatasetState, RunState
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.event_counts import NOTHING
from service.ledger.incidents import Incident, Kind


def reuses_noise(move: BudgetDelta) -> bool:
    """Whether a move counts a pass whose correlated noise may be used elsewhere."""
    return any(
        counts.passes > 0 and event.is_correlated and isinstance(event.mechanism, NoNoise)
        for event, counts in (*move.recorded.items(), *move.reserved.items())
    )


def told_of_reuse(
    state: DatasetState, run: RunState, branch: str, move: BudgetDelta
) -> list[Incident]:
    """The incident of steps that were recorded, if their noise may be used elsewhere."""
    if not reuses_noise(replace(move, reserved=NOTHING)):
        return []
    return [
        Incident(
            dataset_id=state.id,
            run_id=run.id,
            kind=Kind.NOISE_REUSED,
            sequence=state.head,
            detail={"dataset": state.name, "run": run.name, "branch": branch},
        )
    ]


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
