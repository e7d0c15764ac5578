"""The commands keys create, keys list, keys revoke."""

from typing import Annotated

import typer

from service.commands.opening import DatabaseOption, failed, ready_engine
from service.errors import LedgerError

keys = typer.Typer(help="API keys: create, list, revoke.", no_args_is_help=True)


@keys.command("create")
def create_key(
    scope: Annotated[str, typer.Option(help="viewer, trainer or admin")],
    name: Annotated[str, typer.Option(help="who will hold it")],
    database: DatabaseOption = None,
) -> None:
    """Create a key and print it; it is shown once and only its hash is kept."""
    from service.auth import Scope, create_key
    from service.database import transaction
    from service.schemas import valid_name

    if scope not in list(Scope):
        raise failed(f"--scope: must be one of {', '.join(Scope)}")
    if not valid_name(name):
        raise failed("--name: must match [a-z0-9][a-z0-9._-]{0,62}")
    try:
        with transaction(ready_engine(database)) as connection:
            typer.echo(create_key(connection, name=name, scope=Scope(scope)))
    except LedgerError as error:
        raise failed(error.detail) from None


@keys.command("list")
def list_keys(database: DatabaseOption = None) -> None:
    """List the keys: their names, scopes and first characters."""
    from service.auth import list_keys
    from service.clock import stamp
    from service.database import snapshot

    # Plain lines: a table cuts long names to the width of the terminal.
    with snapshot(ready_engine(database)) as connection:
        typer.echo("name\tscope\tkey\tcreated\trevoked")
        for row in list_keys(connection):
            revoked = stamp(row.revoked_at) if row.revoked_at else ""
            shown = (row.name, row.scope, f"{row.prefix}...", stamp(row.created_at), revoked)
            typer.echo("\t".join(shown))


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="the key's name")], database: DatabaseOption = None
) -> None:
    """Stop a key from working."""
    from service.auth import revoke_key
    from service.database import transaction

    try:
        with transaction(ready_engine(database)) as connection:
            revoke_key(connection, name)
    except LedgerError as error:
        raise failed(error.detail) from None
