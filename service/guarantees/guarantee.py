"""Reading the ledger: guarantees and documents. Nothing here writes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, exists, select

from accounting.accountants import best_bound
from accounting.accountants.best_first import ODOMETER
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Guarantee, covering
from service.errors import InvalidRequestError
from service.guarantees.document_export import document_of
from service.guarantees.event_counts import RecordedCounts
from service.guarantees.recorded_facts import dataset_facts, run_facts
from service.guarantees.replay import LATEST
from service.ledger.budgets.budget import accept_of, delta_of
from service.ledger.fixed_plans import declared_end
from service.ledger.hidden_iterates import (
    NOTHING_HIDDEN,
    Hidden,
    read_hidden,
    why_shown,
    with_hidden_state_bound,
)
from service.ledger.lookups import dataset_of, find_dataset, find_run
from service.ledger.views import budget_of_dataset, run_answer, sampling_summary
from service.schemas.event_codec import long_canonical
from service.schemas.ledger_document import LedgerDocument
from service.schemas.responses import (
    EVERY_STEP,
    AsOf,
    DatasetGuarantee,
    FinishedRun,
    GuaranteeAnswer,
    RunGuarantee,
    assuming,
    with_ahead,
    without_lower,
)
from service.schemas.responses import guarantee_answer as answer
from service.storage.tables import runs

READING = "rdp"  # what an append answers with: the cheapest accountant that serves every event
REASON_PART: Final = "Of a part of the run every step counts as shown."

_ANY_HIDING: Final = select(
    exists().where(runs.c.dataset_id == bindparam("dataset"), runs.c.release != EVERY_STEP)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a guarantee is asked for, and of which facts."""

    delta: float | None = None  # or epsilon; None for the run's, else the dataset's budget's
    epsilon: float | None = None
    accountant: str = best_bound.BEST
    branch: str | None = None  # whose path to the root alone counts
    as_of: int | None = None  # the last sequence that counts
    share: float = 1.0  # of the work that a guarantee may take, where an answer has several


def guarantee_of(
    counts: EventCounts,
    dataset: Row[Any],
    *,
    sequence: int,
    delta: float | None,
) -> GuaranteeAnswer:
    """Return what a dataset's event counts guarantee at a delta."""
    found = _compute_guarantee(counts, dataset, Question(delta=delta))
    return answer(found, counts=counts, sequence=sequence)


def _compute_guarantee(
    counts: EventCounts, dataset: Row[Any], asked: Question, hidden: Hidden = NOTHING_HIDDEN
) -> Guarantee:
    accept = accept_of(dataset)
    found = best_bound.guarantee(
        counts,
        relation=NeighboringRelation(dataset.neighboring_relation),
        delta=asked.delta,
        epsilon=asked.epsilon,
        accept=accept,
        accountant=asked.accountant,
        share=asked.share,
    )
    found = best_bound.with_odometer(
        found, counts, delta=asked.delta, accountant=asked.accountant, share=asked.share
    )
    return with_hidden_state_bound(
        found, hidden, accept=accept, accountant=asked.accountant, epsilon=asked.epsilon
    )


def guarantee_of_facts(
    facts: RecordedCounts, dataset: Row[Any], *, delta: float, share: float
) -> GuaranteeAnswer:
    """Return what facts guarantee as if every iterate was shown; no database is read.

    Args:
        facts: of a run or a dataset, with their corrections.
        dataset: whose they are.
        delta: in (0, 1).
        share: of the work that a guarantee may take.
    """
    asked = Question(delta=delta, share=share)
    found = _build_answer(facts, dataset, asked, sequence=dataset.head_sequence)
    return without_lower(found) if facts.inherited else found


def _build_answer(
    facts: RecordedCounts,
    dataset: Row[Any],
    asked: Question,
    *,
    sequence: int,
    hidden: Hidden = NOTHING_HIDDEN,
) -> GuaranteeAnswer:
    """The answer for facts and their corrections: the headline holds for either."""
    again = facts.corrected is not None and asked.delta is None  # at the delta that was found
    part = replace(asked, share=asked.share / (len(facts.accounts) + again))
    each = [_compute_guarantee(counts, dataset, part, hidden) for counts in facts.accounts]
    found = each[0] if len(each) == 1 else covering(*each)
    whole = answer(found, counts=facts.recorded, sequence=sequence, release=hidden.release)
    if facts.corrected is None:
        return whole
    really = each[1].epsilon
    if again:
        really = _epsilon([facts.corrected], dataset, part, found.delta)
    beside = {"corrections": facts.corrections, "corrected_epsilon": really}
    return whole.model_copy(update=beside)


