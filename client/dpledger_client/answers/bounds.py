"""Theorems that the service knows."""

from collections.abc import Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer


class Bound(Answer):
    """A theorem that bounds epsilon.

    Attributes:
        id: its name.
        statement: in words.
        source: the paper or the proof.
        status: published, derived, declared or conditional.
        assumptions: that it rests on.
        relations: the neighboring relations that it covers.
        parameters: that it needs.
        counterexample: to a stronger claim; None without one.
    """

    __slots__ = ()
    _first: ClassVar = ("id", "status", "source")
    id: str
    statement: str
    source: str
    status: str
    assumptions: Sequence[str]
    relations: Sequence[str]
    parameters: Sequence[str]
    counterexample: str | None
