"""Contraction bounds of the last iterate, and what rests on them, as the documents state them."""

from typing import Any, Final

from accounting.guarantees import Theorem
from accounting.literature.contraction import (
    affine,
    affine_guarantee,
    contraction,
    online,
    order_rdp,
    output_perturbation,
    pass_curves,
    passes,
    refined,
    schedules,
)

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *contraction.THEOREMS,
    *refined.THEOREMS,
    *schedules.THEOREMS,
    *online.THEOREMS,
    *passes.THEOREMS,
    *pass_curves.THEOREMS,
    *order_rdp.THEOREMS,
    *output_perturbation.THEOREMS,
    *affine.THEOREMS,
    *affine_guarantee.THEOREMS,
)
