"""What a correction would change, computed before it is stored."""

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row

from service.clock import now
from service.guarantees.event_counts import RecordedCounts
from service.guarantees.guarantee import guarantee_of_facts
from service.guarantees.recorded_facts import dataset_facts, run_facts
from service.guarantees.replay import LATEST
from service.ledger import lookups
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.append.write_access import rehearse
from service.ledger.budgets.budget import delta_of
from service.ledger.corrections import Correct
from service.ledger.views import budget_of_dataset
from service.schemas.responses import BudgetAnswer, GuaranteeAnswer
from service.storage.engine import snapshot

USUAL_DELTA: Final = 1e-5  # where neither the run nor the dataset's budget has one
_GUARANTEES: Final = 4  # that share the work of one


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    run: RecordedCounts
    dataset: RecordedCounts
    row: Row[Any]  # of the dataset
    budget: BudgetAnswer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountChange:
    """Epsilon in nats at delta, as certified, before and after a correction."""

    delta: float
    before: GuaranteeAnswer
    after: GuaranteeAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionPreview:
    """What a correction would change."""

    run: AccountChange
    dataset: AccountChange
    budget_before: BudgetAnswer | None  # None without a limit
    budget_after: BudgetAnswer | None
    known: bool  # whether the same correction is recorded already


def preview_correction(engine: Engine, correct: Correct) -> CorrectionPreview:
    """Run a correction in a transaction that is rolled back, and compare what is certified.

    The guarantees are computed after the transaction, so that no lock waits for them.

    Raises:
        NotFoundError: there is no such run or branch.
        InvalidRequestError: the event does not fit the dataset.
        OutOfSequenceError: some of the steps are not recorded.
        ConflictError: some of them were corrected before, otherwise.
        TooExpensiveError: it takes too much work.
    """
    with snapshot(engine) as connection:
        run = lookups.find_run(connection, correct.run_name)
        before = _facts(connection, run)

    def corrected(connection: Connection) -> tuple[bool, _Facts]:
        work = DatasetCache().open(connection, [correct.place])
        created = bool(correct.apply(work, now())["created"])
        work.write()
        return created, _facts(connection, run)

    created, after = rehearse(engine, corrected)
    delta = delta_of(before.row, run) or USUAL_DELTA
    whole = delta_of(before.row) or delta
    return CorrectionPreview(
        run=_change(before.run, after.run, before.row, delta),
        dataset=_change(before.dataset, after.dataset, before.row, whole),
        budget_before=before.budget,
        budget_after=after.budget,
        known=not created,
    )


def _facts(connection: Connection, run: Row[Any]) -> _Facts:
    dataset = lookups.dataset_of(connection, run)
    return _Facts(
        run=run_facts(connection, run, dataset, branch=None, until=None, known=LATEST),
        dataset=dataset_facts(connection, dataset),
        row=dataset,
        budget=budget_of_dataset(connection, dataset),
    )


def _change(
    before: RecordedCounts, after: RecordedCounts, dataset: Row[Any], delta: float
) -> AccountChange:
    found = [
        guarantee_of_facts(facts, dataset, delta=delta, share=1 / _GUARANTEES)
        for facts in (before, after)
    ]
    return AccountChange(delta=delta, before=found[0], after=found[1])
