"""Change requests."""

from typing import ClassVar

from dpledger_client.answers.answer import Answer


class Decision(Answer):
    """How a change request was decided.

    Attributes:
        decision: approved, rejected or withdrawn.
        person: who decided.
        by: with which key.
        reason: in their words.
        decided_at: an instant, RFC 3339.
    """

    __slots__ = ()
    decision: str
    person: str
    by: str
    reason: str
    decided_at: str


class ChangeRequest(Answer):
    """A change that one person asks for and another decides.

    Attributes:
        id: its name.
        kind: limit, envelope, void or correction.
        state: pending, approved, rejected, withdrawn, expired or stale.
        dataset: that it changes; None of another kind.
        target: what it changes otherwise.
        change: the body of the change.
        person: who asks.
        by: with which key.
        reason: in their words.
        decision: None while it is pending.
        revision: of the settings that it was asked for.
        requested_at: an instant, RFC 3339.
        expires_at: an instant, RFC 3339.
    """

    __slots__ = ()
    _first: ClassVar = ("id", "kind", "state", "dataset", "person", "reason")
    id: str
    kind: str
    state: str
    dataset: str | None
    target: str | None
    change: Answer
    person: str
    by: str
    reason: str
    decision: Decision | None
    revision: int | None
    requested_at: str
    expires_at: str
