"""Incidents: events that need attention. Kept permanently, streamed, and sent to webhooks.

An incident says names and numbers only: it leaves the house, and nothing private may.
"""

import json
import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, cast

from pydantic import WithJsonSchema
from sqlalchemy import Connection, Row, bindparam, func, insert, select

from service.clock import now, stamp, utc
from service.schemas.event_codec import canonical
from service.schemas.responses import Answer
from service.storage.tables import corrections, datasets, incidents, runs

SPARING_SECONDS = 60.0  # between two incidents of the same thing
OF_LIMIT_MAX: Final = 100  # the latest overdrafts and changes of settings that are read
SPARING_MAX: Final = 10_000  # things cached; about a hundred bytes each


class Kind(StrEnum):
    """What happened."""

    OVERDRAFT = "overdraft"  # what is charged came to exceed a limit; nothing more is admitted
    REOPENED = "reopened"  # steps were recorded after the end of a run
    RECORDED_AFTER_RELEASE = "recorded_after_release"  # or after a void
    REFUSAL = "refusal"  # steps did not fit that a run needed
    THRESHOLD = "threshold"  # what is charged passed a share of capacity
    SAMPLING_CONTRADICTED = "sampling_contradicted"  # the code samples otherwise than declared
    RANKS_DISAGREE = "ranks_disagree"  # processes of one job are configured differently
    NOISE_REUSED = "noise_reused"  # correlated noise of a pass may be used elsewhere
    BATCH_SIZES_REFUTED = "batch_sizes_refuted"  # sizes do not fit the declared sampling
    AUDIT_CONTRADICTS = "audit_contradicts"  # more canaries were guessed than epsilon allows
    CORRECTION = "correction"
    SETTINGS_CHANGED = "settings_changed"
    CHANGE_REQUEST = "change_request"  # a change waits for another person
    CERTIFIED_TOO_LOW = "certified_too_low"  # a later version of the accounting proves no less
    LEDGER_SUSPENDED = "ledger_suspended"  # the log is not the one that was signed


