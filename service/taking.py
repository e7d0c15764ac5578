"""Whether the ledger takes what is written: asked in the transaction that writes.

Whoever suspends the ledger waits for those who are writing, and who comes later sees it suspended:
no write is committed after the suspension.
"""

import json
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection, Engine, select

from service import pricing
from service.database import hold, transaction
from service.suspension import Standing, State
from service.tables import installation

Answer = TypeVar("Answer")


def state_of(connection: Connection) -> State:
    """Where the ledger stands, which does not change until the transaction ends."""
    hold(connection)
    told = connection.scalar(_SUSPENDED)
    state: State = "open" if told is None else json.loads(told)["state"]
    return state


_SUSPENDED = select(installation.c.suspended)


def require_taking(state: State, *, admits: bool = False) -> None:
    """Refuse to write to a ledger that does not take it.

    Args:
        state: of the ledger.
        admits: whether it is to be held against a budget, for which the ledger must be whole.

    Raises:
        LedgerSuspendedError: it does not.
    """
    if state == "suspended" or (admits and state != "open"):
        raise Standing(state).refusal()


def written(engine: Engine, work: Callable[[Connection], Answer]) -> Answer:
    """What work answers that is done in one transaction, in which nothing dear is worked out.

    Raises:
        LedgerSuspendedError: the ledger does not take it now.
        UnavailableError: the database does not answer, or changes each time that it is tried.
    """

    def attempt() -> Answer:
        with transaction(engine) as connection:
            require_taking(state_of(connection))
            return work(connection)

    return pricing.settled(attempt)
