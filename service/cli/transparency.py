"""The commands checkpoint, witness, recover, reconcile, as-new-ledger and signing-key."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.options import DatabaseOption, build_failure, ready_engine, settings_of
from service.errors import LedgerError, StartupError

ReasonOption = Annotated[str, typer.Option("--reason", help="reason, for the log")]
signing_key = typer.Typer(
    help="The signing key: create, show.", no_args_is_help=True, add_completion=False
)


def _signer(database: str | None) -> Any:
    """The key that signs for a ledger, as a service with these settings has it."""
    from service.transparency.signing import Signer

    path = settings_of(database_url=database).signing_key_path
    if path is None:
        raise build_failure("Nothing signs for this ledger: set DPLEDGER_SIGNING_KEY_FILE.")
    try:
        return Signer.load(path)
    except StartupError as error:
        raise build_failure(str(error)) from None


@signing_key.command("create")
def create_signing_key(
    file: Annotated[Path, typer.Argument(help="file to create; must not exist")],
) -> None:
    """Create a key that signs checkpoints and certificates; only its owner can read the file."""
    from service.transparency.signing import Signer

    try:
        made = Signer.create(file)
    except StartupError as error:
        raise build_failure(str(error)) from None
    typer.echo(f"{made.public_key}\t{made.key_id}")


@signing_key.command("show")
def show_signing_key(
    file: Annotated[Path | None, typer.Argument(help="default: the file in the settings")] = None,
    database: DatabaseOption = None,
) -> None:
    """Print the public key, which verifiers need, and its id."""
    from service.transparency.signing import Signer

    try:
        found = _signer(database) if file is None else Signer.load(file)
    except StartupError as error:
        raise build_failure(str(error)) from None
    typer.echo(f"{found.public_key}\t{found.key_id}")


def checkpoint(
    out: Annotated[
        Path | None, typer.Option(help="file to write; default: standard output")
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Print a signed checkpoint of all logs; a kept checkpoint shows later changes."""
    from service.storage.engine import snapshot
    from service.transparency.checkpoints import LogHeads

    signer, engine = _signer(database), ready_engine(database)
    try:
        with snapshot(engine) as connection:
            signed = LogHeads.of(connection).whole(signer).model_dump()
    except LedgerError as error:
        raise build_failure(error.detail) from None
    finally:
        engine.dispose()
    text = json.dumps(signed, indent=1, sort_keys=True) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        _replace(out, text)
    except OSError as error:
        raise build_failure(f"{out}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """Put a file in the place of another, whole, once the disk has it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def witness(
    file: Annotated[Path, typer.Argument(help="witness file on another disk; created if missing")],
    database: DatabaseOption = None,
) -> None:
    """Compare the logs with a witness file, and append new heads to it; for cron."""
    from service.transparency.witness import WitnessError
    from service.transparency.witness_follower import Follower

    signer, engine = _signer(database), ready_engine(database)
    follower = Follower(engine, signer, file, seconds=1.0)
    try:
        found = follower.look()
        written = follower.writing
    except (WitnessError, OSError, LedgerError) as error:
        raise build_failure(str(error)) from None
    finally:
        follower.close()
        engine.dispose()
    if found.state != "open":
        raise build_failure(f"The ledger is {found.state}. {found.reason}", 1)
    if not written:
        raise build_failure(f"{file}: a service writes to it, and follows the logs by itself.", 1)


def recover(reason: ReasonOption, database: DatabaseOption = None) -> None:
    """Open a suspended ledger for lost entries; charges and reservations stay refused."""
    from service.transparency import recovery

    given = _message(recovery.Recovered, reason=reason)
    _decide(database, lambda one: recovery.recover(one, reason=given.reason, by=None))


def reconcile(
    reason: ReasonOption,
    not_taken: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET=STEPS", help="attest that these signed steps never ran"),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """End recovery mode: accept all writes again once the lost entries were sent again."""
    from service.transparency import recovery

    given = _message(recovery.Reconciled, reason=reason, not_taken=_counts(not_taken or []))
    signer = _signer(database)
    _decide(database, lambda one: recovery.reconcile(one, given, by=None, signer=signer))


def as_new_ledger(reason: ReasonOption, database: DatabaseOption = None) -> None:
    """Give a copy of a ledger its own identity, before a service runs on it.

    From then on the copy refuses checkpoints and witness files of the original ledger.
    """
    from service.storage.engine import transaction
    from service.transparency.ledger_identity import rename
    from service.transparency.recovery import Recovered

    given = _message(Recovered, reason=reason)
    engine = ready_engine(database)
    try:
        with transaction(engine) as connection:
            drawn = rename(connection, reason=given.reason)
    except LedgerError as error:
        raise build_failure(error.detail, 1) from None
    finally:
        engine.dispose()
    typer.echo(drawn)


def _counts(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, steps = text.partition("=")
        if not steps.isascii() or not steps.isdigit():
            raise build_failure("--not-taken: DATASET=STEPS")
        found[name] = int(steps)
    return found


def _message(kind: Any, **fields: Any) -> Any:
    from pydantic import ValidationError

    from service.schemas.field_errors import allowed

    try:
        return kind(**fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise build_failure(f"--{'.'.join(map(str, fault['loc']))}: {allowed(fault)}") from None


def _decide(database: str | None, decide: Callable[[Any], Any]) -> None:
    """Do what an admin decided, and show what is still lost."""
    from service.storage.engine import transaction
    from service.transparency.recovery import standing_answer

    engine = ready_engine(database)
    try:
        with transaction(engine) as connection:
            found = decide(connection)
    except LedgerError as error:
        raise build_failure(error.detail, 1) from None
    finally:
        engine.dispose()
    typer.echo(f"the ledger is {found.state}")
    for lost in standing_answer(found).lost:
        name = "installation" if lost.dataset is None else f"dataset {lost.dataset}"
        typer.echo(
            f"{name}: {lost.steps} steps were signed, {lost.recorded_steps} are recorded, "
            f"{lost.missing_steps} are missing"
        )
