"""Bounds for a run that shows its last iterate alone: what later steps hide of earlier ones.

They need facts about the loss and the steps that no event shows: the trainer declares them.
"""

from typing import Any, Final

from accounting.guarantees import Theorem
from accounting.last_iterate import closed_forms, lipschitz, random_order, sampled, shift

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *lipschitz.THEOREMS,
    *shift.THEOREMS,
    *closed_forms.THEOREMS,
    *random_order.THEOREMS,
    *sampled.THEOREMS,
)
