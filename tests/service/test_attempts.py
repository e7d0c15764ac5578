"""Attempts to write: one that failed says how writing goes, and one that does not end."""

import pytest
from sqlalchemy import Engine, text

from service.errors import NotFoundError, UnavailableError
from service.storage.engine import FAILED, WAITING, Attempts, DedicatedConnection, attempts_of

FOREVER = 1e9  # seconds
END = text("SELECT pg_terminate_backend(:session, 60000)")  # and wait so many ms until it has


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


def write_cut_off(line: DedicatedConnection, engine: Engine) -> None:
    with line.transaction() as connection:
        session = connection.scalar(text("SELECT pg_backend_pid()"))
        with engine.connect() as other:
            assert other.scalar(END, {"session": session})
        connection.scalar(text("SELECT 1"))


@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_session_that_the_server_ends_in_the_middle_of_a_write_is_a_failure_of_the_database(
    engine: Engine,
) -> None:
    line = DedicatedConnection(engine)
    with pytest.raises(UnavailableError):
        write_cut_off(line, engine)
    assert attempts_of(engine).write_failures == 1
    with line.transaction() as connection:
        assert connection.scalar(text("SELECT 1")) == 1
    line.close()
