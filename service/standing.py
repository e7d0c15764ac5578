"""What the findings of a run say of it as a whole."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, bindparam, func, select

from service.answers import OutsideGuarantee
from service.schemas import SamplingStatus
from service.tables import branches, findings

_earlier = findings.alias()
# Of each branch the latest finding of each claim: a few rows, however many findings there are.
_LATEST: Final = (
    select(findings.c.kind, findings.c.claim, branches.c.name.label("branch"))
    .join(branches, branches.c.id == findings.c.branch_id)
    .where(
        findings.c.id.in_(
            select(func.max(_earlier.c.id))
            .where(
                _earlier.c.run_id == bindparam("run"),
                _earlier.c.kind.in_(("sampling", "batch_sizes")),  # not ranks, which are many
            )
            .group_by(_earlier.c.branch_id, _earlier.c.kind, _earlier.c.claim)
        )
    )
    .order_by(findings.c.id)
)


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run's samplings are borne out, and what no epsilon of it covers."""

    sampling_status: SamplingStatus
    outside_guarantee: list[OutsideGuarantee]


def standing_of(connection: Connection, run_id: int) -> Standing:
    """Where a run stands by its findings; without any it is as declared."""
    rows = connection.execute(_LATEST, {"run": run_id}).all()
    outside = [
        OutsideGuarantee(kind="batch_sizes", branch=row.branch, verdict=row.claim)
        for row in rows
        if row.kind == "batch_sizes"
    ]
    claims = [(row.branch, row.claim) for row in rows if row.kind == "sampling"]
    return Standing(_status(claims), outside)


def _status(claims: list[tuple[str, str]]) -> SamplingStatus:
    """The status of a run from (branch, claim), the oldest first; a contradiction stays."""
    if any(claim == "contradicted" for _, claim in claims):
        return "contradicted"
    latest = set(dict(claims).values())
    return "detected" if latest == {"detected"} else "declared"
