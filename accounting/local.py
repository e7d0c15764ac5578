"""The local and the shuffle model: randomizers of one record, sampled and shuffled."""

from typing import Any, Final

from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = ()
