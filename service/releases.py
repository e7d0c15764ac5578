"""Iterates that were shown to somebody: facts, recorded once and never taken back."""

from sqlalchemy import Connection, select

from service.acts import append
from service.answers import ReleaseAnswer
from service.catalog import find_branch, lock_run
from service.clock import now, stamp
from service.database import upsert
from service.errors import OutOfSequenceError
from service.facts import acts_of
from service.schemas import NewRelease
from service.tables import releases


def record_release(
    connection: Connection, run_name: str, new: NewRelease, *, by: str | None = None
) -> tuple[ReleaseAnswer, bool]:
    """Record that an iterate was shown; whether that was new. It is never refused or undone.

    Args:
        connection: in a transaction.
        run_name: the run's.
        new: the request.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run or branch.
        OutOfSequenceError: the branch has not recorded that step.
    """
    run, dataset = lock_run(connection, run_name)
    branch = find_branch(connection, run.id, new.branch)
    if not branch.from_step <= new.step < branch.next_step:
        raise OutOfSequenceError(branch.next_step)
    inserted = upsert(connection.dialect.name, releases).values(
        run_id=run.id, branch_id=branch.id, step=new.step, recorded_at=now()
    )
    added = connection.execute(inserted.on_conflict_do_nothing().returning(releases.c.id)).first()
    if added is not None:
        shown = acts_of(connection, "release", dataset_id=dataset.id, row=added.id, by=by)
        append(connection, dataset.id, shown)
    recorded_at = connection.execute(
        select(releases.c.recorded_at).where(
            releases.c.branch_id == branch.id, releases.c.step == new.step
        )
    ).scalar_one()
    answer = ReleaseAnswer(
        run=run.name, branch=branch.name, step=new.step, recorded_at=stamp(recorded_at)
    )
    return answer, added is not None
