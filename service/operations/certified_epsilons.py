"""The certified epsilons of many runs and datasets, for lists: worked out for some at a time, kept.

Each is that of the guarantee. What one request does not reach in its time, a later one does.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from service.errors import TooExpensiveError
from service.guarantees.event_counts import counts_of_runs
from service.guarantees.guarantee import Question, dataset_guarantee, guarantee_of, run_guarantee
from service.ledger.append.state_rows import DATASETS
from service.ledger.budgets.budget import delta_of
from service.operations.budget_summaries import steps_of
from service.schemas.responses import EVERY_STEP, Answer, GuaranteeAnswer, RunPage
from service.storage.tables import corrections
from service.storage.versioned_cache import VersionedCache

CERTIFIED_MAX: Final = 20_000  # of runs that are kept, and of datasets; some 400 bytes each
UNLIMITED_DELTA: Final = 1e-5  # at which a dataset without a limit is told
CERTIFIED_SECONDS: Final = 0.5  # of processor time that a list may take for what it does not know
_CORRECTED: Final = (
    select(corrections.c.run_id)
    .distinct()
    .where(corrections.c.run_id.in_(bindparam("ids", expanding=True)))
)


class CertifiedEpsilon(Answer):
    """What is proved of the steps that ran, for a schedule that was fixed in advance."""

    delta: float | None  # null where it takes too much work
    epsilon_lower: float | None  # nats; null where no lower bound is proved
    epsilon: float | None  # nats, upper; null where it is infinite or takes too much work


class RunList(RunPage):
    """A page of runs, with the certified epsilon of each where it was asked for."""

    # By run; runs without a delta are absent, and those that this request did not reach.
    certified: dict[str, CertifiedEpsilon] | None


class CertifiedEpsilons:
    """Certified epsilons, kept while the steps behind them stay the same; for any thread."""

    def __init__(self) -> None:
        self._runs: VersionedCache[CertifiedEpsilon] = VersionedCache(CERTIFIED_MAX)
        self._datasets: VersionedCache[CertifiedEpsilon] = VersionedCache(CERTIFIED_MAX)

    def of_runs(
        self, connection: Connection, rows: Sequence[Row[Any]], *, seconds: float
    ) -> dict[str, CertifiedEpsilon]:
        """Return what is certified of some runs, each alone, by name.

        Args:
            connection: to the database.
            rows: of the runs.
            seconds: of processor time, after which the rest is left for the next look; at least one
                that was not known is worked out.
        """
        dataset_rows = _datasets_of(connection, rows)
        rows = [row for row in rows if delta_of(dataset_rows[row.dataset_id], row) is not None]
        versions = _versions(connection, rows, dataset_rows)
        unknown = [row.id for row in rows if self._runs.get(_key(row), versions[row.id]) is None]
        usual = [row for row in rows if row.id in unknown and versions[row.id][-1] is None]
        sizes = {row.id: dataset_rows[row.dataset_id].dataset_size for row in usual}
        counts = counts_of_runs(connection, sizes) if sizes else {}

        def work_out(row: Row[Any]) -> GuaranteeAnswer:
            dataset_row = dataset_rows[row.dataset_id]
            delta = delta_of(dataset_row, row)
            if row.id not in counts:
                return run_guarantee(connection, row.name, Question(delta=delta))
            return guarantee_of(
                counts[row.id], dataset_row, sequence=dataset_row.head_sequence, delta=delta
            )

        return _read(self._runs, rows, versions, work_out, seconds)

    def of_datasets(
        self, connection: Connection, rows: Iterable[Row[Any]], *, seconds: float
    ) -> dict[str, CertifiedEpsilon]:
        """Return what is certified of all recorded steps of some datasets, by name.

        A dataset without a limit is told at UNLIMITED_DELTA.

        Args:
            connection: to the database.
            rows: of the datasets: id, name, created_at, version, revision and budget_delta.
            seconds: as for runs.
        """
        told = list(rows)
        versions = {row.id: (row.version, row.revision) for row in told}

        def work_out(row: Row[Any]) -> GuaranteeAnswer:
            asked = Question(delta=row.budget_delta or UNLIMITED_DELTA)
            return dataset_guarantee(connection, row.name, asked).without_reservations

        return _read(self._datasets, told, versions, work_out, seconds)


def _read(
    known: VersionedCache[CertifiedEpsilon],
    rows: Iterable[Row[Any]],
    versions: Mapping[int, Hashable],
    work_out: Callable[[Row[Any]], GuaranteeAnswer],
    seconds: float,
) -> dict[str, CertifiedEpsilon]:
    """What is known of all rows, by name, and of some others as far as the time goes."""
    deadline: float | None = None
    found = {}
    for row in rows:
        certified = known.get(_key(row), versions[row.id])
        if certified is None and (deadline is None or time.thread_time() <= deadline):
            deadline = time.thread_time() + seconds if deadline is None else deadline
            certified = _compute_epsilon(row, work_out)
            known.put(_key(row), versions[row.id], certified)
        if certified is not None:
            found[row.name] = certified
    return found


def _compute_epsilon(
    row: Row[Any], work_out: Callable[[Row[Any]], GuaranteeAnswer]
) -> CertifiedEpsilon:
    try:
        answer = work_out(row)
    except TooExpensiveError:
        return CertifiedEpsilon(epsilon_lower=None, epsilon=None, delta=None)
    return CertifiedEpsilon(
        epsilon_lower=answer.epsilon_lower, epsilon=answer.epsilon, delta=answer.delta
    )


def _key(row: Row[Any]) -> Hashable:
    """A run or a dataset; the time keeps apart those of two databases that have the same number."""
    return row.id, row.created_at


def _datasets_of(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, Row[Any]]:
    ids = sorted({row.dataset_id for row in rows})
    return {row.id: row for row in connection.execute(DATASETS, {"ids": ids})}


def _versions(
    connection: Connection, rows: Sequence[Row[Any]], dataset_rows: Mapping[int, Row[Any]]
) -> dict[int, tuple[Hashable, ...]]:
    """What the guarantee of each run depends on; the last part is None if its steps decide it."""
    ids = [row.id for row in rows]
    corrected = set(connection.scalars(_CORRECTED, {"ids": ids}))
    steps = steps_of(connection, ids)
    found: dict[int, tuple[Hashable, ...]] = {}
    for row in rows:
        dataset_row = dataset_rows[row.dataset_id]
        unusual = row.on_plan is not None or row.release != EVERY_STEP or row.id in corrected
        settings = (dataset_row.revision, row.state, steps.get(row.id, (0, 0)))
        found[row.id] = (*settings, dataset_row.version if unusual else None)
    return found
