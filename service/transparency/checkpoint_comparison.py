"""Heads that were signed before, compared with the logs as they are now."""

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from service.transparency.checkpoints import LogHeads
from service.transparency.log_heads import Head
from service.transparency.reconciliation import Reconciliation
from service.transparency.stored_tree import Tree


@dataclass(frozen=True, slots=True)
class Continued:
    """The log begins with what was signed."""

    head: Head


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An admin declared that the ledger goes on without what was signed."""

    head: Head
    by: Reconciliation


@dataclass(frozen=True, slots=True)
class Contradicted:
    """The ledger is not the one that was signed."""

    head: Head
    reason: str


def compare_head(
    connection: Connection, present: LogHeads, head: Head, *, generation: int, public_key: str
) -> Continued | Abandoned | Contradicted:
    """What a head that was signed with a key in a generation is to the logs as they are."""
    reason = _reason(connection, present, head)
    if reason is None and generation > (now := present.generation(public_key)):
        reason = f"Generation {generation} was signed, and the ledger is in generation {now}."
    if reason is None:
        return Continued(head)
    for one in present.followed(public_key):
        if one.abandons(head.dataset, size=head.size, generation=generation) and _stands(
            connection, present, one, head.dataset
        ):
            return Abandoned(head, one)
    return Contradicted(head, reason)


def _stands(
    connection: Connection, present: LogHeads, one: Reconciliation, dataset: str | None
) -> bool:
    """Whether a log still begins with what it was when it was reconciled."""
    then = one.continues(dataset)
    return then is None or _reason(connection, present, then) is None


def find_contradicted_heads(
    connection: Connection,
    present: LogHeads,
    heads: Iterable[Head],
    *,
    generation: int,
    public_key: str,
) -> list[Contradicted]:
    """Those of some signed heads that the ledger contradicts."""
    found = (
        compare_head(connection, present, head, generation=generation, public_key=public_key)
        for head in heads
    )
    return [one for one in found if isinstance(one, Contradicted)]


def _reason(connection: Connection, present: LogHeads, head: Head) -> str | None:
    """Why a log does not begin with what was signed, or None."""
    name = "the installation's log" if head.dataset is None else f"dataset {head.dataset}"
    if head.dataset not in present.logs:
        return f"There is no {name}, whose log had {head.size} leaves."
    row, log = present.logs[head.dataset]
    if head.size > log.size:
        return f"Of {name} {head.size} leaves were signed, and there are {log.size}."
    root = log.root
    if head.size < log.size:
        root = Tree(connection, row, log.size).subtree(0, head.size).hex()
    if root != head.root:
        return f"Of {name} the first {head.size} leaves are not those that were signed."
    return None
