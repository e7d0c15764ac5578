"""Bounds for a run that shows its last iterate alone: what later steps hide of earlier ones.

They need facts about the loss and the steps that no event shows: the trainer declares them.
"""

from typing import Any, Final

from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = ()