DetailValue = str | int | float | list[float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """An incident that is to be recorded, in the transaction of its cause."""

    dataset_id: int
    kind: Kind
    sequence: int  # the dataset's head after it
    detail: Mapping[str, DetailValue]  # dataset, run, branch, scope, limit, spent, fraction, reason
    run_id: int | None = None
    occurred_at: datetime = field(default_factory=lambda: now())  # by the clock of then

    @property
    def said(self) -> dict[str, DetailValue]:
        """The detail as it is stored."""
        return {name: _finite(value) for name, value in self.detail.items()}


class IncidentAnswer(Answer):
    """An incident as it is listed, streamed and sent."""

    id: str  # the same wherever it is told, so that a receiver can tell repetitions
    kind: Annotated[Kind, WithJsonSchema({"type": "string", "enum": list(Kind)})]
    dataset: str
    run: str | None
    sequence: int
    occurred_at: str
    detail: dict[str, Any]


class IncidentPage(Answer):
    """A page of a dataset's incidents, the oldest first."""

    incidents: list[IncidentAnswer]
    next_page_token: str | None


# Every column with the names that belong to it; readers narrow it further.
INCIDENT_ROWS: Final = (
    select(incidents, datasets.c.name.label("dataset"), runs.c.name.label("run"))
    .join(datasets, datasets.c.id == incidents.c.dataset_id)
    .outerjoin(runs, runs.c.id == incidents.c.run_id)
)
# Those of one dataset become visible in the order of their ids, for its lock is held.
AFTER: Final = (
    INCIDENT_ROWS.where(
        incidents.c.dataset_id == bindparam("dataset"), incidents.c.id > bindparam("after")
    )
    .order_by(incidents.c.id)
    .limit(bindparam("size"))
)

_LATEST: Final = (
    INCIDENT_ROWS.where(incidents.c.dataset_id == bindparam("dataset"))
    .order_by(incidents.c.id.desc())
    .limit(bindparam("size"))
)
_OF_LIMIT: Final = (
    select(incidents.c.kind, incidents.c.detail)
    .where(
        incidents.c.dataset_id == bindparam("dataset"),
        incidents.c.kind.in_([Kind.OVERDRAFT.value, Kind.SETTINGS_CHANGED.value]),
    )
    .order_by(incidents.c.id.desc())
    .limit(OF_LIMIT_MAX)
)
_CONTRADICTED: Final = select(func.count(incidents.c.run_id.distinct())).where(
    incidents.c.dataset_id == bindparam("dataset"),
    incidents.c.kind == Kind.SAMPLING_CONTRADICTED,
    ~select(corrections.c.id)
    .where(
        corrections.c.run_id == incidents.c.run_id,
        corrections.c.recorded_at >= incidents.c.occurred_at,  # an earlier one knew nothing of it
    )
    .exists(),
)
_COUNT: Final = (
    select(func.count())
    .select_from(incidents)
    .where(incidents.c.dataset_id == bindparam("dataset"))
)


def record_incidents(connection: Connection, happened: Sequence[Incident]) -> None:
    """Insert incidents; the locks of their datasets are held."""
    if not happened:
        return
    rows = [
        {
            "dataset_id": one.dataset_id,
            "run_id": one.run_id,
            "kind": one.kind.value,
            "sequence": one.sequence,
            "detail": canonical(one.said),
            "occurred_at": one.occurred_at,
        }
        for one in happened
    ]
    connection.execute(insert(incidents), rows)


def _finite(value: DetailValue) -> DetailValue:
    # JSON has no infinity; as in every answer, null stands for what is not finite.
    return value if not isinstance(value, float) or math.isfinite(value) else None


def is_overdraft_told(connection: Connection, dataset_id: int, scope: str) -> bool:
    """Whether an overdraft of a scope is told, and no later change of settings ended it.

    Args:
        connection: for reading.
        dataset_id: the dataset's.
        scope: whose limit, as incidents name it.
    """
    for row in connection.execute(_OF_LIMIT, {"dataset": dataset_id}):
        detail = json.loads(row.detail)
        if detail.get("scope") != scope:
            continue
        if row.kind == Kind.OVERDRAFT.value:
            return True
        limit, spent = detail.get("limit"), detail.get("spent")
        if limit is None or (spent is not None and spent <= limit):
            return False
    return False


def list_incidents(
    connection: Connection, dataset_id: int, *, after: int, size: int
) -> tuple[list[IncidentAnswer], int | None]:
    """A dataset's incidents after a row, and the row to continue from."""
    asked = {"dataset": dataset_id, "after": after, "size": size + 1}
    rows = connection.execute(AFTER, asked).all()
    further = rows[size - 1].id if len(rows) > size else None
    return [incident_answer(row) for row in rows[:size]], further


def latest_incidents(
    connection: Connection, dataset_id: int, *, size: int
) -> tuple[Sequence[Row[Any]], int]:
    """The rows of a dataset's latest incidents, the newest first; and how many there are in all."""
    asked = {"dataset": dataset_id, "size": size}
    rows = connection.execute(_LATEST, asked).all()
    total = connection.scalar(_COUNT, {"dataset": dataset_id})
    return rows, total or 0


def contradicted_runs(connection: Connection, dataset_id: int) -> int:
    """How many runs of a dataset were seen to sample otherwise, and not corrected since."""
    return connection.scalar(_CONTRADICTED, {"dataset": dataset_id}) or 0


def incident_answer(row: Row[Any]) -> IncidentAnswer:
    """The wire form of a row of TOLD."""
    return IncidentAnswer(
        id=incident_id(row.id, row.occurred_at),
        kind=row.kind,
        dataset=row.dataset,
        run=row.run,
        sequence=row.sequence,
        occurred_at=stamp(row.occurred_at),
        detail=json.loads(row.detail),
    )


def incident_id(number: int, occurred_at: datetime) -> str:
    """What an incident is called wherever it is told."""
    # The time keeps apart the incidents of two services that one receiver listens to.
    return f"incident-{number}-{round(utc(occurred_at).timestamp() * 1_000_000):x}"


class Sparing:
    """Lets the first of many equal things through, then one in a while. Not for many threads."""

    def __init__(
        self, seconds: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._given = seconds
        self._clock = clock
        self._passed: dict[Hashable, float] = {}

    @property
    def _seconds(self) -> float:
        return SPARING_SECONDS if self._given is None else self._given

    def lets(self, thing: Hashable) -> bool:
        """Whether this one may pass; if so, the next must wait."""
        present = self._clock()
        last = self._passed.get(thing)
        if last is not None and present - last < self._seconds:
            return False
        if len(self._passed) >= SPARING_MAX:
            self._forget(present)
        self._passed[thing] = present
        return True

    def _forget(self, present: float) -> None:
        recent = {k: t for k, t in self._passed.items() if present - t < self._seconds}
        # Where too many are recent, one too many may pass; none is ever kept back for it.
        self._passed = recent if len(recent) < SPARING_MAX else {}


def latest_refusal(connection: Connection, run: Row[Any]) -> dict[str, Any] | None:
    """What the latest refusal of a run's steps says: the scope that failed, its limit."""
    of_run = (
        incidents.c.dataset_id == run.dataset_id,
        incidents.c.run_id == run.id,
        incidents.c.kind == Kind.REFUSAL.value,
    )
    latest = select(incidents.c.detail).where(*of_run).order_by(incidents.c.id.desc()).limit(1)
    found = connection.scalar(latest)
    return None if found is None else cast(dict[str, Any], json.loads(found))
