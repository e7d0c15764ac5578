"""Composition of (epsilon, delta) guarantees: basic, advanced and optimal."""

from typing import Any, Final

from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = ()
