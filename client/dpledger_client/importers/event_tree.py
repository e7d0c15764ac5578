"""Trees of privacy events, as the dp_accounting library builds them, told as ledger events.

A tree is read through a view, so that the same rules serve objects of the library and files that
hold a tree. What the rules do not know for certain they refuse, and name the place.
"""

from collections.abc import Callable
from typing import Any, Final

from dpledger_client import schemas
from dpledger_client.importers.event_fields import (
    STEPS_MAX,
    Node,
    Part,
    Place,
    UntranslatableEvent,
    merge,
)
from dpledger_client.importers.event_mapping import RULES

__all__ = ["CLASSES", "Node", "UntranslatableEvent", "View", "translate"]

CLASSES: Final = frozenset(RULES)
DEPTH_MAX: Final = 100  # of a tree; the deepest that libraries build have a handful of levels
NODES_MAX: Final = 1_000_000  # visited; a shared branch counts as often as it is reached
RELATIONS: Final = ("add_or_remove_one", "replace_one", "replace_special")

View = Callable[[Any], Node | None]


def translate(
    root: Any, *, view: View, dataset_size: int | None = None, relation: str | None = None
) -> list[dict[str, Any]]:
    """The ledger events of a tree, in order, equal neighbours merged.

    Composition does not depend on order, so a repeated sequence is told as all of its first
    event, then all of its second, and so on.

    Args:
        root: the tree.
        view: names the class and the fields of an event; None for what is none.
        dataset_size: records of the dataset, for events that state it.
        relation: the dataset's neighbouring relation, for events that are told under some only.

    Returns:
        Events without first_step; none for a tree that costs nothing.

    Raises:
        UntranslatableEvent: an event has no equal.
    """
    reader = _Translator(view, dataset_size=dataset_size, relation=relation)
    merged = merge(reader.parts(root, "event", 0))
    if sum(part.steps for part in merged) > STEPS_MAX:
        raise UntranslatableEvent("event", f"the tree has more than {STEPS_MAX:g} steps")
    return [
        schemas.event(mechanism=part.mechanism, sampling=part.sampling, steps=part.steps)
        for part in merged
    ]


class _Translator:
    """Reads one tree, with the bounds of its size."""

    def __init__(self, view: View, *, dataset_size: int | None, relation: str | None) -> None:
        if relation is not None and relation not in RELATIONS:
            raise ValueError(f"The relation must be one of {', '.join(RELATIONS)}.")
        self.view = view
        self.dataset_size = dataset_size
        self.relation = relation
        self.visits = 0

    def parts(self, event: Any, path: str, depth: int) -> list[Part]:
        """What the event comes to, in order.

        Raises:
            UntranslatableEvent: it, or one inside it, has no equal.
        """
        self.visits += 1
        if depth > DEPTH_MAX:
            raise UntranslatableEvent(path, f"the tree is deeper than {DEPTH_MAX} events")
        if self.visits > NODES_MAX:
            raise UntranslatableEvent(path, f"the tree has more than {NODES_MAX} events")
        node = self.view(event)
        if node is None:
            kind = type(event).__name__
            raise UntranslatableEvent(path, f"a value of type {kind} is no known privacy event")
        place = Place(node, path, depth)
        if node.name not in RULES:
            place.refuse("is no known privacy event")
        rule, fields = RULES[node.name]
        if set(node.fields) != set(fields):
            place.refuse(f"has other fields than {', '.join(fields) or 'none'}")
        return rule(self, place)

    def inside(self, place: Place) -> list[Part]:
        """What the event in a field comes to."""
        return self.parts(place.node.fields["event"], f"{place.path}.event", place.depth + 1)

    def demand_size(self, place: Place, name: str) -> None:
        """Refuse an event on a dataset of another size than the ledger's."""
        size = place.count(name, low=1)
        if self.dataset_size is None:
            place.refuse(f"needs the dataset_size, to compare with its {name}")
        if size != self.dataset_size:
            place.refuse(f"has another {name} than the dataset_size {self.dataset_size}")

    def demand_relation(self, place: Place, *allowed: str) -> None:
        """Refuse an event that is told under other relations than the ledger's."""
        if self.relation not in allowed:
            place.refuse(f"is defined under {' and '.join(allowed)} only: say relation")
