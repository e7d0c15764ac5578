"""Total variation: privacy at epsilon zero, and what tests, attacks and losses make of a bound."""

from typing import Any, Final

from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = ()
