"""Runs that hide their iterates: what they declare, and whether they did as planned.

Until such a run has finished as planned, every step counts as shown; its dataset is charged so
for good.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accounting.accountants.best_bound import BEST
from accounting.bounds.event_bounds import NoBoundError
from accounting.events import NeighboringRelation, Span
from accounting.guarantees import Guarantee, Status
from accounting.hidden_state import as_if_shown, guarantee_of_hidden
from accounting.hidden_state_runs import HiddenRun, order_of, require_bound
from service.errors import InvalidRequestError
from service.schemas.assumptions import read_declared
from service.schemas.event_codec import spans_of
from service.schemas.ledger_document import LedgerDocument
from service.schemas.requests import PlannedEvent, Release
from service.schemas.responses import EVERY_STEP

REASON_NOT_FINISHED: Final = "The run has not finished: until then every step counts as shown."
REASON_ABORTED: Final = "The run was aborted: every step counts as shown."
REASON_STOPPED: Final = "The run stopped at its budget: every step counts as shown."
REASON_REOPENED: Final = "The run went on after its end: every step counts as shown."
REASON_NO_PLAN: Final = "The run registered no plan before its first step."
REASON_OFF_PLAN: Final = "The run did not follow its plan: every step counts as shown."
REASON_CORRECTED: Final = "Some steps were not what the plan says: every step counts as shown."
REASON_UNDECLARED: Final = "The run did not declare what a bound for hidden iterates needs."
REASON_ACCOUNTANT: Final = "The accountant that was asked for counts every step as shown."
_REASONS: Final = {
    "aborted": REASON_ABORTED,
    "stopped_at_budget": REASON_STOPPED,
    "reopened": REASON_REOPENED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """What a run hides, or why all of it counts as shown."""

    release: Release
    run: HiddenRun | None = None
    reason: str | None = None


NOTHING_HIDDEN: Final = Hidden(release=EVERY_STEP)


def why_shown(state: str | None, *, reopened: bool) -> str | None:
    """Why a run in this state hides nothing yet, or any more; None where it may.

    Once it went on after its end, what it showed at that end is unknown: for good.
    """
    if reopened:
        return REASON_REOPENED
    return None if state == "finished" else _REASONS.get(state or "", REASON_NOT_FINISHED)


def with_hidden_state_bound(
    found: Guarantee,
    hidden: Hidden,
    *,
    accept: frozenset[Status],
    accountant: str,
    epsilon: float | None = None,
) -> Guarantee:
    """A guarantee that counts every step as shown, or the better one of what was hidden."""
    if hidden.release == EVERY_STEP:
        return found
    if hidden.run is None or accountant != BEST:
        return as_if_shown(found, reason=hidden.reason or REASON_ACCOUNTANT)
    return guarantee_of_hidden(found, hidden.run, accept=accept, epsilon=epsilon)


def _require_steps(document: LedgerDocument) -> None:
    taken = sum(event.steps for event in document.events)
    for index, shown in enumerate(document.releases):
        if not shown.step < taken:
            raise InvalidRequestError(f"releases[{index}].step", f"must lie in [0, {taken})")


def planned_run(
    assumptions: Mapping[str, Any],
    release: Release,
    *,
    spans: Sequence[Span],
    relation: NeighboringRelation,
    dataset_size: int | None,
) -> HiddenRun:
    """A run that is to take these steps, at least one, and to show no more than it says.

    Raises:
        InvalidRequestError: an assumption is missing or impossible, or the steps or the dataset are
            of a kind that no bound for hidden iterates covers.
    """
    declared = read_declared(assumptions, location="assumptions")
    order = order_of(spans[0].event.sampling)
    if order is not None and order is not declared.data_order:
        raise InvalidRequestError(
            "assumptions.data_order", f"must be {order}, as the plan's sampling says"
        )
    run = HiddenRun(
        spans=tuple(_merge_equal_spans(spans)),
        declared=declared,
        dataset_size=dataset_size,
        every_pass=release == "every_pass",
    )
    try:
        require_bound(run, relation)
    except NoBoundError as reason:
        raise InvalidRequestError("release", f"must be every_step here. {reason}") from None
    return run


def read_hidden(document: LedgerDocument) -> Hidden:
    """What a document's run hides, or why every step of it counts as shown.

    Raises:
        InvalidRequestError: an event of the document does not fit its dataset.
    """
    if document.release == EVERY_STEP:
        return NOTHING_HIDDEN
    reason = why_shown(document.state, reopened=document.reopened) or _why_unplanned(document)
    if reason is not None:
        return Hidden(release=document.release, reason=reason)
    _require_steps(document)
    try:
        declared = read_declared(document.assumptions, location="assumptions")
    except InvalidRequestError:
        return Hidden(release=document.release, reason=REASON_UNDECLARED)
    run = HiddenRun(
        spans=tuple(_spans(document, document.events)),
        declared=declared,
        dataset_size=document.dataset_size,
        every_pass=document.release == "every_pass",
        releases=tuple(sorted(one.step for one in document.releases)),
    )
    return Hidden(release=document.release, run=run)


def _why_unplanned(document: LedgerDocument) -> str | None:
    if document.plan is None:
        return REASON_NO_PLAN
    ran, planned = _spans(document, document.events), _spans(document, document.plan)
    if ran != planned or any(branch.events for branch in document.branches):
        return REASON_OFF_PLAN
    return REASON_CORRECTED if document.corrections else None


def _spans(document: LedgerDocument, events: Sequence[PlannedEvent]) -> list[Span]:
    return _merge_equal_spans(spans_of(events, dataset_size=document.dataset_size, first_step=0))


def _merge_equal_spans(spans: Sequence[Span]) -> list[Span]:
    """The spans with adjacent equal events as one."""
    merged: list[Span] = []
    for span in spans:
        if merged and merged[-1].event == span.event:
            span = Span(event=span.event, steps=merged.pop().steps + span.steps)
        merged.append(span)
    return merged
