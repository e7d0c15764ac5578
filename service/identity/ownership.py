"""What an owner's key may do where datasets were made from one another.

A void, a correction and the attestation of a derived dataset count in every dataset that a dataset
was made from. An owner decides about them alone only if the key names all of those, too.
"""

from typing import Final

from sqlalchemy import Connection, select

from service.errors import ForbiddenError
from service.identity.authentication import Caller
from service.identity.keys import Role
from service.schemas.requests import NewDataset
from service.storage.tables import datasets, lineage

_ELSEWHERE: Final = (
    "An owner's key creates only datasets that it names and that were made from datasets that it "
    "names: {}. An admin creates others."
)


def find_unreached_ancestor(connection: Connection, caller: Caller, dataset: str) -> str | None:
    """A dataset that this one was made from, at any remove, and that the key does not reach.

    None if the key reaches all of them.
    """
    if caller.datasets is None:
        return None
    ancestor = datasets.alias("ancestor")
    above = (
        select(ancestor.c.name)
        .join(lineage, lineage.c.ancestor_id == ancestor.c.id)
        .join(datasets, datasets.c.id == lineage.c.dataset_id)
        .where(datasets.c.name == dataset)
        .order_by(ancestor.c.name)
    )
    found = (name for name in connection.scalars(above) if name not in (caller.datasets or ()))
    return next(found, None)


def moves_others(connection: Connection, caller: Caller, dataset: str) -> bool:
    """Whether an owner would change what counts in a dataset that the key does not name."""
    owner = caller.scope is Role.OWNER
    return owner and find_unreached_ancestor(connection, caller, dataset) is not None


def require_own_creation(connection: Connection, caller: Caller, new: NewDataset) -> None:
    """Refuse a dataset that an owner's key may not create; an admin's may create any.

    Raises:
        ForbiddenError: it is not derived, or the key does not name it and all that is above it.
        NotFoundError: a parent is not one that the key reaches.
    """
    if caller.datasets is None:
        return
    if new.name not in caller.datasets:
        raise ForbiddenError(_ELSEWHERE.format("it does not name the new one"))
    if not new.parents:
        raise ForbiddenError(_ELSEWHERE.format("this one has no parents"))
    for parent in new.parents:
        caller.require_dataset(parent)
        above = find_unreached_ancestor(connection, caller, parent)
        if above is not None:
            told = f"{parent} was made from {above}, which it does not name"
            raise ForbiddenError(_ELSEWHERE.format(told))
