"""Wrong, retracted or unproved statements of the literature: kept by name, used by nothing.

Each can be evaluated by its id, and says what is known against it. No other module may import this
one, so that none of them ever reaches a guarantee or a budget.
"""

from typing import Any, Final

from accounting.theorem import Theorem

THEOREMS: Final[tuple[Theorem[..., Any], ...]] = ()
