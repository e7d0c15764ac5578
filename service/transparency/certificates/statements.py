"""What follows from a certificate's facts: numbers, theorems, where its runs stand.

Nothing is read here. Who issues a certificate and who verifies it compute with these functions.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accounting.accountants import best_bound
from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation
from accounting.guarantees import Guarantee, Status, covering
from accounting.work_limit import limit_work
from service.errors import TooExpensiveError
from service.guarantees.theorem_catalog import bound_answers
from service.ledger.advisories import advisories_of
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.lineage import RowsPerParent, as_seen_by_ancestor
from service.ledger.budgets.steps_and_passes import StepsAndPasses, counts_of, merge_changes
from service.ledger.budgets.steps_and_passes import count_events as counted
from service.ledger.hidden_iterates import (
    NOTHING_HIDDEN,
    Hidden,
    read_hidden,
    with_hidden_state_bound,
)
from service.schemas.event_codec import spans_of, to_event
from service.schemas.findings import SamplingFinding
from service.schemas.ledger_document import LedgerDocument, outside_of
from service.schemas.requests import accepted_statuses
from service.schemas.responses import (
    EVERY_STEP,
    GuaranteeAnswer,
    guarantee_answer,
    with_ahead,
    without_lower,
)
from service.transparency.audit_answers import stated_audits
from service.transparency.certificates.schema import (
    ACCOUNTANTS,
    DISTINCT_MAX,
    Facts,
    Home,
    Statement,
)

ISSUE_POINTS: Final = 70_000_000  # after which no further delta is stated
_STATED: Final = frozenset(Statement.model_fields) - {"delta", "accountant", "reservations"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The facts of a certificate as they are accounted."""

    relation: NeighboringRelation
    accept: frozenset[Status]
    recorded: EventCounts
    corrected: EventCounts | None  # with every correction laid over it, where there is one
    reserved: EventCounts | None = None  # the same as recorded, with what is reserved
    reserved_corrected: EventCounts | None = None
    hidden: Hidden = NOTHING_HIDDEN
    plan: EventCounts | None = None  # of a run that keeps to its plan and has not done it yet
    lower: bool = True  # whether what all iterates attain is attained

    @property
    def share(self) -> float:
        """Of the work that a guarantee may take, what each may: as GET guarantee has it."""
        halves = (self.corrected is not None, self.reserved is not None or self.plan is not None)
        return float(0.5 ** sum(halves))


def account_of(facts: Facts) -> Account:
    """The account of a certificate's facts.

    Raises:
        InvalidRequestError: a document contradicts itself, or does not fit its dataset.
        TooExpensiveError: its events are too many.
    """
    home, relation = facts.homes[0], NeighboringRelation(facts.dataset.neighboring_relation)
    accept = accepted_statuses(list(facts.dataset.accept))
    if facts.subject.kind == "run":
        (run,) = home.runs
        recorded = run.ledger.counts()
        found = Account(
            relation=relation,
            accept=accept,
            recorded=recorded,
            corrected=run.ledger.corrected_counts(),
            hidden=read_hidden(run.ledger),
            plan=_ahead_of(recorded, run.ledger) if run.on_plan else None,
        )
    else:
        found = _of_dataset(facts, relation, accept)
    if len(found.recorded.steps) > DISTINCT_MAX:
        raise TooExpensiveError(f"A certificate has at most {DISTINCT_MAX} different events.")
    return found


def _ahead_of(recorded: EventCounts, document: LedgerDocument) -> EventCounts | None:
    events, size = document.plan or [], document.dataset_size
    plan = count_events([spans_of(events, dataset_size=size, first_step=0, location="plan")])
    return None if plan.steps == recorded.steps else plan


def _of_dataset(facts: Facts, relation: NeighboringRelation, accept: frozenset[Status]) -> Account:
    documents = [run.ledger for home in facts.homes for run in home.runs]
    really = any(document.corrections for document in documents)
    held = any(home.reserved for home in facts.homes)

    def together(*, corrected: bool, reserved: bool) -> EventCounts:
        each = [_of_home(home, corrected=corrected, reserved=reserved) for home in facts.homes]
        if len(each) == 1:
            return each[0]
        views = [
            _view_counts(one, home, relation) for one, home in zip(each, facts.homes, strict=True)
        ]
        return counted(merge_changes(views))

    return Account(
        relation=relation,
        accept=accept,
        recorded=together(corrected=False, reserved=False),
        corrected=together(corrected=True, reserved=False) if really else None,
        reserved=together(corrected=False, reserved=True) if held else None,
        reserved_corrected=together(corrected=True, reserved=True) if held and really else None,
        # Some run may have shown less, or a record of a parent may be in fewer of the steps.
        lower=len(facts.homes) == 1 and all(one.release == EVERY_STEP for one in documents),
    )


def _of_home(home: Home, *, corrected: bool, reserved: bool) -> EventCounts:
    """What the runs of one dataset did, and may still do."""
    steps, passes = Counter[Any](), Counter[Any]()
    begun, starts = Counter[Any](), Counter[Any]()
    for run in home.runs:
        really = run.ledger.corrected_counts() if corrected else None
        one = run.ledger.counts() if really is None else really
        steps.update(one.steps)
        passes.update(one.passes)
        begun.update(one.begun)
        starts.update(one.starts)
    if not reserved:
        return EventCounts(
            steps=dict(steps), passes=dict(passes), begun=dict(begun), starts=dict(starts)
        )
    for index, ahead in enumerate(home.reserved):
        event = to_event(ahead, dataset_size=home.dataset_size, location=f"reserved[{index}]")
        steps[event] += ahead.steps
        passes[event] += ahead.passes_anew if corrected else ahead.passes
        begun[event] += 0 if corrected else ahead.begun
    # Where steps may still come, nothing is known of how often loaders begin anew.
    return EventCounts(steps=dict(+steps), passes=dict(+passes), begun=dict(+begun))


