"""Wrong, retracted or unproved statements of the literature: kept by name, used by nothing.

Each can be evaluated by its id, and says what is known against it; docs/theory/errata.md tells each
story. Values are as printed, not rounded to any side, for they bound nothing. No other module may
import this one, so that none of them ever reaches a guarantee or a budget.
"""

from typing import Any, Final

from accounting.guarantees import Theorem
from accounting.literature.refuted import (
    adaptive,
    affine,
    contraction,
    early_stop,
    mechanisms,
    sampling,
    schedules,
)

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = (
    *early_stop.THEOREMS,
    *mechanisms.THEOREMS,
    *sampling.THEOREMS,
    *adaptive.THEOREMS,
    *affine.THEOREMS,
    *contraction.THEOREMS,
    *schedules.THEOREMS,
)
