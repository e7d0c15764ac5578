"""What a suspended ledger is known to have lost, signed at the moment when it was shown.

Only what was shown to this service, and signed by it, may be abandoned later: who can write to the
database while an admin thinks about it cannot add to the list.
"""

import json
from collections.abc import Iterable
from typing import Final, Literal

from service.documents import canonical
from service.heads import Count, Head
from service.signing import Signer, verified
from service.wire import Wire

PREFIX: Final = b"dpledger suspension 1\n"  # a signature of a list is one of nothing else
_UNREADABLE: Final = "What is stored of the suspension cannot be read."


class Shown(Head):
    """A head that was signed and that no log continues."""

    epoch: Count  # in which it was signed

    @classmethod
    def of(cls, head: Head, epoch: int) -> "Shown":
        """A head that was shown."""
        return cls(**dict(head), epoch=epoch)

    def head(self) -> Head:
        """As it was signed."""
        return Head(dataset=self.dataset, size=self.size, root=self.root, steps=self.steps)


class Suspension(Wire):
    """Why nothing is written, as it is stored."""

    state: Literal["suspended", "recovering"]
    reason: str
    lost: list[Shown]
    signature: str = ""  # of the list; none where nobody signed it

    @classmethod
    def read(cls, text: str) -> "Suspension":
        """As it was stored; what cannot be read suspends as well."""
        try:
            return cls.model_validate(json.loads(text))
        except (ValueError, RecursionError):
            return cls(state="suspended", reason=_UNREADABLE, lost=[])

    def proven(self, *, ledger_id: str, public_key: str) -> list[Shown]:
        """What was indeed shown: the list, if it was signed with the key."""
        message = _message(ledger_id, self.lost)
        return self.lost if verified(public_key, message, self.signature) else []

    def with_more(self, lost: list[Shown], *, ledger_id: str, signer: Signer) -> "Suspension":
        """The same with another list."""
        signature = signer.sign(_message(ledger_id, lost))
        return self.model_copy(update={"lost": lost, "signature": signature})


def joined(lost: Iterable[Shown]) -> list[Shown]:
    """One for each log: of two branches that were lost, one may have more leaves, one steps."""
    longest: dict[str | None, Shown] = {}
    for one in lost:
        known = longest.get(one.dataset, one)
        most = {name: max(getattr(known, name), getattr(one, name)) for name in ("steps", "epoch")}
        longer = max(known, one, key=lambda each: each.size)
        longest[one.dataset] = longer.model_copy(update=most)
    return list(longest.values())


def _message(ledger_id: str, lost: Iterable[Shown]) -> bytes:
    said = {"ledger_id": ledger_id, "lost": [one.model_dump() for one in lost]}
    return PREFIX + canonical(said).encode()
