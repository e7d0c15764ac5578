"""Show datasets, runs and branches as they stand now."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, func, select

from service.clock import now, stamp
from service.ledger.advisories import advisories_of
from service.ledger.append.state_rows import run_tally, tally_of
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.budget import dataset_scope, run_scope
from service.ledger.expired_reservations import expired_reservations
from service.ledger.log.merkle import Frontier
from service.ledger.lookups import branches_of, dataset_of, find_dataset, read_rows_per_record
from service.schemas.findings import OF_PEOPLE
from service.schemas.ledger_document import AUDITED
from service.schemas.requests import SamplingStatus
from service.schemas.responses import (
    Answer,
    BranchAnswer,
    BudgetAnswer,
    DatasetAnswer,
    OutsideGuarantee,
    RunAnswer,
)
from service.storage.tables import branches, datasets, findings, lineage, releases, runs

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
                _earlier.c.kind.in_(("sampling", "batch_sizes", "audit_result")),
            )
            .group_by(_earlier.c.branch_id, _earlier.c.kind, _earlier.c.claim)
        )
    )
    .order_by(findings.c.id)
)
_PARENTS: Final = (
    select(datasets.c.name)
    .join(lineage, lineage.c.ancestor_id == datasets.c.id)
    .where(lineage.c.dataset_id == bindparam("dataset"), lineage.c.parent)
    .order_by(datasets.c.id)
)
_RELEASES_OF_RUN: Final = (
    select(func.count()).select_from(releases).where(releases.c.run_id == bindparam("run"))
)


@dataclass(frozen=True, slots=True)
class SamplingSummary:
    """How far a run's samplings are borne out, and what no epsilon of it covers."""

    sampling_status: SamplingStatus
    outside_guarantee: list[OutsideGuarantee]


def sampling_summary(connection: Connection, run_id: int) -> SamplingSummary:
    """Where a run stands by its findings; without any it is as declared."""
    rows = connection.execute(_LATEST, {"run": run_id}).all()
    outside = [
        OutsideGuarantee(kind="batch_sizes", branch=row.branch, verdict=row.claim)
        for row in rows
        if row.kind == "batch_sizes"
    ]
    if any(row.kind == "audit_result" and OF_PEOPLE in row.claim.split() for row in rows):
        outside.append(AUDITED)
    claims = [(row.branch, row.claim) for row in rows if row.kind == "sampling"]
    return SamplingSummary(_status(claims), outside)


def _status(claims: list[tuple[str, str]]) -> SamplingStatus:
    """The status of a run from (branch, claim), the oldest first; a contradiction stays."""
    if any(claim == "contradicted" for _, claim in claims):
        return "contradicted"
    latest = set(dict(claims).values())
    return "detected" if latest == {"detected"} else "declared"


def dataset_answer(connection: Connection, dataset: Row[Any]) -> DatasetAnswer:
    """A dataset as it stands."""
    count = connection.scalar(
        select(func.count()).select_from(runs).where(runs.c.dataset_id == dataset.id)
    )
    return dataset_answer_of(
        dataset,
        budget=budget_of_dataset(connection, dataset),
        parents=[row.name for row in connection.execute(_PARENTS, {"dataset": dataset.id})],
        runs=count or 0,
    )


def dataset_answer_of(
    dataset: Row[Any], *, budget: BudgetAnswer | None, parents: list[str], runs: int
) -> DatasetAnswer:
    """The same of what was read already."""
    return DatasetAnswer(
        name=dataset.name,
        dataset_size=dataset.dataset_size,
        neighboring_relation=dataset.neighboring_relation,
        privacy_unit=dataset.privacy_unit,
        accept=json.loads(dataset.accept),
        parents=parents,
        rows_per_parent_record=read_rows_per_record(dataset.rows_per_parent_record),
        frozen=dataset.frozen,
        revision=dataset.revision,
        budget=budget,
        spent=budget.spent if budget else None,
        reserved=budget.reserved if budget else None,
        remaining=budget.remaining if budget else None,
        runs=runs,
        sequence=dataset.head_sequence,
        created_at=stamp(dataset.created_at),
    )


def run_answer(connection: Connection, run: Row[Any]) -> RunAnswer:
    """A run as it stands."""
    dataset = dataset_of(connection, run)
    found = branches_of(connection, run)
    scope = run_scope(run, run_tally(connection, dataset, run))
    lost = (
        expired_reservations(connection, dataset, now(), run_id=run.id) if scope else BudgetDelta()
    )
    budget = (
        BudgetAnswer(**scope.answer(scope.accumulator.sums(lost.of_run), items=True))
        if scope
        else None
    )
    standing = sampling_summary(connection, run.id)
    return RunAnswer(
        name=run.name,
        dataset=dataset.name,
        state=run.state,
        delta=run.delta,
        release=run.release,
        assumptions=json.loads(run.assumptions),
        plan=None if run.plan is None else json.loads(run.plan),
        on_plan=run.on_plan,
        budget=budget,
        labels=json.loads(run.labels),
        steps=sum(branch.next_step - branch.from_step for branch in found),
        next_step=found[0].next_step,
        branches=[branch_answer(branch, run.name, found) for branch in found],
        releases=connection.scalar(_RELEASES_OF_RUN, {"run": run.id}) or 0,
        sampling_status=standing.sampling_status,
        outside_guarantee=standing.outside_guarantee,
        advisories=advisories_of(json.loads(run.labels)),
        by=run.by,
        created_at=stamp(run.created_at),
    )


def branch_answer(branch: Row[Any], run_name: str, found: Sequence[Row[Any]]) -> BranchAnswer:
    """A branch as it stands; found are all of its run."""
    names = {one.id: one.name for one in found}
    return BranchAnswer(
        run=run_name,
        name=branch.name,
        from_branch=names.get(branch.from_branch_id),
        from_step=branch.from_step,
        order=branch.order,
        noise=branch.noise,
        takes_pass=branch.takes_pass,
        next_step=branch.next_step,
        by=branch.by,
        appended_by=branch.appended_by,
        created_at=stamp(branch.created_at),
    )


def budget_of_dataset(connection: Connection, dataset: Row[Any]) -> BudgetAnswer | None:
    """A dataset's budget as it stands, forfeited reservations counted as spent."""
    scope = dataset_scope(dataset, tally_of(connection, dataset))
    if scope is None:
        return None
    lost = expired_reservations(connection, dataset, now())
    return BudgetAnswer(**scope.answer(scope.accumulator.sums(lost), items=True))


class LogAnswer(Answer):
    """A dataset's log as it stands."""

    dataset: str
    size: int  # leaves: entries and acts
    root: str
    sequence: int  # entries


def log_answer(connection: Connection, dataset: str) -> LogAnswer:
    """A dataset's log as it stands.

    Raises:
        NotFoundError: there is no such dataset.
    """
    row = find_dataset(connection, dataset)
    root = Frontier.from_bytes(row.log_size, row.log_frontier or b"").root()
    return LogAnswer(
        dataset=row.name, size=row.log_size, root=root.hex(), sequence=row.head_sequence
    )
