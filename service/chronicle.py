"""What happened to a run beside its steps, for who looks at it: few rows, the newest first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, desc, select

from service.findings import FindingAnswer, SamplingFound, list_findings
from service.incidents import TOLD, IncidentAnswer, incident_answer
from service.tables import entries, incidents

TOLD_MAX: Final = 20
_FINDINGS_MAX: Final = 200  # most are ranks, which are not told

_INCIDENTS: Final = (
    TOLD.where(
        incidents.c.dataset_id == bindparam("dataset"), incidents.c.run_id == bindparam("run")
    )
    .order_by(desc(incidents.c.id))
    .limit(TOLD_MAX)
)
_LAST_ENTRY: Final = (
    select(entries.c.recorded_at)
    .where(entries.c.run_id == bindparam("run"))
    .order_by(desc(entries.c.sequence))
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class Chronicle:
    """What happened to a run."""

    last_recorded_at: datetime | None
    incidents: list[IncidentAnswer]  # of the run itself, the newest first
    samplings: list[SamplingFound]  # what was read of its loaders, the newest first


def chronicle(connection: Connection, run: Row[Any]) -> Chronicle:
    """What happened to a run."""
    asked = {"dataset": run.dataset_id, "run": run.id}
    rows = connection.execute(_INCIDENTS, asked).all()
    found, _ = list_findings(connection, run.id, after=0, size=_FINDINGS_MAX)
    return Chronicle(
        last_recorded_at=connection.scalar(_LAST_ENTRY, {"run": run.id}),
        incidents=[incident_answer(row) for row in rows],
        samplings=_newest(found),
    )


def _newest(found: list[FindingAnswer]) -> list[SamplingFound]:
    samplings = [one for one in found if isinstance(one, SamplingFound)]
    return samplings[::-1][:TOLD_MAX]
