"""Proofs of a log: that a leaf is in it, and that it only ever grew."""

import json
from collections.abc import Callable
from typing import Any, Final, Literal

from sqlalchemy import Connection, Engine

from service.errors import ConflictError, InvalidRequestError, NotFoundError, UnavailableError
from service.ledger.log.merkle import consistency_path, inclusion_path
from service.ledger.lookups import find_dataset
from service.schemas.responses import Answer
from service.storage.engine import snapshot
from service.transparency.checkpoint_comparison import Abandoned, Contradicted, compare_head
from service.transparency.checkpoints import LogHeads, Part
from service.transparency.head_tree import HeadTree
from service.transparency.recovery import suspend
from service.transparency.signing import Signer, require_signer
from service.transparency.stored_tree import Tree

_Verdict = Literal["extends", "abandoned"]
ANOTHER_LEDGER: Final = "The checkpoint is of another ledger than this one."


class InclusionAnswer(Answer):
    """A leaf, and the hashes that lead from it to the root of the log at a size."""

    dataset: str
    position: int
    size: int
    data: dict[str, Any]  # the leaf is the hash of its canonical JSON
    leaf: str
    path: list[str]
    root: str
    traceparent: str | None


class ConsistencyAnswer(Answer):
    """The hashes that show that a log of one size begins with that of another."""

    dataset: str
    first: int
    second: int
    first_root: str
    second_root: str
    path: list[str]


class ComparisonAnswer(Part):
    """What a checkpoint that was kept is to the ledger now, with the present checkpoint."""

    verdict: _Verdict
    reason: str | None = None  # why what it was of was abandoned
    consistency: list[str]  # from the head that was kept to the present one; none if abandoned


def inclusion(
    connection: Connection,
    dataset: str,
    *,
    sequence: int | None,
    position: int | None,
    size: int | None,
) -> InclusionAnswer:
    """The proof that an entry, or the leaf at a position, is in the log.

    Raises:
        NotFoundError: there is no such dataset, entry or leaf.
        InvalidRequestError: the log is not so long, or not one leaf was named.
    """
    row = find_dataset(connection, dataset)
    tree = Tree(connection, row.id, row.log_size)
    size = _size(row.log_size, size, "query.size")
    if (sequence is None) == (position is None):
        raise InvalidRequestError("query.sequence", "give exactly one of sequence and position")
    if sequence is not None:
        if not 1 <= sequence <= row.head_sequence:
            raise NotFoundError("There is no such entry.")
        position = tree.position_of(sequence)
    if position is None or not position < size:
        raise NotFoundError("The log has no such leaf at that size.")
    (leaf,) = tree.leaves(position, position + 1)
    return InclusionAnswer(
        dataset=row.name,
        position=position,
        size=size,
        data=json.loads(tree.data(position)),
        leaf=leaf.hex(),
        path=_hex(inclusion_path(position, size, tree.subtree)),
        root=tree.subtree(0, size).hex(),
        traceparent=tree.traceparent(position),
    )


def consistency(
    connection: Connection, dataset: str, *, first: int, second: int | None
) -> ConsistencyAnswer:
    """The proof that the log of a size begins with that of a smaller one.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: the sizes are not in order, or the log is not so long.
    """
    row = find_dataset(connection, dataset)
    tree = Tree(connection, row.id, row.log_size)
    second = _size(row.log_size, second, "query.second")
    if first > second:
        raise InvalidRequestError("query.first", "must not be more than second")
    return ConsistencyAnswer(
        dataset=row.name,
        first=first,
        second=second,
        first_root=tree.subtree(0, first).hex(),
        second_root=tree.subtree(0, second).hex(),
        path=_hex(consistency_path(first, second, tree.subtree)),
    )


def compare_checkpoint(
    engine: Engine,
    signer: Signer | None,
    kept: Part,
    *,
    heads: HeadTree | None = None,
    by: str,
    suspended: Callable[[], None] = lambda: None,
) -> ComparisonAnswer:
    """Compare a kept checkpoint with the ledger; a contradiction suspends the ledger.

    Only what this service signed counts, so a forged checkpoint cannot suspend it.

    Args:
        engine: of the database.
        signer: the service's key.
        kept: what it signed once.
        heads: the tree over the heads of all logs; read anew where none is given.
        by: the key's name of who shows it.
        suspended: called when the ledger was suspended.

    Raises:
        InvalidRequestError: it was not signed with this service's key, or the head is not in it.
        ConflictError: it is of another ledger.
        LedgerSuspendedError: it contradicts the ledger.
        UnavailableError: there is no key; or the ledger was reconciled at this moment.
    """
    signer = require_signer(signer)
    if not kept.holds(signer.public_key):
        raise InvalidRequestError(
            "body.signature", f"must be of key {signer.key_id}, and the head in what it signs"
        )
    generation = kept.checkpoint.generation
    with snapshot(engine) as connection:
        present = _present(connection, heads or HeadTree(), kept.head.dataset)
        if kept.checkpoint.ledger_id != present.ledger_id:
            raise ConflictError(ANOTHER_LEDGER)
        found = compare_head(
            connection, present, kept.head, generation=generation, public_key=signer.public_key
        )
        if not isinstance(found, Contradicted):
            part = present.part(signer, kept.head.dataset)
            tree = Tree(connection, present.logs[kept.head.dataset][0], part.head.size)
            return _build_comparison(
                found.by.text if isinstance(found, Abandoned) else None, kept, part, tree
            )
    after = suspend(engine, [kept.head], generation=generation, by=by, signer=signer)
    suspended()
    if after.state == "open":
        raise UnavailableError("The ledger was reconciled at this moment; send the request again.")
    raise after.refusal(found.reason)


def _present(connection: Connection, heads: HeadTree, dataset: str | None) -> LogHeads:
    try:
        return heads.head(connection, dataset)
    except NotFoundError:  # what was signed of it is contradicted
        return LogHeads.of(connection)


def _build_comparison(reason: str | None, kept: Part, part: Part, tree: Tree) -> ComparisonAnswer:
    path: list[bytes] = []
    if reason is None:
        path = consistency_path(kept.head.size, part.head.size, tree.subtree)
    return ComparisonAnswer(
        verdict="extends" if reason is None else "abandoned",
        reason=reason,
        consistency=_hex(path),
        **dict(part),
    )


def require_of(kept: Part, dataset: str) -> None:
    """Refuse a head of another dataset than the path names, which the key may not reach.

    Raises:
        InvalidRequestError: it is.
    """
    if kept.head.dataset != dataset:
        raise InvalidRequestError("body.head.dataset", "must be the dataset in the path")


def _size(longest: int, given: int | None, location: str) -> int:
    if given is None:
        return longest
    if given > longest:
        raise InvalidRequestError(location, f"must not be more than the log's size, {longest}")
    return given


def _hex(path: list[bytes]) -> list[str]:
    return [node.hex() for node in path]
