"""Theorem: a pure function with its source, status and assumptions."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc, signature
from typing import Final, Generic, ParamSpec, TypeVar

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from accounting.work_limit import spend

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
_CALL: Final = 6500  # points that even the plainest formula is taken for


@dataclass(frozen=True, kw_only=True)
class Theorem(Generic[P, R]):
    """A bound that can be called, and that can say what it rests on."""

    id: str  # stable; what a guarantee names
    source: str  # author, year, version and number
    status: Status
    relations: tuple[NeighboringRelation, ...]
    assumptions: tuple[Assumption, ...]
    function: Callable[P, R]
    counterexample: str = ""  # what is known against it; never empty where it is refuted

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Evaluate the bound."""
        spend(_CALL)
        return self.function(*args, **kwargs)

    @property
    def statement(self) -> str:
        """What is claimed, in words and formulas: the function's docstring."""
        return getdoc(self.function) or ""

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(signature(self.function).parameters)


def theorem(
    *,
    id: str,
    source: str,
    status: Status,
    relations: tuple[NeighboringRelation, ...],
    assumptions: tuple[Assumption, ...] = (),
    counterexample: str = "",
) -> Callable[[Callable[P, R]], Theorem[P, R]]:
    """Turn a function into a theorem; the docstring is its statement."""

    def state(function: Callable[P, R]) -> Theorem[P, R]:
        return Theorem(
            id=id,
            source=source,
            status=status,
            relations=relations,
            assumptions=assumptions,
            function=function,
            counterexample=counterexample,
        )

    return state
