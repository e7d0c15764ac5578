"""Findings: what a trainer's client read from the code that runs. No epsilon depends on them."""

import hashlib
import json
from typing import Annotated, Any, Final, Literal

from pydantic import Field
from sqlalchemy import Connection, Row, bindparam, exists, insert, select

from service.clock import now, stamp
from service.errors import ConflictError
from service.ledger import incidents
from service.ledger.incidents import DetailValue, Incident, Kind
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import find_branch, lock_run
from service.schemas.event_codec import canonical, part_content
from service.schemas.findings import BatchSizesFinding, NewFinding, RankFinding, SamplingFinding
from service.schemas.requests import BatchSizesVerdict, SamplingStatus
from service.schemas.responses import Answer, Page
from service.schemas.samplings import to_sampling
from service.storage.tables import findings, runs

_FOUND: Final = select(findings, runs.c.name.label("run")).join(
    runs, runs.c.id == findings.c.run_id
)
_SAME: Final = _FOUND.where(
    findings.c.branch_id == bindparam("branch"), findings.c.digest == bindparam("digest")
)
_OF_KIND: Final = (
    select(findings.c.content)
    .where(findings.c.branch_id == bindparam("branch"), findings.c.kind == bindparam("of_kind"))
    .order_by(findings.c.id)
    .limit(1)
)
_CLAIMED: Final = select(
    exists().where(
        findings.c.branch_id == bindparam("branch"),
        findings.c.kind == bindparam("of_kind"),
        findings.c.claim == bindparam("claimed"),
    )
)
_OF_RUN: Final = (
    _FOUND.where(
        findings.c.run_id == bindparam("run"),
        findings.c.id > bindparam("after"),
        findings.c.kind.in_(("sampling", "rank", "batch_sizes")),  # audits are listed apart
    )
    .order_by(findings.c.id)
    .limit(bindparam("size"))
)


class _FindingAnswer(Answer):
    run: str
    branch: str
    recorded_at: str


class SamplingFound(_FindingAnswer):
    """How a loader samples, as its classes and settings say."""

    kind: Literal["sampling"]
    from_step: int
    status: SamplingStatus
    declared: dict[str, Any] | None = None
    recorded: dict[str, Any]
    seen: dict[str, bool | int | float | str]
    reason: str


class RankFound(_FindingAnswer):
    """One process of a job."""

    kind: Literal["rank"]
    rank: int
    world_size: int
    fingerprint: str


class BatchSizesFound(_FindingAnswer):
    """The verdict on private sizes; outside every guarantee."""

    kind: Literal["batch_sizes"]
    verdict: BatchSizesVerdict
    level: float


FindingAnswer = Annotated[SamplingFound | RankFound | BatchSizesFound, Field(discriminator="kind")]
_ANSWERS: Final[dict[str, type[SamplingFound | RankFound | BatchSizesFound]]] = {
    "sampling": SamplingFound,
    "rank": RankFound,
    "batch_sizes": BatchSizesFound,
}


class FindingPage(Page):
    """A run's findings, the oldest first."""

    findings: list[FindingAnswer]


def record_finding(
    connection: Connection, run_name: str, new: NewFinding, *, by: str | None = None
) -> tuple[FindingAnswer, bool]:
    """Record a finding, or find the same one; whether it is new. A closed run takes them, too.

    Args:
        connection: in a transaction.
        run_name: the run's.
        new: the request.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run or branch.
        InvalidRequestError: the sampling that is recorded does not fit the dataset.
        ConflictError: the branch has another verdict on its batch sizes.
    """
    run, dataset = lock_run(connection, run_name)
    branch = find_branch(connection, run.id, new.branch)
    content = canonical(_normal(new, dataset.dataset_size))
    here = {"branch": branch.id, "digest": hashlib.sha256(content.encode()).hexdigest()}
    if (known := connection.execute(_SAME, here).one_or_none()) is not None:
        return _answer(known), False
    _require_once(connection, branch, new)
    happened = _find_incident(connection, branch, new)
    values = {
        "run_id": run.id,
        "branch_id": branch.id,
        "kind": new.kind,
        "claim": new.claim,
        "content": content,
        "digest": here["digest"],
        "recorded_at": now(),
    }
    inserted = insert(findings).values(values).returning(findings.c.id)
    number = connection.execute(inserted).scalar_one()
    found = build_log_records(connection, "finding", dataset_id=dataset.id, row=number, by=by)
    append_leaves(connection, dataset.id, found)
    if happened is not None:
        kind, detail = happened
        incidents.record_incidents(connection, [_incident(dataset, run, kind, new.branch, detail)])
    return _answer(connection.execute(_SAME, here).one()), True


