"""One event of a tree at its place: its fields, read with their bounds."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from operator import index
from typing import Any, Final, NamedTuple, NoReturn

STEPS_MAX: Final = 10**12  # of a branch of a run, by the contract
NOISE_RANGE: Final = (1e-9, 1e9)  # by the contract, as is the next
PROBABILITY_MIN: Final = 1e-12
VALUES_MAX: Final = 10_000  # of one field


class UntranslatableEvent(ValueError):  # noqa: N818 - as the client's other refusals
    """A privacy event has no equal among ledger events.

    Attributes:
        path: the event's place in its tree, such as `event.events[3]`.
        reason: why it cannot be told.
    """

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}")


class Node(NamedTuple):
    """One event of a tree: the name of its class, and its fields as they were found."""

    name: str
    fields: Mapping[str, Any]


class Part(NamedTuple):
    """Equal steps in a row."""

    mechanism: dict[str, Any]
    sampling: dict[str, Any]
    steps: int


@dataclass(frozen=True, slots=True)
class Place:
    """An event at its place in the tree."""

    node: Node
    path: str
    depth: int

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the event.

        Raises:
            UntranslatableEvent: always.
        """
        raise UntranslatableEvent(self.path, f"{self.node.name} {reason}")

    def real(self, name: str, *, low: float, high: float) -> float:
        """A field that is a real number in [low, high]."""
        value = self.node.fields[name]
        if isinstance(value, bool) or not isinstance(value, Real):
            self.refuse(f"has a {name} that is no number")
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond every double
            number = math.inf
        if not low <= number <= high:
            self.refuse(f"has a {name} outside [{low:g}, {high:g}]")
        return number

    def count(self, name: str, *, low: int = 0, high: int = STEPS_MAX) -> int:
        """A field that is a whole number in [low, high]."""
        value = self.node.fields[name]
        try:
            number = index(value)
        except TypeError:
            self.refuse(f"has a {name} that is no whole number")
        if isinstance(value, bool) or not low <= number <= high:
            self.refuse(f"has a {name} outside [{low}, {high}]")
        return number

    def several(self, name: str) -> list[Any]:
        """The values of a field that may be one number or a list of them."""
        value = self.node.fields[name]
        value = value.tolist() if hasattr(value, "tolist") else value  # an array's own numbers
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not 1 <= len(values) <= VALUES_MAX:
            self.refuse(f"has {len(values)} {name}, not 1 to {VALUES_MAX}")
        return values

    def within(self, name: str, value: Any) -> "Place":
        """The same place, with one value of a field."""
        return Place(Node(self.node.name, {name: value}), self.path, self.depth)

    def noise(self, name: str = "noise_multiplier", *, scale: float = 1.0) -> float:
        """A field that is noise / norm bound; 0 is a release without noise."""
        value = self.real(name, low=0.0, high=math.inf) / scale
        if value and not NOISE_RANGE[0] <= value <= NOISE_RANGE[1]:
            self.refuse(f"has a {name} outside [{NOISE_RANGE[0]:g}, {NOISE_RANGE[1]:g}]")
        return value

    def probability(self) -> float:
        """The sampling probability; 0 selects no record."""
        value = self.real("sampling_probability", low=0.0, high=1.0)
        if 0 < value < PROBABILITY_MIN:
            self.refuse(f"has a sampling_probability below {PROBABILITY_MIN:g}")
        return value


def merge(parts: Iterable[Part]) -> list[Part]:
    """Equal neighbours become one."""
    merged: list[Part] = []
    for part in parts:
        if merged and merged[-1][:2] == part[:2]:
            part = part._replace(steps=merged.pop().steps + part.steps)
        merged.append(part)
    return merged
