"""What a refusal says of the budgets that steps do not fit in."""

from typing import Literal

from service.schemas.responses import Answer


class FailingScope(Answer):
    """A budget that steps do not fit in."""

    scope: str
    limit: float
    delta: float
    spent: float | None
    reserved: float | None
    requested: float | None
    reason: Literal["outside_envelope"] | None = None  # why no fewer steps would fit, either
    nearest_item: int | None = None  # of the envelope: the index of the item that comes nearest
    would_fit: str | None = None  # what the first step that no item covers would have to be
