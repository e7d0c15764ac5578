"""Privacy events of the dp_accounting library, told as ledger events."""

from typing import Any

import attr
from dp_accounting import dp_event as library

from dpledger_client.importers.event_tree import CLASSES, Node, UntranslatableEvent, translate

__all__ = ["UntranslatableEvent", "events_of"]


def events_of(
    dp_event: library.DpEvent, *, dataset_size: int | None = None, relation: str | None = None
) -> list[dict[str, Any]]:
    """The ledger events that a `DpEvent` stands for, in order, equal neighbours merged.

    Nothing is guessed: an event is told exactly or refused. Noise and chances that have to be
    computed are rounded to the costlier side.

    Args:
        dp_event: any tree of dp_accounting's events.
        dataset_size: records of the dataset; needed by events that state one, which must agree.
        relation: the dataset's neighbouring relation; needed by events that are defined under
            some only.

    Returns:
        Events of steps, mechanism and sampling, for `run.step` or `client.plan`; none for a tree
        that costs nothing.

    Raises:
        UntranslatableEvent: an event has no equal; names its place in the tree and the reason.
    """
    return translate(dp_event, view=_view, dataset_size=dataset_size, relation=relation)


def _view(event: Any) -> Node | None:
    kind = type(event)
    # A foreign class, even one that is derived from these, may have another meaning.
    if kind.__name__ not in CLASSES or getattr(library, kind.__name__, None) is not kind:
        return None
    return Node(kind.__name__, {one.name: getattr(event, one.name) for one in attr.fields(kind)})
