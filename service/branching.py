"""Branches: a resume, rewind or fork of a run, and whose steps it shares."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert

from service.acts import Act, append
from service.answers import BranchAnswer
from service.catalog import branch_answer, branches_of, changed, lock_run
from service.clock import now
from service.errors import BranchExistsError, ConflictError, NotFoundError, OutOfSequenceError
from service.facts import acts_of
from service.passes import opening_position
from service.run_states import CLOSED
from service.schemas import NewBranch
from service.tables import branches, runs


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
    run, dataset = lock_run(connection, run_name)
    found = branches_of(connection, run)
    created = all(one.name != new.name for one in found)
    if created:
        insert_branch(
            connection,
            run.id,
            name=new.name,
            writer=new.writer,
            from_step=new.from_step,
            from_branch_id=_origin(found, new).id,
            by=by,
            order=new.order,
        )
        changed(connection, dataset.id)
        found = branches_of(connection, run)
        happened = acts_of(connection, "branch", dataset_id=dataset.id, row=found[-1].id, by=by)
        append(connection, dataset.id, happened + _continued(connection, run, dataset.id, by))
    (branch,) = [one for one in found if one.name == new.name]
    if branch.writer != new.writer:
        raise BranchExistsError("Another process opened this branch; choose another name.")
    answer = branch_answer(branch, run.name, found)
    if branch.from_step != new.from_step or new.from_branch not in (None, answer.from_branch):
        raise ConflictError("This writer opened the branch from another step or branch.")
    if branch.order != new.order:
        raise ConflictError("This writer opened the branch and said something else of its order.")
    return answer, created


def _continued(connection: Connection, run: Row[Any], dataset_id: int, by: str | None) -> list[Act]:
    """A run that had ended, or was interrupted, is active again; that it had ended stays known."""
    if run.state not in (*CLOSED, "interrupted"):
        return []
    reopened = run.reopened or run.state in CLOSED
    values = {"state": "active", "reopened": reopened}
    connection.execute(runs.update().where(runs.c.id == run.id).values(values))
    return acts_of(connection, "run_state", dataset_id=dataset_id, row=run.id, by=by)


def _origin(found: Sequence[Row[Any]], new: NewBranch) -> Row[Any]:
    """The branch whose steps a new one shares: the one it names, else main, else the first.

    Raises:
        NotFoundError: it names one that is not there.
        OutOfSequenceError: that one, or any, did not record up to the step.
    """
    named = [one for one in found if new.from_branch in (None, one.name)]
    if not named:
        raise NotFoundError("There is no such branch to begin on.")
    for one in named:  # in the order of creation, of which main is the first
        if one.from_step <= new.from_step <= one.next_step:
            return one
    furthest = max(named, key=lambda one: one.next_step)
    raise OutOfSequenceError(min(max(new.from_step, furthest.from_step), furthest.next_step))


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
) -> None:
    """Insert a branch's row; main begins on no other."""
    connection.execute(
        insert(branches).values(
            run_id=run_id,
            name=name,
            writer=writer,
            from_branch_id=from_branch_id,
            from_step=from_step,
            order=order,
            next_step=from_step,
            by=by,
            pass_position=opening_position(name, order),
            created_at=now(),
        )
    )
