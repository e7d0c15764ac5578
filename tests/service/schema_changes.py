"""Change the schema of a ledger for a look at it, and put it back."""

from collections.abc import Callable

from sqlalchemy import Connection, Engine, text

from service.operations.diagnostics.result import Finding


def after_changes(
    engine: Engine, look: Callable[[Connection], Finding], *statements: str
) -> Finding:
    """What is found after changes, which are rolled back."""
    with engine.connect() as connection:
        for statement in statements:
            connection.execute(text(statement))
        found = look(connection)
        connection.rollback()
    return found