def _epsilon(
    every_count: Sequence[EventCounts], dataset: Row[Any], asked: Question, delta: float | None
) -> float | None:
    """Epsilon at delta that holds for each of the event counts. Upper; None if infinite."""
    if delta is None or not 0 < delta < 1:
        return None
    bounds = [
        best_bound.best_bound(
            counts,
            relation=NeighboringRelation(dataset.neighboring_relation),
            delta=delta,
            accept=accept_of(dataset),
            accountant=asked.accountant,
            with_lower=False,
            share=asked.share / len(every_count),
        )
        for counts in every_count
    ]
    return None if None in bounds else max(bound.epsilon for bound in bounds if bound)


def resolve_query(asked: Question, dataset: Row[Any], run: Row[Any] | None = None) -> Question:
    """The question with its delta or epsilon known, and a sequence there is.

    Raises:
        InvalidRequestError: no delta is known, both are given, or there is no such sequence.
    """
    if asked.as_of is not None and not 0 <= asked.as_of <= dataset.head_sequence:
        raise InvalidRequestError("query.as_of", f"must lie in [0, {dataset.head_sequence}]")
    if asked.as_of is not None:  # what was known then, what is known now, and the present
        asked = replace(asked, share=asked.share / 3)
    if asked.branch is not None:  # and the whole run
        asked = replace(asked, share=asked.share / 2)
    if asked.delta is not None and asked.epsilon is not None:
        raise InvalidRequestError("query.epsilon", "give delta or epsilon, not both")
    if asked.epsilon is not None or asked.delta is not None:
        return asked
    delta = delta_of(dataset, run)
    if delta is None:
        raise InvalidRequestError(
            "query.delta", "must be given: neither the run nor the dataset's budget has one"
        )
    return replace(asked, delta=delta)


def run_guarantee(connection: Connection, run_name: str, asked: Question) -> RunGuarantee:
    """What a run has spent: over all its branches, or on one branch's path to the root.

    Raises:
        NotFoundError: there is no such run, or it has no such branch.
        InvalidRequestError: no delta is known, both delta and epsilon are given, or there is no
            such sequence.
        TooExpensiveError: too many entries would have to be read.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    asked = resolve_query(asked, dataset, run)

    def facts_of(branch: str | None, until: int | None, known: int | None) -> RecordedCounts:
        last = LATEST if known is None else known
        return run_facts(connection, run, dataset, branch=branch, until=until, known=last)

    facts = facts_of(asked.branch, asked.as_of, asked.as_of)
    part = asked.branch is not None or asked.as_of is not None
    hidden = _read_hidden(connection, run, dataset, part=part)
    sequence = dataset.head_sequence if asked.as_of is None else asked.as_of
    plan = None if part or asked.accountant == ODOMETER else _ahead(run, dataset, facts)
    if plan is not None:
        asked = replace(asked, share=1 / 2)
    found = _build_answer(facts, dataset, asked, sequence=sequence, hidden=hidden)
    if plan is not None:
        found = _to_its_end(plan, dataset, asked, facts, found)
    if asked.as_of is not None:
        known_now = facts_of(asked.branch, asked.as_of, None)
        present = facts_of(asked.branch, None, None)
        found = _as_of(found, asked, dataset, known_now, present)
    if asked.branch is not None:
        tree = facts_of(None, asked.as_of, asked.as_of)
        found = assuming(found, Assumption.OTHER_BRANCHES_UNUSED).model_copy(
            update={
                "branch": asked.branch,
                "whole_run_epsilon": _epsilon(tree.accounts, dataset, asked, found.delta),
            }
        )
    outside = sampling_summary(connection, run.id).outside_guarantee
    return RunGuarantee(**dict(found), outside_guarantee=outside)


def _ahead(run: Row[Any], dataset: Row[Any], facts: RecordedCounts) -> EventCounts | None:
    """The whole plan of a run that keeps to it and has not done it yet."""
    if not run.on_plan:
        return None
    plan = declared_end(run, dataset.dataset_size)
    return None if facts.recorded.steps == plan.steps else plan


def _to_its_end(
    plan: EventCounts,
    dataset: Row[Any],
    asked: Question,
    facts: RecordedCounts,
    found: GuaranteeAnswer,
) -> GuaranteeAnswer:
    """The whole plan's answer, and the present one beside it.

    Until the plan is done, no step is hidden in it: what is hidden is only known at the end.
    """
    whole = _add_reserved(replace(facts, recorded=plan), found, dataset, asked)
    so_far = found.epsilon if asked.delta is not None else None
    beside = {"so_far_epsilon": so_far, "planned_steps": sum(plan.steps.values())}
    return whole.model_copy(update=beside)


def _as_of(
    found: GuaranteeAnswer,
    asked: Question,
    dataset: Row[Any],
    known_now: RecordedCounts,
    present: RecordedCounts,
) -> GuaranteeAnswer:
    """The answer as of a sequence, with what is known since beside it."""
    really = known_now.recorded if known_now.corrected is None else known_now.corrected
    then = AsOf(
        sequence=found.sequence,
        as_known_now=_epsilon([really], dataset, asked, found.delta),
        present_epsilon=_epsilon(present.accounts, dataset, asked, found.delta),
    )
    return found.model_copy(update={"as_of": then})


def _read_hidden(connection: Connection, run: Row[Any], dataset: Row[Any], *, part: bool) -> Hidden:
    """What the run hides; its document is only read where it may matter."""
    if run.release == EVERY_STEP:
        return NOTHING_HIDDEN
    if part:
        return Hidden(release=run.release, reason=REASON_PART)
    if reason := why_shown(run.state, reopened=run.reopened):
        return Hidden(release=run.release, reason=reason)
    document = document_of(connection, run, dataset, delta=delta_of(dataset, run))
    return read_hidden(LedgerDocument.model_validate(document))


def finished_run(connection: Connection, run_name: str) -> FinishedRun:
    """A run at its end; with its guarantee where it declared what it hides and a delta is known.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    delta = delta_of(dataset_of(connection, run), run)
    guarantee = None
    if run.release != EVERY_STEP and delta is not None:
        guarantee = run_guarantee(connection, run_name, Question(delta=delta))
    return FinishedRun(**dict(run_answer(connection, run)), guarantee=guarantee)


