"""Generations of the ledger: each begins when an admin reconciles it after a loss.

What was lost is a branch of history that no log continues. A client that still has a head of it
learns who abandoned it and why; the loss is not reported as an unnoticed change of the ledger.

A reconciliation excuses something, so it is believed only where the key of the service signed it:
who can write to the database can write an act, too. It says what each log was when it was signed.
A head is excused only where its log still begins with that: then it did not fit already when the
admin decided. What is changed later is no part of what was abandoned.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field
from sqlalchemy import Connection, select

from service.schemas.event_codec import canonical
from service.schemas.message import Wire
from service.schemas.requests import Name, Text
from service.storage.tables import acts
from service.transparency.log_heads import COUNT_MAX, Head, LeafCount, LedgerId
from service.transparency.signing import Signer, key_id_of, verify_signature

RECONCILIATION_FORMAT: Final = "dpledger-reconciliation/1"
_PREFIX: Final = b"dpledger reconciliation 1\n"  # a signature of one is one of nothing else
RECONCILED: Final = "reconciled"
_RECONCILED: Final = (
    select(acts.c.content, acts.c.by, acts.c.position)
    .where(acts.c.dataset_id.is_(None), acts.c.kind == RECONCILED)
    .order_by(acts.c.position)
)
LOSS_PREFIX: Final = b"dpledger suspension 1\n"  # a signature of a list is one of nothing else
_UNREADABLE: Final = "What is stored of the suspension cannot be read."


class ReconciliationStatement(Wire):
    """What is signed."""

    format: Literal["dpledger-reconciliation/1"]
    ledger_id: LedgerId
    generation: Annotated[int, Field(ge=1, le=COUNT_MAX)]  # that it begins
    reason: Text
    by: str | None  # the key's name
    abandoned: list[Head]  # the longest of each log that had lost leaves
    continued: list[Head]  # as these logs are, and the installation's, just before the act
    not_taken: dict[Name, LeafCount]


class Reconciliation(ReconciliationStatement):
    """The content of the act: the statement, and who vouches for it."""

    key_id: Annotated[str, Field(max_length=16)]
    public_key: Annotated[str, Field(max_length=43)]
    signature: Annotated[str, Field(max_length=86)]

    @classmethod
    def signed(cls, statement: ReconciliationStatement, signer: Signer) -> Self:
        """A statement with its signature."""
        return cls(
            **dict(statement),
            key_id=signer.key_id,
            public_key=signer.public_key,
            signature=signer.sign(_message(statement)),
        )

    @classmethod
    def read(cls, content: str, *, by: str | None, position: int) -> Self:
        """What an act says.

        Raises:
            ValueError: it is of no form that is known, is not signed, or was signed for another
                place in the log.
        """
        found = cls.model_validate(json.loads(content))
        if not verify_signature(found.public_key, _message(found), found.signature):
            raise ValueError("It is not signed with the key that it names.")
        if found.key_id != key_id_of(found.public_key):
            raise ValueError("It names its key wrongly.")
        own = found.continues(None)
        if found.by != by or own is None or own.size != position:
            raise ValueError("It was signed for another place in the log, or another key's name.")
        return found

    def continues(self, dataset: str | None) -> Head | None:
        """A log as it was when this was signed; none of a log that was not there."""
        return next((head for head in self.continued if head.dataset == dataset), None)

    def abandons(self, dataset: str | None, *, size: int, generation: int) -> bool:
        """Whether a head is of what was lost, if it does not fit the log as it was then."""
        longest = max((one.size for one in self.abandoned if one.dataset == dataset), default=-1)
        return generation < self.generation and size <= longest

    @property
    def text(self) -> str:
        """Who began the generation, and why."""
        by = self.by or "the command line"
        return f"Generation {self.generation} was begun by {by}: {self.reason}"


def _message(statement: ReconciliationStatement) -> bytes:
    return (
        _PREFIX
        + canonical(
            statement.model_dump(include=set(ReconciliationStatement.model_fields))
        ).encode()
    )


def reconciliations(connection: Connection) -> list[Reconciliation]:
    """Those in the installation's log that some key signed, in the order of the log."""
    found: list[Any] = [_read(row) for row in connection.execute(_RECONCILED)]
    return [one for one in found if one is not None]


def _read(row: Any) -> Reconciliation | None:
    try:
        return Reconciliation.read(row.content, by=row.by, position=row.position)
    except (ValueError, RecursionError):
        return None  # forged without the key; it begins nothing and excuses nothing


def list_effective(
    told: Iterable[Reconciliation], *, ledger_id: str, public_key: str
) -> list[Reconciliation]:
    """Those that count under a key: each begins a later generation than the one before."""
    found: list[Reconciliation] = []
    for one in told:
        before = found[-1].generation if found else 0
        own = (one.ledger_id, one.public_key) == (ledger_id, public_key)
        if own and one.generation > before:
            found.append(one)
    return found


class ReportedHead(Head):
    """A head that was signed and that no log continues."""

    generation: LeafCount  # in which it was signed

    @classmethod
    def of(cls, head: Head, generation: int) -> "ReportedHead":
        """A head that was shown."""
        return cls(**dict(head), generation=generation)

    def head(self) -> Head:
        """As it was signed."""
        return Head(dataset=self.dataset, size=self.size, root=self.root, steps=self.steps)


class Suspension(Wire):
    """Why nothing is written, as it is stored."""

    state: Literal["suspended", "recovering"]
    reason: str
    lost: list[ReportedHead]
    signature: str = ""  # of the list; empty if it was not signed

    @classmethod
    def read(cls, text: str) -> "Suspension":
        """As it was stored; what cannot be read suspends as well."""
        try:
            return cls.model_validate(json.loads(text))
        except (ValueError, RecursionError):
            return cls(state="suspended", reason=_UNREADABLE, lost=[])

    def proven(self, *, ledger_id: str, public_key: str) -> list[ReportedHead]:
        """What was indeed shown: the list, if it was signed with the key."""
        message = _loss_message(ledger_id, self.lost)
        return self.lost if verify_signature(public_key, message, self.signature) else []

    def with_more(
        self, lost: list[ReportedHead], *, ledger_id: str, signer: Signer
    ) -> "Suspension":
        """The same with another list."""
        signature = signer.sign(_loss_message(ledger_id, lost))
        return self.model_copy(update={"lost": lost, "signature": signature})


def merge_reported_heads(lost: Iterable[ReportedHead]) -> list[ReportedHead]:
    """One for each log: of two branches that were lost, one may have more leaves, one steps."""
    longest: dict[str | None, ReportedHead] = {}
    for one in lost:
        known = longest.get(one.dataset, one)
        most = {
            name: max(getattr(known, name), getattr(one, name)) for name in ("steps", "generation")
        }
        longer = max(known, one, key=lambda each: each.size)
        longest[one.dataset] = longer.model_copy(update=most)
    return list(longest.values())


def _loss_message(ledger_id: str, lost: Iterable[ReportedHead]) -> bytes:
    said = {"ledger_id": ledger_id, "lost": [one.model_dump() for one in lost]}
    return LOSS_PREFIX + canonical(said).encode()
