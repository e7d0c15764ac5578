"""Attempts to write: the last that ended says how writing goes, and one that does not end."""

import pytest

from service.attempts import FAILED, WAITING, Attempts
from service.errors import NotFoundError, UnavailableError

FOREVER = 1e9  # seconds


def test_the_last_attempt_says_whether_writes_are_committed() -> None:
    attempts = Attempts()
    assert attempts.trouble(FOREVER) is None
    with pytest.raises(UnavailableError), attempts.one():
        raise UnavailableError("The database does not answer.") from OSError()
    assert attempts.trouble(FOREVER) == FAILED
    with attempts.one():
        assert attempts.trouble(FOREVER) == FAILED  # it is not known yet
    assert attempts.trouble(FOREVER) is None


def test_a_refusal_says_nothing_of_the_database() -> None:
    attempts = Attempts()
    for refusal in (NotFoundError("There is no such run."), UnavailableError("It has changed.")):
        with pytest.raises(type(refusal)), attempts.one():
            raise refusal
        assert attempts.trouble(FOREVER) is None


def test_an_attempt_that_does_not_end_is_told() -> None:
    attempts = Attempts()
    with attempts.one():
        assert attempts.trouble(-1.0) == WAITING
        assert attempts.trouble(FOREVER) is None
    assert attempts.trouble(-1.0) is None
