"""The command audit: who did what, from the logs of acts."""

from typing import Annotated

import typer

from service.commands.opening import DatabaseOption, failed, ready_engine
from service.errors import LedgerError


def audit(
    dataset: Annotated[
        str | None, typer.Option(help="whose log; without it, the installation's: keys and such")
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """List what was done, by whom and when, the oldest first."""
    from service.audit import all_acts
    from service.database import snapshot
    from service.documents import canonical

    # Plain lines, as of keys: time, act, who, and what as JSON.
    try:
        with snapshot(ready_engine(database)) as connection:
            typer.echo("time\tact\tby\tcontent")
            for act in all_acts(connection, dataset):
                shown = (act.acted_at, act.kind, act.by or "", canonical(act.content))
                typer.echo("\t".join(shown))
    except LedgerError as error:
        raise failed(error.detail) from None