def _normal(new: NewFinding, dataset_size: int) -> dict[str, Any]:
    """A message as it is stored: what is recorded as events have it, what was declared as said."""
    fields = new.model_dump(mode="json", exclude_none=True)
    if isinstance(new, SamplingFinding):
        sampling = to_sampling(new.recorded, dataset_size=dataset_size, location="body.recorded")
        fields["recorded"] = json.loads(part_content(sampling))
    return fields


def _require_once(connection: Connection, branch: Row[Any], new: NewFinding) -> None:
    """Refuse a second verdict on a branch: each would let out more of what is private."""
    if isinstance(new, BatchSizesFinding) and _first(connection, branch, new.kind) is not None:
        raise ConflictError("The branch already has a verdict on its batch sizes.")


def _first(connection: Connection, branch: Row[Any], kind: str) -> str | None:
    """The content of the first finding of a kind on a branch."""
    return connection.scalar(_OF_KIND, {"branch": branch.id, "of_kind": kind})


def _find_incident(
    connection: Connection, branch: Row[Any], new: NewFinding
) -> tuple[Kind, dict[str, DetailValue]] | None:
    """Return the incident that a new finding raises, if any."""
    match new:
        case SamplingFinding(status="contradicted", declared=declared) if declared is not None:
            told = {"declared": declared.kind, "recorded": new.recorded.kind}
            return Kind.SAMPLING_CONTRADICTED, {"from_step": new.from_step, **told}
        case RankFinding():
            return _disagreement(connection, branch, new)
        case BatchSizesFinding(verdict="refuted"):
            return Kind.BATCH_SIZES_REFUTED, {"level": new.level}
        case _:
            return None


def _disagreement(
    connection: Connection, branch: Row[Any], new: RankFinding
) -> tuple[Kind, dict[str, DetailValue]] | None:
    """A rank that says what none of its branch said before, while another was there.

    Of a thousand ranks that differ from the first alike, the first one is told.
    """
    asked = {"branch": branch.id, "of_kind": new.kind, "claimed": new.claim}
    other = _first(connection, branch, new.kind)
    if other is None or connection.scalar(_CLAIMED, asked):
        return None
    before = RankFinding.model_validate_json(other)
    return Kind.RANKS_DISAGREE, {
        "rank": new.rank,
        "world_size": new.world_size,
        "other_rank": before.rank,
        "other_world_size": before.world_size,
    }


def _incident(
    dataset: Row[Any], run: Row[Any], kind: Kind, branch: str, detail: dict[str, DetailValue]
) -> Incident:
    return Incident(
        dataset_id=dataset.id,
        run_id=run.id,
        kind=kind,
        sequence=dataset.head_sequence,
        detail={"dataset": dataset.name, "run": run.name, "branch": branch, **detail},
    )


def _answer(row: Row[Any]) -> SamplingFound | RankFound | BatchSizesFound:
    fields = json.loads(row.content)
    return _ANSWERS[row.kind](run=row.run, recorded_at=stamp(row.recorded_at), **fields)


def list_findings(
    connection: Connection, run_id: int, *, after: int, size: int
) -> tuple[list[FindingAnswer], int | None]:
    """A run's findings after a row, and the row to continue from."""
    rows = connection.execute(_OF_RUN, {"run": run_id, "after": after, "size": size + 1}).all()
    further = rows[size - 1].id if len(rows) > size else None
    return [_answer(row) for row in rows[:size]], further


def contradicting_sampling(connection: Connection, run_id: int) -> dict[str, Any] | None:
    """How a run's code samples, as its latest finding of a contradiction says; None without one."""
    claimed = (findings.c.kind == "sampling") & (findings.c.claim == "contradicted")
    query = _OF_RUN.where(claimed).order_by(None).order_by(findings.c.id.desc())
    row = connection.execute(query, {"run": run_id, "after": 0, "size": 1}).one_or_none()
    found = None if row is None else _answer(row)
    return found.recorded if isinstance(found, SamplingFound) else None
