"""The command audit: who did what, from the logs of acts."""

from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import DatabaseOption, build_failure, open_ledger
from service.errors import LedgerError

if TYPE_CHECKING:
    from sqlalchemy import Connection


def audit(
    dataset: Annotated[
        str | None,
        typer.Option(help="the dataset of the log; default: the installation log, which has keys"),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(help="only acts of this API key; without --dataset, in all logs"),
    ] = None,
    entries: Annotated[
        bool, typer.Option("--entries", help="list the entries that the key of --by recorded")
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """List who did what and when, the oldest first."""
    from service.storage.engine import snapshot

    if entries and by is None:
        raise typer.BadParameter("needs --by", param_hint="--entries")
    # Plain lines, as of keys.
    try:
        with open_ledger(database) as engine, snapshot(engine) as connection:
            lines = (
                _entries(connection, by, dataset)
                if entries and by is not None
                else _acts(connection, dataset, by)
            )
            head, first = next(lines), list(islice(lines, 1))  # a refusal comes before the head
            for line in chain([head], first, lines):
                typer.echo("\t".join(line))
    except LedgerError as error:
        raise build_failure(error.detail) from None


def _acts(
    connection: "Connection", dataset: str | None, by: str | None
) -> Iterator[tuple[str, ...]]:
    """Time, act, key, and what as JSON; of every log also whose it is."""
    from service.schemas.event_codec import canonical
    from service.transparency.activity import all_acts, logs

    everywhere = by is not None and dataset is None
    yield ("time", "act", "by", *(("dataset",) if everywhere else ()), "content")
    for log in logs(connection) if everywhere else [dataset]:
        for act in all_acts(connection, log, by=by):
            named = (act.dataset or "",) if everywhere else ()
            yield act.acted_at, act.kind, act.by or "", *named, canonical(act.content)


def _entries(connection: "Connection", by: str, dataset: str | None) -> Iterator[tuple[str, ...]]:
    """Which entries of which branches a key recorded."""
    from service.transparency.activity import Stretch, find_stretches

    yield Stretch._fields
    for stretch in find_stretches(connection, by, dataset):
        yield tuple(map(str, stretch))
