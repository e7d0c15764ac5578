"""Where a branch stands among the passes of its loader, as rows have it."""

from typing import Any, Final

from sqlalchemy import Row, and_, or_

from accounting.balances import UNPLACED, OpenPass, Place, Unplaced
from service.documents import FRESH, MAIN, event_of
from service.tables import branches

# Whether the first pass of a branch may have begun before the branch did.
IS_UNPLACED: Final = and_(
    branches.c.name != MAIN, or_(branches.c.order.is_(None), branches.c.order != FRESH)
)


def opening_place(name: str, order: str | None) -> Place:
    """Where a branch of that name begins, given what was said of the order of its records."""
    return None if name == MAIN or order == FRESH else UNPLACED


def opening_position(name: str, order: str | None) -> int | None:
    """What the row of a branch without steps says of its pass."""
    return position_of(opening_place(name, order))


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
