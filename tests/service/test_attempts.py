"""Attempts to write: one that failed says how writing goes, and one that does not end."""

import pytest

from service.errors import NotFoundError, UnavailableError
from service.storage.engine import FAILED, WAITING, Attempts

FOREVER = 1e9  # seconds


def fail(attempts: Attempts) -> None:
    with pytest.raises(UnavailableError), attempts.one():
        raise UnavailableError("The database does not answer.") from OSError()


def test_a_failure_is_told_until_as_much_was_written_as_an_append_may_take() -> None:
    attempts = Attempts()
    assert attempts.trouble(FOREVER) is None
    fail(attempts)
    assert attempts.trouble(FOREVER) == FAILED
    with attempts.one():  # perhaps a small one, on a disk without room for a large one
        assert attempts.trouble(FOREVER) == FAILED
    assert attempts.trouble(FOREVER) == FAILED
    attempts.mended(attempts.write_failures)
    assert attempts.trouble(FOREVER) is None


def test_a_probe_says_nothing_of_what_failed_while_it_wrote() -> None:
    attempts = Attempts()
    fail(attempts)
    before = attempts.write_failures
    fail(attempts)
    attempts.mended(before)
    assert attempts.trouble(FOREVER) == FAILED


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
