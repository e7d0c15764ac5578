"""The registry as it goes out: every theorem built."""

from collections.abc import Mapping
from functools import cache

from accounting.catalog import THEOREMS
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from service.schemas.responses import Answer


class BoundAnswer(Answer):
    """A theorem of the registry."""

    id: str
    statement: str
    source: str
    status: Status
    relations: list[NeighboringRelation]
    assumptions: list[Assumption]
    parameters: list[str]
    counterexample: str | None  # what is known against it


class BoundList(Answer):
    """Every theorem built."""

    bounds: list[BoundAnswer]


@cache
def bound_answers() -> Mapping[str, BoundAnswer]:
    """The registry by id, the same for as long as the process runs."""
    return {
        theorem.id: BoundAnswer(
            id=theorem.id,
            statement=theorem.statement,
            source=theorem.source,
            status=theorem.status,
            relations=list(theorem.relations),
            assumptions=list(theorem.assumptions),
            parameters=list(theorem.parameters),
            counterexample=theorem.counterexample or None,
        )
        for theorem in THEOREMS
    }
