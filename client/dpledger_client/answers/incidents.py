"""Incidents, and what was done about them."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer


class IncidentNote(Answer):
    """A thing that was done about an incident.

    Attributes:
        action: comment, assign, acknowledge or reopen.
        text: in the words of who did it; empty if nothing was said.
        assignee: of an assignment, the name of a key; None if it was taken from every key.
        by: with which key; None if no key was involved.
        noted_at: an instant, RFC 3339.
    """

    __slots__ = ()
    action: str
    text: str
    assignee: str | None
    by: str | None
    noted_at: str


class Incident(Answer):
    """What needs attention, with what was done about it.

    Attributes:
        id: its name.
        kind: such as overdraft.
        state: open or acknowledged.
        dataset: that it concerns.
        run: that it concerns; None if it concerns the dataset.
        assignee: the key of the latest assignment; None if there is none.
        sequence: of the dataset's latest entry after it.
        detail: names and numbers of it.
        notes: what was done about it, the oldest first.
        occurred_at: an instant, RFC 3339.
    """

    __slots__ = ()
    _first: ClassVar = ("id", "kind", "state", "dataset", "run", "assignee")
    id: str
    kind: str
    state: str
    dataset: str
    run: str | None
    assignee: str | None
    sequence: int
    detail: Answer
    notes: Sequence[IncidentNote]
    occurred_at: str
