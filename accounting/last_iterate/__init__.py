"""Bounds for a run that shows its last iterate alone: what later steps hide of earlier ones.

They need facts about the loss and the steps that no event shows: the trainer declares them.
"""

from typing import Any, Final

from accounting.last_iterate import (
    affine,
    affine_guarantee,
    closed_forms,
    contraction,
    lipschitz,
    online,
    order_rdp,
    output_perturbation,
    pass_curves,
    passes,
    random_order,
    refined,
    sampled,
    schedules,
    shift,
)
from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *lipschitz.THEOREMS,
    *shift.THEOREMS,
    *closed_forms.THEOREMS,
    *contraction.THEOREMS,
    *refined.THEOREMS,
    *schedules.THEOREMS,
    *online.THEOREMS,
    *passes.THEOREMS,
    *pass_curves.THEOREMS,
    *random_order.THEOREMS,
    *order_rdp.THEOREMS,
    *sampled.THEOREMS,
    *output_perturbation.THEOREMS,
    *affine.THEOREMS,
    *affine_guarantee.THEOREMS,
)
