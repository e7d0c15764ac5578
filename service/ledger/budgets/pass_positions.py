"""Where a branch stands among the passes of its loader, as rows have it."""

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, not_, or_, select

from accounting.event_counts import UNPLACED, Line, OpenPass, Place, Taken, Unplaced
from service.schemas.event_codec import MAIN, event_of
from service.schemas.ledger_document import FRESH
from service.storage.tables import branches, runs

# Whether the first pass of a branch may have begun before the branch did.
IS_UNPLACED: Final = and_(
    branches.c.name != MAIN,
    or_(branches.c.order.is_(None), branches.c.order != FRESH),
    not_(branches.c.takes_pass),
)
_TAKEN: Final = select(branches.c.id, branches.c.from_branch_id, branches.c.from_step).where(
    branches.c.takes_pass
)
_OF_RUN: Final = _TAKEN.where(branches.c.run_id == bindparam("run"))
_OF_DATASET: Final = _TAKEN.join(runs, runs.c.id == branches.c.run_id).where(
    runs.c.dataset_id == bindparam("dataset")
)


def taken_in_run(connection: Connection, run_id: int) -> list[Taken]:
    """By whom open passes of a run were taken."""
    return [_taken(row) for row in connection.execute(_OF_RUN, {"run": run_id})]


def taken_in_dataset(connection: Connection, dataset_id: int) -> list[Taken]:
    """The same of all runs of a dataset."""
    return [_taken(row) for row in connection.execute(_OF_DATASET, {"dataset": dataset_id})]


def _taken(row: Any) -> Taken:
    return Taken(by=row.id, of=row.from_branch_id, step=row.from_step)


def beginning(line: Line, *, unplaced: bool) -> Place:
    """Where a line begins, given whether that is not known of the branch that it begins with."""
    return UNPLACED if unplaced or line[1] else None


def opening_place(name: str, order: str | None) -> Place:
    """Where a branch of that name begins, given what was said of the order of its records."""
    return None if name == MAIN or order == FRESH else UNPLACED


def position_of(place: Place) -> int | None:
    """What a row says of a pass beside its event: negative where passes may begin elsewhere."""
    match place:
        case None:
            return None
        case Unplaced():
            return 0
        case OpenPass(position=position, placed=placed):
            return position if placed else -position


def place_of(content: str | None, position: int | None, dataset_size: int) -> Place:
    """The pass that is open, from the content of its event and what the row says beside it."""
    if content is None:
        return None if position is None else UNPLACED
    assert position  # noqa: S101 (an event has a position)
    event = event_of(content, dataset_size)
    return OpenPass(event=event, position=abs(position), placed=position > 0)


def place_of_row(row: Row[Any], dataset_size: int) -> Place:
    """The pass that is open on a branch, from its row with the content of the pass's event."""
    return place_of(row.content, row.pass_position, dataset_size)
