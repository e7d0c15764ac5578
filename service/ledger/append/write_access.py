"""Whether the ledger takes what is written: asked in the transaction that writes.

A suspension waits for writes in progress, and later writes see the ledger suspended:
no write is committed after the suspension.
"""

import json
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from sqlalchemy import Connection, Engine

from service.errors import LedgerSuspendedError
from service.ledger.budgets import cost_cache
from service.storage.engine import hold, transaction

LedgerState = Literal["open", "suspended", "recovering"]
Result = TypeVar("Result")
_SUSPENDED = "SELECT suspended FROM installation"


def suspended_error(state: LedgerState, reason: str = "") -> LedgerSuspendedError:
    """What a writer is told; the reason may name a dataset that the key does not reach."""
    does = (
        "is being reconciled, and records what it had lost, but admits nothing yet"
        if state == "recovering"
        else "contradicts what it signed, so that nothing is written"
    )
    return LedgerSuspendedError(f"The ledger {does}. {reason}".rstrip(), state=state)


def state_of(connection: Connection) -> LedgerState:
    """Where the ledger stands, which does not change until the transaction ends."""
    hold(connection)
    row = connection.connection.cursor().execute(_SUSPENDED).fetchone()
    told = None if row is None else row[0]
    state: LedgerState = "open" if told is None else json.loads(told)["state"]
    return state


def require_writable(state: LedgerState, *, admits: bool = False) -> None:
    """Refuse to write to a ledger that does not take it.

    Args:
        state: of the ledger.
        admits: whether it is to be held against a budget, for which the ledger must be whole.

    Raises:
        LedgerSuspendedError: it does not.
    """
    if state == "suspended" or (admits and state != "open"):
        raise suspended_error(state)


def run_in_write_transaction(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """What work answers that is done in one transaction, in which nothing expensive is worked out.

    Raises:
        LedgerSuspendedError: the ledger does not take it now.
        UnavailableError: the database does not answer, or changes each time that it is tried.
    """

    def attempt() -> Result:
        with transaction(engine) as connection:
            require_writable(state_of(connection))
            return work(connection)

    return cost_cache.retry_with_costs(attempt)


class _RehearsedError(Exception):
    """Ends a transaction without keeping anything of it."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


def rehearse(engine: Engine, work: Callable[[Connection], Result]) -> Result:
    """What work would answer; its transaction is rolled back, so that nothing of it stays.

    Raises:
        LedgerSuspendedError: the ledger does not take it now.
        UnavailableError: the database does not answer, or changes each time that it is tried.
    """

    def attempt(connection: Connection) -> Result:
        raise _RehearsedError(work(connection))

    try:
        return run_in_write_transaction(engine, attempt)
    except _RehearsedError as done:
        answer: Result = done.answer
        return answer
