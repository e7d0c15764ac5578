"""The commands keys create, keys list, keys rotate, keys revoke."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from service.cli.options import DatabaseOption, build_failure, open_ledger
from service.errors import InvalidRequestError, LedgerError

keys = typer.Typer(
    help="API keys: create, list, rotate, revoke.", no_args_is_help=True, add_completion=False
)
ExpiresOption = Annotated[
    str | None,
    typer.Option("--expires", help="days from now, or when in UTC: 2027-01-31 or 2027-01-31T12:00"),
]


@keys.command("create")
def create_key(
    scope: Annotated[str, typer.Option(help="viewer, trainer, owner, approver or admin")],
    name: Annotated[str, typer.Option(help="name of the key; the logs keep acts under it")],
    person: Annotated[
        str | None,
        typer.Option(help="who holds it (default: --name); one person approves nothing of its own"),
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="limit the key to this dataset; may be repeated")
    ] = None,
    expires: ExpiresOption = None,
    requests_per_second: Annotated[
        float | None, typer.Option(help="limit in each process; default: from the settings")
    ] = None,
    body_bytes_max: Annotated[
        int | None, typer.Option(help="largest request; default: from the settings")
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Create a key and print it; it is shown once and only its hash is kept."""
    from service.identity.keys import Role, Terms, create_key
    from service.storage.engine import transaction

    if scope not in list(Role):
        raise build_failure(f"--scope: must be one of {', '.join(Role)}")
    try:
        terms = Terms(
            datasets=frozenset(dataset) if dataset else None,
            expires_at=_moment(expires),
            requests_per_second=requests_per_second,
            body_bytes_max=body_bytes_max,
        )
        with open_ledger(database, begin=True) as engine, transaction(engine) as connection:
            key = create_key(connection, name=name, scope=Role(scope), person=person, terms=terms)
    except LedgerError as error:
        raise _build_refusal(error) from None
    typer.echo(key)  # once it is stored


@keys.command("list")
def list_keys(database: DatabaseOption = None) -> None:
    """List the keys: names, scopes, first characters and limits."""
    from service.identity.keys import list_keys
    from service.storage.engine import snapshot

    # Plain lines: a table cuts long names to the width of the terminal.
    with open_ledger(database) as engine, snapshot(engine) as connection:
        typer.echo("\t".join(_COLUMNS))
        for row in list_keys(connection):
            typer.echo("\t".join(_key_row(row)))


@keys.command("rotate")
def rotate_key(
    name: Annotated[str, typer.Argument(help="the key's name")],
    grace_seconds: Annotated[
        int, typer.Option(help="how long the old secret still works; 0 to 30 days")
    ] = 3600,
    expires: ExpiresOption = None,
    database: DatabaseOption = None,
) -> None:
    """Give a key a new secret and print it."""
    from service.identity.keys import rotate_key
    from service.storage.engine import transaction

    try:
        with open_ledger(database) as engine, transaction(engine) as connection:
            key = rotate_key(
                connection, name, grace_seconds=grace_seconds, expires_at=_moment(expires)
            )
    except LedgerError as error:
        raise _build_refusal(error) from None
    typer.echo(key)


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="the key's name")],
    reason: Annotated[str | None, typer.Option(help="why; stored in the log of acts")] = None,
    database: DatabaseOption = None,
) -> None:
    """Revoke a key: it stops working."""
    from service.identity.keys import revoke_key
    from service.storage.engine import transaction

    try:
        with open_ledger(database) as engine, transaction(engine) as connection:
            revoke_key(connection, name, reason=reason)
    except LedgerError as error:
        raise build_failure(error.detail) from None


_COLUMNS = (
    "name", "scope", "key", "created", "revoked", "expires", "datasets", "requests_per_second",
    "body_bytes_max", "old_secret_until", "person",
)  # fmt: skip


def _key_row(row: Any) -> tuple[str, ...]:
    from service.clock import stamp
    from service.identity.keys import person_of, terms_of

    def at(moment: datetime | None) -> str:
        return stamp(moment) if moment else ""

    terms = terms_of(row)
    return (
        row.name,
        row.scope,
        f"{row.prefix}...",
        at(row.created_at),
        at(row.revoked_at),
        at(row.expires_at),
        "all" if terms.datasets is None else ",".join(sorted(terms.datasets)),
        "" if terms.requests_per_second is None else f"{terms.requests_per_second:g}",
        "" if terms.body_bytes_max is None else str(terms.body_bytes_max),
        at(row.previous_until),
        person_of(row),
    )


def _moment(text: str | None) -> datetime | None:
    """What --expires says.

    Raises:
        InvalidRequestError: it is neither days nor a time.
    """
    if text is None:
        return None
    try:
        if text.isdecimal():
            return datetime.now(UTC) + timedelta(days=int(text))
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        message = "must be days from now, or a time such as 2027-01-31"
        raise InvalidRequestError("expires", message) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _build_refusal(error: LedgerError) -> typer.Exit:
    """A refusal, in the words of the options."""
    if isinstance(error, InvalidRequestError):
        location, colon, message = error.detail.partition(":")
        return build_failure(f"--{location.replace('_', '-')}{colon}{message}")
    return build_failure(error.detail)
