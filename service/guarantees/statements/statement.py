"""Privacy statements of runs and datasets: what is promised, in sentences that need no expert.

Every number in them is the readings' own, an upper bound rounded up; nothing is accounted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeVar

from sqlalchemy import Connection, Row, bindparam, func, select

from service.clock import now
from service.errors import InvalidRequestError
from service.guarantees.guarantee import Question, dataset_guarantee, run_guarantee
from service.guarantees.statements.one_person import (
    PersonPromise,
    promise_of_dataset,
    promise_of_run,
)
from service.guarantees.statements.statement_text import (
    PersonRow,
    Remark,
    budget_remarks,
    list_addressees,
    list_assumptions,
    list_exclusions,
    list_promises,
    list_remarks,
    outside_run,
    person_notes,
    person_rows,
    run_remarks,
    shown_of_run,
)
from service.guarantees.theorem_catalog import BoundAnswer, bound_answers
from service.ledger.budgets.budget import delta_of
from service.ledger.lookups import dataset_of, find_dataset, find_run
from service.ledger.views import LogAnswer, budget_of_dataset, log_answer, run_answer
from service.schemas.provenance import DELTAS, VERSIONS
from service.schemas.responses import BudgetAnswer, DatasetGuarantee, GuaranteeAnswer
from service.schemas.run_states import CLOSED
from service.storage.tables import findings, incidents, runs

Stated = TypeVar("Stated", bound=GuaranteeAnswer)
STATEMENT_DELTAS_MAX: Final = 4  # that may be asked for
_COUNTS: Final = (
    select(incidents.c.kind, func.count())
    .where(incidents.c.dataset_id == bindparam("dataset"))
    .group_by(incidents.c.kind)
)
_COUNTS_OF_RUN: Final = _COUNTS.where(incidents.c.run_id == bindparam("run"))
_STATES: Final = (
    select(runs.c.state, func.count())
    .where(runs.c.dataset_id == bindparam("dataset"))
    .group_by(runs.c.state)
)
_CONTRADICTED: Final = (
    select(func.count(findings.c.run_id.distinct()))
    .join(runs, runs.c.id == findings.c.run_id)
    .where(
        runs.c.dataset_id == bindparam("dataset"),
        findings.c.kind == "sampling",
        findings.c.claim == "contradicted",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementReport:
    """A privacy statement."""

    kind: Literal["run", "dataset"]
    name: str
    dataset: str
    privacy_unit: str
    dataset_size: int
    neighboring_relation: str
    headline: GuaranteeAnswer
    at_deltas: Sequence[GuaranteeAnswer]  # the headline's among them; the largest delta first
    delta_was_set: bool  # by the run or the budget, or asked for
    promised: Sequence[str]
    person: Sequence[PersonRow]  # what one person is promised, case by case
    person_notes: Sequence[str]
    addressed: Sequence[str]
    outside: Sequence[str]  # what is not promised
    assumed: Sequence[str]  # beside the theorem's assumptions
    remarks: Sequence[Remark]
    theorems: Sequence[BoundAnswer]
    budget: BudgetAnswer | None
    log: LogAnswer
    versions: dict[str, str]
    issued_at: datetime


def run_report(
    connection: Connection, name: str, *, deltas: Sequence[float] = ()
) -> StatementReport:
    """The privacy statement of a run.

    Raises:
        NotFoundError: there is no such run.
        InvalidRequestError: too many deltas are asked for.
    """
    row = find_run(connection, name)
    dataset = dataset_of(connection, row)
    run = run_answer(connection, row)
    chosen, own = _deltas(deltas, dataset, row)
    found = [run_guarantee(connection, name, Question(delta=delta)) for delta in chosen]
    whose = "run" if run.budget else "dataset"
    budget = run.budget or budget_of_dataset(connection, dataset)
    counts = _count_by_name(connection, _COUNTS_OF_RUN, {"dataset": dataset.id, "run": row.id})
    headline = _headline(found, own, dataset)
    return _report(
        connection,
        dataset,
        kind="run",
        name=name,
        found=found,
        headline=headline,
        delta_was_set=own is not None,
        shown=shown_of_run(name, headline),
        person=promise_of_run(connection, row, dataset, headline, budget),
        remarks=[
            *run_remarks(run, headline),
            *budget_remarks(budget, whose),
            *list_remarks(counts),
        ],
        outside=outside_run(run, dataset.name),
        budget=budget,
    )


def dataset_report(
    connection: Connection, name: str, *, deltas: Sequence[float] = ()
) -> StatementReport:
    """The privacy statement of a dataset: of all its runs together.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: too many deltas are asked for.
    """
    dataset = find_dataset(connection, name)
    chosen, own = _deltas(deltas, dataset, None)
    found = [dataset_guarantee(connection, name, Question(delta=delta)) for delta in chosen]
    counts = _count_by_name(connection, _COUNTS, {"dataset": dataset.id})
    states = _count_by_name(connection, _STATES, {"dataset": dataset.id})
    headline = _headline(found, own, dataset)
    return _report(
        connection,
        dataset,
        kind="dataset",
        name=name,
        found=found,
        headline=headline,
        delta_was_set=own is not None,
        person=promise_of_dataset(connection, dataset, headline, reserved=True),
        shown=f"everything together that all recorded training on the dataset {name} has produced",
        remarks=[
            *_dataset_remarks(connection, dataset, headline, states),
            *list_remarks(counts),
        ],
        outside=[],
        budget=found[0].budget,
    )


def _report(
    connection: Connection,
    dataset: Row[Any],
    *,
    found: Sequence[GuaranteeAnswer],
    headline: GuaranteeAnswer,
    shown: str,
    person: PersonPromise | None,
    outside: Sequence[str],
    remarks: Sequence[Remark],
    **given: Any,
) -> StatementReport:
    unit, known = dataset.privacy_unit, bound_answers()
    told = None if headline.epsilon == 0 else person  # before a step there is nothing to find
    named = dict.fromkeys(theorem for one in found for theorem in one.theorems)
    return StatementReport(
        dataset=dataset.name,
        privacy_unit=unit,
        dataset_size=dataset.dataset_size,
        neighboring_relation=dataset.neighboring_relation,
        headline=headline,
        at_deltas=sorted(found, key=lambda one: -(one.delta or 0)),
        promised=list_promises(headline, dataset, shown, person),
        person=[] if told is None else person_rows(told),
        person_notes=[] if told is None else person_notes(told),
        addressed=[] if headline.epsilon is None else list_addressees(dataset, unit),
        outside=[*outside, *list_exclusions(dataset, unit)],
        assumed=list_assumptions(headline),
        remarks=remarks,
        theorems=[known[one] for one in named if one in known],
        log=log_answer(connection, dataset.name),
        versions=VERSIONS,
        issued_at=now(),
        **given,
    )


def _deltas(
    asked: Sequence[float], dataset: Row[Any], run: Row[Any] | None
) -> tuple[list[float], float | None]:
    """Return the deltas to state, and the headline's delta if one was chosen."""
    if len(asked) > STATEMENT_DELTAS_MAX:
        raise InvalidRequestError("query.delta", f"at most {STATEMENT_DELTAS_MAX} of them")
    own = asked[0] if asked else delta_of(dataset, run)
    wanted = (*asked, *([] if own is None else [own]), *DELTAS)
    return list(dict.fromkeys(wanted)), own


