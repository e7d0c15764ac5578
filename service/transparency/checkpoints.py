"""Signed checkpoints: the heads of all logs at one moment, as one hash with a signature.

A head says how long a log is and what its root is. The checkpoint signs the Merkle root of all
heads, so that a key for one dataset can check its head without learning of others.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field
from sqlalchemy import Connection, func, select

from service.clock import now, stamp
from service.errors import NotFoundError
from service.ledger.log.merkle import Frontier, inclusion_path, tree_root, verify_inclusion
from service.schemas.event_codec import canonical
from service.schemas.message import Sha256, Wire
from service.storage.tables import datasets, distinct_events, installation
from service.transparency.log_heads import Head, LeafCount, LedgerId, place
from service.transparency.reconciliation import Reconciliation, list_effective, reconciliations
from service.transparency.signing import Signer, verify_signature

_FORMAT: Final = "dpledger-checkpoint/1"
CHECKPOINT_PREFIX: Final = (
    b"dpledger checkpoint 1\n"  # a signature of a checkpoint is one of nothing else
)
PATH_MAX: Final = 64  # hashes: of more logs than there will ever be

Path = Annotated[list[Sha256], Field(max_length=PATH_MAX)]
_SIZES: Final = select(datasets.c.id, datasets.c.name, datasets.c.log_size, datasets.c.log_frontier)
_STEPS: Final = select(
    distinct_events.c.dataset_id, func.sum(distinct_events.c.steps)
).group_by(distinct_events.c.dataset_id)  # fmt: skip


class Checkpoint(Wire):
    """What is signed."""

    format: Literal["dpledger-checkpoint/1"]
    ledger_id: LedgerId
    generation: LeafCount  # how often the ledger was reconciled with what it had lost
    logs: LeafCount
    root: Sha256
    issued_at: Annotated[str, Field(max_length=40)]

    def message(self) -> bytes:
        """The bytes that are signed."""
        return CHECKPOINT_PREFIX + canonical(self.model_dump()).encode()


class SignedCheckpoint(Wire):
    """A checkpoint and who vouches for it."""

    checkpoint: Checkpoint
    key_id: Annotated[str, Field(max_length=16)]
    public_key: Annotated[str, Field(max_length=43)]
    signature: Annotated[str, Field(max_length=86)]

    def holds(self, public_key: str) -> bool:
        """Whether it was signed with a key."""
        return verify_signature(public_key, self.checkpoint.message(), self.signature)


class Part(SignedCheckpoint, defer_build=False):
    """A checkpoint with one head: enough for a key that sees one dataset."""

    head: Head
    index: LeafCount
    path: Path  # from the head to the checkpoint's root

    def holds(self, public_key: str) -> bool:
        """Whether the checkpoint was signed with a key, and the head is in it."""
        path, root = [bytes.fromhex(one) for one in self.path], bytes.fromhex(self.checkpoint.root)
        inside = verify_inclusion(self.head.leaf(), self.index, self.checkpoint.logs, path, root)
        return inside and SignedCheckpoint.holds(self, public_key)


class Whole(SignedCheckpoint):
    """A checkpoint with every head, to be kept in a file."""

    heads: list[Head]

    def holds(self, public_key: str) -> bool:
        """Whether the checkpoint was signed with a key, and is of these heads."""
        inside = len(self.heads) == self.checkpoint.logs
        inside = inside and root_of(self.heads) == self.checkpoint.root
        return inside and SignedCheckpoint.holds(self, public_key)


class LogHeads:
    """The heads of all logs as one transaction sees them, the installation's first, then by name.

    Which generation that is depends on the key that is believed: see
    `service.transparency.reconciliation`.
    """

    def __init__(
        self,
        logs: Iterable[tuple[int | None, Head]],
        *,
        ledger_id: str,
        told: Sequence[Reconciliation] = (),
    ) -> None:
        found = sorted(logs, key=lambda log: place(log[1].dataset))
        self.in_order: Final = tuple(head for _, head in found)
        self.logs: Final = {head.dataset: (row, head) for row, head in found}
        self.ledger_id: Final = ledger_id
        self._told = told
        self._leaves = [head.leaf() for head in self.in_order]

    @classmethod
    def of(cls, connection: Connection) -> Self:
        """Read it."""
        own = connection.execute(select(installation)).one()
        steps = {dataset: int(count) for dataset, count in connection.execute(_STEPS)}
        logs = [
            (row.id, head_of(row.name, row, steps.get(row.id, 0)))
            for row in connection.execute(_SIZES)
        ]
        first = (None, head_of(None, own, 0))
        return cls([first, *logs], ledger_id=own.ledger_id, told=reconciliations(connection))

    @property
    def count(self) -> int:
        """How many logs there are."""
        return len(self.in_order)

    @property
    def root(self) -> str:
        """The root over the heads of all logs."""
        return root_of(self.in_order)

    def followed(self, public_key: str) -> list[Reconciliation]:
        """The reconciliations that were signed with a key."""
        return list_effective(self._told, ledger_id=self.ledger_id, public_key=public_key)

    def generation(self, public_key: str) -> int:
        """The present generation: 0 where nothing was ever lost."""
        return max((one.generation for one in self.followed(public_key)), default=0)

    def signed(self, signer: Signer) -> SignedCheckpoint:
        """The checkpoint, issued now."""
        return SignedCheckpoint(**self._signed(signer))

    def part(self, signer: Signer, dataset: str | None) -> Part:
        """The checkpoint, issued now, with a log's head.

        Raises:
            NotFoundError: there is no such dataset.
        """
        for index, head in enumerate(self.in_order):
            if head.dataset == dataset:
                found = inclusion_path(index, len(self.in_order), self._subtree)
                path = [node.hex() for node in found]
                return Part(head=head, index=index, path=path, **self._signed(signer))
        raise NotFoundError("There is no such dataset.")

    def whole(self, signer: Signer) -> Whole:
        """The checkpoint, issued now, with every head."""
        return Whole(heads=list(self.in_order), **self._signed(signer))

    def _signed(self, signer: Signer) -> dict[str, Any]:
        checkpoint = Checkpoint(
            format=_FORMAT,
            ledger_id=self.ledger_id,
            generation=self.generation(signer.public_key),
            logs=self.count,
            root=self.root,
            issued_at=stamp(now()),
        )
        return {
            "checkpoint": checkpoint,
            "key_id": signer.key_id,
            "public_key": signer.public_key,
            "signature": signer.sign(checkpoint.message()),
        }

    def _subtree(self, begin: int, end: int) -> bytes:
        return tree_root(self._leaves[begin:end])


def is_in_use(connection: Connection) -> bool:
    """Whether there is a dataset: a ledger whose key is made by the service had it before that."""
    return connection.execute(select(datasets.c.id).limit(1)).first() is not None


def root_of(heads: Iterable[Head]) -> str:
    """What a checkpoint signs of heads, in whatever order they are given."""
    ordered = sorted(heads, key=lambda head: place(head.dataset))
    return tree_root(head.leaf() for head in ordered).hex()


def head_of(dataset: str | None, row: Any, steps: int) -> Head:
    """A log's head, from a row with its size and frontier, and the steps that are recorded."""
    root = Frontier.from_bytes(row.log_size, row.log_frontier or b"").root()
    return Head(dataset=dataset, size=row.log_size, root=root.hex(), steps=steps)
