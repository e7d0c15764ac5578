"""How much work a question may take. One that takes more is refused, by name.

Work is counted (accounting/work_limit.py), not timed: a question is refused always or never, on any
machine, and what is recorded does not depend on it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from accounting.work_limit import TooMuchWorkError, limit_work
from service.errors import TooExpensiveError

POINTS_MAX: Final = 175_000_000  # docs/guide/hostile_input.md has the seconds


@contextmanager
def bounded(question: str, *, points: int | None = None) -> Iterator[None]:
    """Refuse a question that takes more work than one may.

    Args:
        question: what it is called, as the beginning of a sentence.
        points: of work that it may take; POINTS_MAX where none are given.

    Raises:
        TooExpensiveError: it takes more.
    """
    try:
        with limit_work(POINTS_MAX if points is None else points):
            yield
    except TooMuchWorkError:
        raise TooExpensiveError(
            f"{question} would take more than 2 s of processor time: ask about fewer events, or "
            "about more that are alike."
        ) from None