def _headline(found: Sequence[Stated], own: float | None, dataset: Row[Any]) -> Stated:
    """That of the delta that was chosen, else the largest below one in all records."""
    by_delta = sorted(found, key=lambda one: -(one.delta or 0))
    if own is not None:
        return next(one for one in by_delta if one.delta == own)
    small = [one for one in by_delta if (one.delta or 0) * dataset.dataset_size < 1]
    return small[0] if small else by_delta[-1]


def _count_by_name(connection: Connection, query: Any, asked: dict[str, int]) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(query, asked)}


def _dataset_remarks(
    connection: Connection, dataset: Row[Any], found: GuaranteeAnswer, states: dict[str, int]
) -> list[Remark]:
    remarks = [_sampling_remark(connection, dataset)]
    if going := sum(count for state, count in states.items() if state not in CLOSED):
        text = f"{going:,} of {sum(states.values()):,} runs are not closed: further steps will add."
        remarks.append(Remark(text, "warn"))
    if isinstance(found, DatasetGuarantee) and found.epsilon != found.without_reservations.epsilon:
        remarks.append(Remark("Reserved steps that have not run count as if they had."))
    budget = found.budget if isinstance(found, DatasetGuarantee) else None
    return remarks + budget_remarks(budget, "dataset")


def _sampling_remark(connection: Connection, dataset: Row[Any]) -> Remark:
    count = connection.scalar(_CONTRADICTED, {"dataset": dataset.id}) or 0
    if not count:
        return Remark("No run's code contradicted its declared sampling.")
    of = f"{count:,} run{'' if count == 1 else 's'}"
    return Remark(f"The code of {of} draws batches in another way than declared.", "bad")