def dataset_guarantee(connection: Connection, name: str, asked: Question) -> DatasetGuarantee:
    """What all runs of a dataset have spent together.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: no delta is known, both delta and epsilon are given, or there is no
            such sequence.
        TooExpensiveError: too many entries would have to be read.
    """
    dataset = find_dataset(connection, name)
    asked = resolve_query(asked, dataset)
    if asked.as_of is not None:
        found = with_ = _dataset_as_of(connection, dataset, asked, asked.as_of)
    else:
        facts = dataset_facts(connection, dataset)
        held = dataset_facts(connection, dataset, reserved=True)
        more = _list_counts(held) != _list_counts(facts)
        if more:
            asked = replace(asked, share=1 / 2)
        found = with_ = _build_answer(facts, dataset, asked, sequence=dataset.head_sequence)
        if more:
            with_ = _add_reserved(held, found, dataset, asked)
        if facts.inherited or connection.scalar(_ANY_HIDING, {"dataset": dataset.id}):
            found, with_ = without_lower(found), without_lower(with_)
    return DatasetGuarantee(
        **with_.model_dump(),
        dataset=dataset.name,
        without_reservations=found,
        budget=budget_of_dataset(connection, dataset),
    )


def _list_counts(facts: RecordedCounts) -> list[Any]:
    return [(one.steps, one.passes) for one in facts.accounts]


def _add_reserved(
    held: RecordedCounts, found: GuaranteeAnswer, dataset: Row[Any], asked: Question
) -> GuaranteeAnswer:
    """The answer with what is reserved."""
    return with_ahead(_build_answer(held, dataset, asked, sequence=found.sequence), found)


def _dataset_as_of(
    connection: Connection, dataset: Row[Any], asked: Question, sequence: int
) -> GuaranteeAnswer:
    facts = dataset_facts(connection, dataset, until=sequence, known=sequence)
    found = _build_answer(facts, dataset, asked, sequence=sequence)
    known_now = dataset_facts(connection, dataset, until=sequence)
    found = _as_of(found, asked, dataset, known_now, dataset_facts(connection, dataset))
    hiding = connection.scalar(_ANY_HIDING, {"dataset": dataset.id})
    return without_lower(found) if facts.inherited or hiding else found


def ledger_document(connection: Connection, run_name: str) -> str:
    """The run's ledger document in canonical JSON.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    return long_canonical(document_of(connection, run, dataset, delta=delta_of(dataset, run)))
