"""Where a branch stands among the passes of its loader, as rows have it."""

from typing import Any, Final

from sqlalchemy import Connection, Row, and_, bindparam, case, not_, or_, select

from accounting.event_counts import UNPLACED, USED_NOISE, OpenPass, Place, Unplaced, UsedNoise
from service.schemas.event_codec import MAIN, Line, Taken, event_of
from service.schemas.ledger_document import FRESH
from service.storage.tables import branches, runs

# Whether the first pass of a branch may have begun before the branch did.
IS_UNPLACED: Final = and_(
    branches.c.name != MAIN,
    or_(branches.c.order.is_(None), branches.c.order != FRESH),
    not_(branches.c.takes_pass),
)
# Whether correlated noise of a branch in an order of its own may be used elsewhere.
USES_NOISE: Final = and_(
    branches.c.name != MAIN, branches.c.noise.is_(None), not_(branches.c.takes_pass)
)
# How passes stand where a branch begins, by number: see `beginning`.
OPENS: Final = case((IS_UNPLACED, 2), (USES_NOISE, 1), else_=0)
_OPENINGS: Final[tuple[Place, ...]] = (None, USED_NOISE, UNPLACED)
# What a row's position has more of a pass on such a branch: far beyond any pass.
_USED: Final = 2**41
_TAKEN: Final = select(branches.c.id, branches.c.from_branch_id, branches.c.from_step).where(
    branches.c.takes_pass
)
_OF_RUN: Final = _TAKEN.where(branches.c.run_id == bindparam("run"))
_OF_DATASET: Final = _TAKEN.join(runs, runs.c.id == branches.c.run_id).where(
    runs.c.dataset_id == bindparam("dataset")
)


def taken_in_run(connection: Connection, run_id: int) -> list[Taken]:
    """By whom open passes of a run were taken."""
    return [_parse_taken_pass(row) for row in connection.execute(_OF_RUN, {"run": run_id})]


def taken_in_dataset(connection: Connection, dataset_id: int) -> list[Taken]:
    """The same of all runs of a dataset."""
    return [
        _parse_taken_pass(row) for row in connection.execute(_OF_DATASET, {"dataset": dataset_id})
    ]


def _parse_taken_pass(row: Any) -> Taken:
    return Taken(by=row.id, of=row.from_branch_id, step=row.from_step)


def beginning(line: Line, *, opens: int) -> Place:
    """Where a line begins, given how the branch that it begins with opens, as OPENS has it."""
    return UNPLACED if line[1] else _OPENINGS[opens]


def opening_place(name: str, order: str | None, noise: str | None) -> Place:
    """Where a branch begins, given what was said of the order of its records and of its noise."""
    if name == MAIN:
        return None
    if order != FRESH:
        return UNPLACED
    return None if noise == FRESH else USED_NOISE


def position_of(place: Place) -> int | None:
    """What a row says of a pass beside its event: negative where passes may begin elsewhere.

    Where correlated noise may be used elsewhere it is larger than any pass.
    """
    match place:
        case None:
            return None
        case Unplaced():
            return 0
        case UsedNoise():
            return _USED
        case OpenPass(position=position, placed=True, fresh_noise=False):
            return position + _USED
        case OpenPass(position=position, placed=placed):
            return position if placed else -position


def place_of(content: str | None, position: int | None, dataset_size: int) -> Place:
    """The pass that is open, from the content of its event and what the row says beside it."""
    if content is None:
        return {None: None, 0: UNPLACED, _USED: USED_NOISE}[position]
    assert position  # noqa: S101 (an event has a position)
    event, used = event_of(content, dataset_size), position > _USED
    return OpenPass(
        event=event,
        position=position - _USED if used else abs(position),
        placed=position > 0,
        fresh_noise=not used,
    )


def place_of_row(row: Row[Any], dataset_size: int) -> Place:
    """The pass that is open on a branch, from its row with the content of the pass's event."""
    return place_of(row.content, row.pass_position, dataset_size)
