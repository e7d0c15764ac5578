"""The certified epsilon of many runs, for lists: worked out for some of them at a time, and kept.

Each is what the run's guarantee is. What one request does not reach in its time, a later one does.
"""

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from service.errors import TooExpensiveError
from service.guarantees.event_counts import counts_of_runs
from service.guarantees.guarantee import Question, delta_of, guarantee_of, run_guarantee
from service.operations.budget_summaries import steps_of
from service.schemas.responses import EVERY_STEP, Answer, GuaranteeAnswer, RunPage
from service.storage.tables import corrections, datasets
from service.storage.versioned_cache import VersionedCache

CERTIFIED_RUNS_MAX: Final = 20_000  # that are kept; some 400 bytes each
CERTIFIED_SECONDS: Final = 0.5  # of processor time that a list may take for what it does not know

_HOMES: Final = select(datasets).where(datasets.c.id.in_(bindparam("ids", expanding=True)))
_CORRECTED: Final = (
    select(corrections.c.run_id)
    .distinct()
    .where(corrections.c.run_id.in_(bindparam("ids", expanding=True)))
)


class CertifiedEpsilon(Answer):
    """What is proved of a run's steps, alone, for a schedule that was fixed in advance."""

    delta: float
    epsilon_lower: float | None  # nats; null where no lower bound is proved
    epsilon: float | None  # nats, upper; null where it is infinite or takes too much work


class RunList(RunPage):
    """A page of runs, with the certified epsilon of each where it was asked for."""

    # By run; runs without a delta are absent, and those that this request did not reach.
    certified: dict[str, CertifiedEpsilon] | None


class CertifiedRuns:
    """The certified epsilon of runs, kept while their steps stay the same; for any thread."""

    def __init__(self) -> None:
        self._known: VersionedCache[CertifiedEpsilon] = VersionedCache(CERTIFIED_RUNS_MAX)

    def read(
        self, connection: Connection, rows: Sequence[Row[Any]], *, seconds: float
    ) -> dict[str, CertifiedEpsilon]:
        """Return what is certified of some runs, by name: of all that are known, and one at least.

        Args:
            connection: to the database.
            rows: of the runs.
            seconds: of processor time, after which the rest is left for the next look.
        """
        homes = _homes_of(connection, rows)
        versions = _versions(connection, rows, homes)
        found, unknown = {}, []
        for row in rows:
            if delta_of(homes[row.dataset_id], row) is None:
                continue
            known = self._known.get((row.id, row.created_at), versions[row.id])
            if known is None:
                unknown.append(row)
            else:
                found[row.name] = known
        deadline = time.thread_time() + seconds
        usual = [row for row in unknown if not _is_unusual(versions[row.id])]
        sizes = {row.id: homes[row.dataset_id].dataset_size for row in usual}
        counts = counts_of_runs(connection, sizes) if sizes else {}
        for row in unknown:
            home = homes[row.dataset_id]
            found[row.name] = certified = _certified(
                connection, row, home, counts.get(row.id), delta_of(home, row) or 0.0
            )
            self._known.put((row.id, row.created_at), versions[row.id], certified)
            if time.thread_time() > deadline:
                break
        return found


def _certified(
    connection: Connection, row: Row[Any], home: Row[Any], counts: Any, delta: float
) -> CertifiedEpsilon:
    try:
        answer: GuaranteeAnswer = (
            run_guarantee(connection, row.name, Question(delta=delta))
            if counts is None
            else guarantee_of(counts, home, sequence=home.head_sequence, delta=delta)
        )
    except TooExpensiveError:
        return CertifiedEpsilon(delta=delta, epsilon_lower=None, epsilon=None)
    return CertifiedEpsilon(delta=delta, epsilon_lower=answer.epsilon_lower, epsilon=answer.epsilon)


def _homes_of(connection: Connection, rows: Sequence[Row[Any]]) -> dict[int, Row[Any]]:
    ids = sorted({row.dataset_id for row in rows})
    return {row.id: row for row in connection.execute(_HOMES, {"ids": ids})}


def _versions(
    connection: Connection, rows: Sequence[Row[Any]], homes: Mapping[int, Row[Any]]
) -> dict[int, tuple[Hashable, ...]]:
    """What the guarantee of each run hangs on; the last part is none where its steps say it all."""
    ids = [row.id for row in rows]
    corrected = set(connection.scalars(_CORRECTED, {"ids": ids}))
    steps = steps_of(connection, ids)
    found: dict[int, tuple[Hashable, ...]] = {}
    for row in rows:
        home = homes[row.dataset_id]
        unusual = row.on_plan is not None or row.release != EVERY_STEP or row.id in corrected
        settings = (home.revision, row.state, steps.get(row.id, (0, 0)))
        found[row.id] = (*settings, home.version if unusual else None)
    return found


def _is_unusual(version: tuple[Hashable, ...]) -> bool:
    return version[-1] is not None
