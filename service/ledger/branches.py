"""Branches: a resume, rewind or fork of a run, and whose steps it shares."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, select

from accounting.event_counts import UNPLACED
from service.clock import now
from service.errors import BranchExistsError, ConflictError, NotFoundError, OutOfSequenceError
from service.ledger.append.state import enforced_budgets, raise_budget_alerts
from service.ledger.append.unit_of_work import DatasetCache, UnitOfWork
from service.ledger.budgets.pass_positions import opening_place, position_of
from service.ledger.log.leaves import Act, append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import (
    branches_of,
    dataset_of,
    find_run,
    lock_parents,
    lock_run,
    mark_changed,
    mark_family_changed,
)
from service.ledger.views import branch_answer
from service.schemas.event_codec import MAIN
from service.schemas.ledger_document import CONTINUED
from service.schemas.requests import NewBranch
from service.schemas.responses import BranchAnswer
from service.schemas.run_states import CLOSED
from service.storage.tables import branches, reservations, runs

_HELD: Final = (
    select(reservations.c.id)
    .where(
        reservations.c.branch_id == branches.c.id,
        reservations.c.end_step > branches.c.next_step,
        branches.c.id == bindparam("origin"),
    )
    .limit(1)
)
# What goes on there is of a place that is not known.
_GIVEN: Final = (
    branches.update()
    .where(branches.c.id == bindparam("origin"))
    .values(pass_event_id=None, pass_position=position_of(UNPLACED))
)


def create_branch(
    connection: Connection, run_name: str, new: NewBranch, *, by: str | None = None
) -> tuple[BranchAnswer, bool]:
    """Open a branch that continues a run from one of its steps, or find it; whether it is new.

    Args:
        connection: in a transaction.
        run_name: the run's.
        new: the request.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run, or it has no branch of the name to begin on.
        OutOfSequenceError: the branch to begin on, or any, did not record up to the step.
        BranchExistsError: another writer opened a branch of that name.
        ConflictError: the same writer did, from another step or branch, or in another order.
    """
    if new.order == CONTINUED:  # the ancestors are locked first
        dataset = dataset_of(connection, find_run(connection, run_name))
        lock_parents(connection, [dataset.name])
    run, dataset = lock_run(connection, run_name)
    found = branches_of(connection, run)
    created = all(one.name != new.name for one in found)
    if created:
        origin = _origin(found, new)
        takes = _takes_pass(connection, origin, new)
        shares = _shares(_open_unit_of_work(connection, run.name), run.name) if takes else {}
        insert_branch(
            connection,
            run.id,
            name=new.name,
            writer=new.writer,
            from_step=new.from_step,
            from_branch_id=origin.id,
            by=by,
            order=new.order,
            noise=new.noise,
            taken=origin if takes else None,
        )
        if takes:
            connection.execute(_GIVEN, {"origin": origin.id})
            # Corrected steps are then of a place that is not known: they cost more in all of these.
            mark_family_changed(connection, dataset.id)
        else:
            mark_changed(connection, dataset.id)
        found = branches_of(connection, run)
        happened = build_log_records(
            connection, "branch", dataset_id=dataset.id, row=found[-1].id, by=by
        )
        append_leaves(
            connection, dataset.id, happened + _resume_run(connection, run, dataset.id, by)
        )
        if takes:
            _raise_alerts(connection, run.name, shares)
    (branch,) = [one for one in found if one.name == new.name]
    if branch.writer != new.writer:
        raise BranchExistsError("Another process opened this branch; choose another name.")
    answer = branch_answer(branch, run.name, found)
    if branch.from_step != new.from_step or new.from_branch not in (None, answer.from_branch):
        raise ConflictError("This writer opened the branch at another step or from another branch.")
    if (branch.order, branch.noise) != (new.order, new.noise):
        raise ConflictError("This writer opened the branch with another order or other noise.")
    return answer, created


def _open_unit_of_work(connection: Connection, run_name: str) -> UnitOfWork:
    return DatasetCache().open(connection, [(run_name, MAIN)])


def _shares(work: UnitOfWork, run_name: str) -> dict[str, float]:
    """The share of capacity that is charged of each budget that a run's steps count in. Upper."""
    return {scope.name: scope.share for _, scope in enforced_budgets(*work.run(run_name))}


def _raise_alerts(connection: Connection, run_name: str, before: Mapping[str, float]) -> None:
    """Tell of each budget that steps exceed from now on which were within it before."""
    work = _open_unit_of_work(connection, run_name)
    state, run = work.run(run_name)
    for _, scope in enforced_budgets(state, run):
        scope.alerted_share = before[scope.name]
    raise_budget_alerts(state, run)
    work.write()


def _resume_run(
    connection: Connection, run: Row[Any], dataset_id: int, by: str | None
) -> list[Act]:
    """A run that had ended, or was interrupted, is active again; that it had ended stays known."""
    if run.state not in (*CLOSED, "interrupted"):
        return []
    reopened = run.reopened or run.state in CLOSED
    values = {"state": "active", "reopened": reopened}
    connection.execute(runs.update().where(runs.c.id == run.id).values(values))
    return build_log_records(connection, "run_state", dataset_id=dataset_id, row=run.id, by=by)


def _origin(found: Sequence[Row[Any]], new: NewBranch) -> Row[Any]:
    """The branch whose steps a new one shares: the one it names, else main, else the first.

    Raises:
        NotFoundError: it names one that is not there.
        OutOfSequenceError: that one, or any, did not record up to the step.
    """
    named = [one for one in found if new.from_branch in (None, one.name)]
    if not named:
        raise NotFoundError("The branch to begin on does not exist.")
    for one in named:  # in the order of creation, of which main is the first
        if one.from_step <= new.from_step <= one.next_step:
            return one
    furthest = max(named, key=lambda one: one.next_step)
    raise OutOfSequenceError(min(max(new.from_step, furthest.from_step), furthest.next_step))


def _takes_pass(connection: Connection, origin: Row[Any], new: NewBranch) -> bool:
    """Whether the new branch goes on in the pass that is open on the one it begins on.

    If it begins where that one stands, and that one holds nothing ahead: what is reserved was
    admitted as steps of that pass.
    """
    if new.order != CONTINUED or new.from_step != origin.next_step or not origin.pass_event_id:
        return False
    return connection.scalar(_HELD, {"origin": origin.id}) is None


def insert_branch(
    connection: Connection,
    run_id: int,
    *,
    name: str,
    writer: str,
    from_step: int,
    from_branch_id: int | None = None,
    by: str | None = None,
    order: str | None = None,
    noise: str | None = None,
    taken: Row[Any] | None = None,
) -> None:
    """Insert a branch's row; main begins on no other.

    Args:
        connection: in a transaction.
        run_id: of the run's row.
        name: the branch's.
        writer: the process that opens it.
        from_step: where it begins.
        from_branch_id: the row of the branch that it begins on.
        by: the key's name.
        order: what was said of the order of its records.
        noise: what was said of its correlated noise.
        taken: the branch whose open pass it goes on in; None if passes are followed anew.
    """
    opening = None if taken is not None else position_of(opening_place(name, order, noise))
    connection.execute(
        insert(branches).values(
            run_id=run_id,
            name=name,
            writer=writer,
            from_branch_id=from_branch_id,
            from_step=from_step,
            order=order,
            noise=noise,
            next_step=from_step,
            by=by,
            takes_pass=taken is not None,
            pass_event_id=None if taken is None else taken.pass_event_id,
            pass_position=opening if taken is None else taken.pass_position,
            created_at=now(),
        )
    )