def _view_counts(
    counts: EventCounts, home: Home, relation: NeighboringRelation
) -> dict[Any, StepsAndPasses]:
    """A home's steps as the records of the certified dataset see them."""
    move = BudgetDelta(recorded=counts_of(counts))
    seen = as_seen_by_ancestor(
        move, relation=relation, rows=RowsPerParent(home.exactly_one, home.most_rows)
    )
    return dict(seen.recorded)


def statements_of(account: Account, deltas: Sequence[float]) -> list[Statement]:
    """What an account proves at each delta, by each accountant.

    Raises:
        ArithmeticError: a lower bound exceeds an upper one, so one of them is wrong.
    """
    found = []
    for delta in deltas:
        for accountant in ACCOUNTANTS:
            given: dict[str, Any] = {"delta": delta, "accountant": accountant}
            alone = _alone(account, **given)
            found.append(_statement(alone, **given, reservations=False))
            if account.reserved is not None:
                whole = _add_reserved(account, alone, **given)
                found.append(_statement(whole, **given, reservations=True))
    return found


def affordable_statements(account: Account, deltas: Sequence[float]) -> list[Statement]:
    """Statements at the first delta; at each other in turn until they took enough work.

    By delta, the largest first.
    """
    found: list[list[Statement]] = []
    with limit_work(math.inf) as meter:
        before = meter.spent
        for delta in deltas:
            found.append(statements_of(account, [delta]))
            if meter.spent - before > ISSUE_POINTS:
                break
    found.sort(key=lambda same: -same[0].delta)
    return [one for same in found for one in same]


def _statement(answer: GuaranteeAnswer, **given: Any) -> Statement:
    return Statement(**answer.model_dump(include=set(_STATED)), **given)


def _alone(account: Account, **given: Any) -> GuaranteeAnswer:
    """What was recorded, as GET guarantee answers it."""
    found = _answer(account, account.recorded, account.corrected, account.hidden, **given)
    if not account.lower:
        found = without_lower(found)
    if account.plan is None:
        return found
    whole = _answer(account, account.plan, account.corrected, NOTHING_HIDDEN, **given)
    beside = {"so_far_epsilon": found.epsilon, "planned_steps": sum(account.plan.steps.values())}
    return with_ahead(whole, found).model_copy(update=beside)


def _add_reserved(account: Account, alone: GuaranteeAnswer, **given: Any) -> GuaranteeAnswer:
    """The same with what is reserved."""
    recorded = account.reserved or account.recorded
    corrected = account.reserved_corrected
    return with_ahead(_answer(account, recorded, corrected, NOTHING_HIDDEN, **given), alone)


def _answer(
    account: Account,
    recorded: EventCounts,
    corrected: EventCounts | None,
    hidden: Hidden,
    *,
    delta: float,
    accountant: str,
) -> GuaranteeAnswer:
    """What is proved of facts and of their corrections: it holds for either."""

    def found_of(counts: EventCounts) -> Guarantee:
        found = best_bound.guarantee(
            counts,
            relation=account.relation,
            delta=delta,
            accept=account.accept,
            accountant=accountant,
            share=account.share,
        )
        return with_hidden_state_bound(found, hidden, accept=account.accept, accountant=accountant)

    found = found_of(recorded)
    really = None if corrected is None else found_of(corrected)
    if really is not None:
        found = covering(found, really)
    whole = guarantee_answer(found, counts=recorded, sequence=0, release=hidden.release)
    return whole.model_copy(
        update={"corrected_epsilon": None if really is None else really.epsilon}
    )


def theorems_of(statements: Iterable[Statement]) -> list[dict[str, Any]]:
    """Every theorem that statements rest on, by id."""
    known, used = bound_answers(), {name for one in statements for name in one.theorems}
    wanted = {"id", "statement", "source", "status", "assumptions"}
    return [known[name].model_dump(include=wanted) for name in sorted(used)]


def _documents(facts: Facts) -> Iterator[tuple[str, LedgerDocument]]:
    for home in facts.homes:
        for run in home.runs:
            yield run.ledger.run or "", run.ledger


def run_standings(facts: Facts) -> list[dict[str, Any]]:
    """Where each run stands by its own document."""
    return [
        {
            "run": name,
            "state": document.state,
            "sampling_status": _sampling_status(document),
            "outside_guarantee": [one.model_dump() for one in outside_of(document)],
            "audits": stated_audits(document),
            "steps_beyond_a_limit": sum(one.steps for one in document.overdrafts or []),
            "steps_reserved_beyond_a_limit": sum(one.steps for one in document.reserved or []),
            "by": document.by,
            "appended_by": document.appended_by or [],
            "corrections": len(document.corrections),
            "branches": 1 + len(document.branches),
            "releases": len(document.releases),
        }
        for name, document in _documents(facts)
    ]


def _sampling_status(document: LedgerDocument) -> str:
    """Of the samplings that were found; a contradiction stays."""
    claims = [(one.branch, one.status) for one in document.findings
              if isinstance(one, SamplingFinding)]  # fmt: skip
    if any(status == "contradicted" for _, status in claims):
        return "contradicted"
    return "detected" if set(dict(claims).values()) == {"detected"} else "declared"


def list_advisories(facts: Facts) -> list[dict[str, Any]]:
    """Known defects of the libraries that the runs say they used."""
    return [
        {"run": name, **advisory.model_dump()}
        for name, document in _documents(facts)
        for advisory in advisories_of(document.labels or {})
    ]
