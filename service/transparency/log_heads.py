"""The head of a log: how long it is, what its root is, and how many steps are recorded in it."""

from typing import Annotated, Final

from pydantic import Field

from service.ledger.log.merkle import leaf_hash
from service.schemas.event_codec import canonical
from service.schemas.message import Sha256, Wire
from service.schemas.requests import Name

COUNT_MAX: Final = 2**62

LeafCount = Annotated[int, Field(ge=0, le=COUNT_MAX)]
LedgerId = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class Head(Wire):
    """A log as it stands: what its leaves are, and how many steps are recorded in it."""

    dataset: Name | None  # none: the installation's log
    size: LeafCount
    root: Sha256
    steps: LeafCount

    def leaf(self) -> bytes:
        """Its leaf hash in the tree of a checkpoint."""
        return leaf_hash(canonical(self.model_dump()).encode())


def place(dataset: str | None) -> str:
    """Sorts logs: the installation's first, which has no name, then datasets by name.

    Of a dataset's name nothing ever changes. The order in which datasets were created is not the
    order in which others see them: two may be created at once.
    """
    return dataset or ""
