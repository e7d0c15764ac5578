"""A budget of a dataset or a run, and the items of an envelope."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from dpledger_client.answers.answer import Answer


class EnvelopeItem(Answer):
    """Steps that an envelope holds.

    Attributes:
        name: of the item; None if it has none.
        mechanism: of each step.
        sampling: of each step.
        allowed: steps that the item holds.
        used: of them, recorded.
        reserved: of them, admitted ahead.
        remaining: of them, still free.
    """

    __slots__ = ()
    _first: ClassVar = ("name", "allowed", "used", "reserved", "remaining")
    name: str | None
    mechanism: Answer
    sampling: Answer
    allowed: int
    used: int
    reserved: int
    remaining: int


class BudgetState(Answer):
    """A limit, and how much of it is charged.

    Attributes:
        epsilon: the limit, in nats.
        delta: of the limit.
        share: of the limit that is charged, upper; None if it is unbounded.
        share_reserved: of the limit that is admitted ahead.
        delta_share: of delta that is charged.
        spent: charged epsilon, upper; None if it is unbounded.
        reserved: epsilon that is admitted ahead, upper.
        remaining: epsilon that is left, lower.
        remaining_steps: of the items of an envelope; None of another filter.
        overdrawn: whether more is charged than the limit.
        order: at which Renyi order is counted, for filters that have one.
        filter: that counts; `filter["kind"]` is its name.
        valid_for: steps for which the limit holds, such as steps that are chosen as they come.
        revision: of the settings.
    """

    __slots__ = ()
    _renamed: ClassVar[Mapping[str, type[Answer]]] = {"items": EnvelopeItem}
    _first: ClassVar = ("epsilon", "delta", "share", "spent", "remaining", "overdrawn")
    epsilon: float
    delta: float
    share: float | None
    share_reserved: float | None
    delta_share: float
    spent: float | None
    reserved: float | None
    remaining: float
    remaining_steps: int | None
    overdrawn: bool
    order: float | None
    filter: Answer
    valid_for: str
    revision: int

    @property
    def envelope(self) -> Sequence[EnvelopeItem] | None:
        """The items of an envelope (`budget["items"]`); None of another filter."""
        items: Sequence[EnvelopeItem] | None = self.get("items")
        return items
