"""The commands checkpoint, witness, recover, reconcile, as-new-ledger and signing-key."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.options import DatabaseOption, failed, ready_engine, settings_of
from service.errors import LedgerError, StartupError

ReasonOption = Annotated[str, typer.Option("--reason", help="why, for the log")]
signing_key = typer.Typer(help="The key that signs: create, show.", no_args_is_help=True)


def _signer(database: str | None) -> Any:
    """The key that signs for a ledger, as a service with these settings has it."""
    from service.transparency.signing import Signer

    path = settings_of(database_url=database).signing_key_path
    if path is None:
        raise failed("Nothing signs for this ledger: set DPLEDGER_SIGNING_KEY_FILE.")
    try:
        return Signer.load(path)
    except StartupError as error:
        raise failed(str(error)) from None


@signing_key.command("create")
def create_signing_key(file: Annotated[Path, typer.Argument(help="which must not exist")]) -> None:
    """Make a key that signs checkpoints and certificates; only its owner may read the file."""
    from service.transparency.signing import Signer

    try:
        made = Signer.create(file)
    except StartupError as error:
        raise failed(str(error)) from None
    typer.echo(f"{made.public_key}\t{made.key_id}")


@signing_key.command("show")
def show_signing_key(
    file: Annotated[Path | None, typer.Argument(help="by default that of the settings")] = None,
    database: DatabaseOption = None,
) -> None:
    """Print the public key and its id: what those who verify need from you."""
    from service.transparency.signing import Signer

    try:
        found = _signer(database) if file is None else Signer.load(file)
    except StartupError as error:
        raise failed(str(error)) from None
    typer.echo(f"{found.public_key}\t{found.key_id}")


def checkpoint(
    out: Annotated[Path | None, typer.Option(help="a file to write instead")] = None,
    database: DatabaseOption = None,
) -> None:
    """Print a signed checkpoint of all logs: whoever keeps it can tell later what was changed."""
    from service.storage.engine import snapshot
    from service.transparency.checkpoints import LogHeads

    signer, engine = _signer(database), ready_engine(database)
    try:
        with snapshot(engine) as connection:
            signed = LogHeads.of(connection).whole(signer).model_dump()
    except LedgerError as error:
        raise failed(error.detail) from None
    finally:
        engine.dispose()
    text = json.dumps(signed, indent=1, sort_keys=True) + "\n"
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        _replace(out, text)
    except OSError as error:
        raise failed(f"{out}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    """Put a file in the place of another, whole, once the disk has it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def witness(
    file: Annotated[Path, typer.Argument(help="on another disk; made where there is none")],
    database: DatabaseOption = None,
) -> None:
    """Compare the logs with what a witness file has seen, and append what is new; for cron."""
    from service.transparency.witness import WitnessError
    from service.transparency.witness_follower import Follower

    signer, engine = _signer(database), ready_engine(database)
    follower = Follower(engine, signer, file, seconds=1.0)
    try:
        found = follower.look()
        written = follower.writing
    except (WitnessError, OSError, LedgerError) as error:
        raise failed(str(error)) from None
    finally:
        follower.close()
        engine.dispose()
    if found.state != "open":
        raise failed(f"The ledger is {found.state}. {found.reason}", 1)
    if not written:
        raise failed(f"{file}: a service writes to it, and follows the logs by itself.", 1)


def recover(reason: ReasonOption, database: DatabaseOption = None) -> None:
    """Open a suspended ledger for what it has lost; charges and reservations stay refused."""
    from service.transparency import recovery

    given = _message(recovery.Recovered, reason=reason)
    _decide(database, lambda one: recovery.recover(one, reason=given.reason, by=None))


def reconcile(
    reason: ReasonOption,
    not_taken: Annotated[
        list[str] | None,
        typer.Option(metavar="DATASET=STEPS", help="signed steps that never ran, by attestation"),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Declare a ledger whole that has again what it had lost; everything is taken again."""
    from service.transparency import recovery

    given = _message(recovery.Reconciled, reason=reason, not_taken=_counts(not_taken or []))
    signer = _signer(database)
    _decide(database, lambda one: recovery.reconcile(one, given, by=None, signer=signer))


def as_new_ledger(reason: ReasonOption, database: DatabaseOption = None) -> None:
    """Give a copy of a ledger an identity of its own, before a service runs on it.

    What was kept of the ledger that it was copied from is refused by it from then on.
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
        raise failed(error.detail, 1) from None
    finally:
        engine.dispose()
    typer.echo(drawn)


def _counts(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, _, steps = text.partition("=")
        if not steps.isascii() or not steps.isdigit():
            raise failed("--not-taken: DATASET=STEPS")
        found[name] = int(steps)
    return found


def _message(kind: Any, **fields: Any) -> Any:
    from pydantic import ValidationError

    try:
        return kind(**fields)
    except ValidationError as error:
        fault = error.errors()[0]
        raise failed(f"--{'.'.join(map(str, fault['loc']))}: {fault['msg']}") from None


def _decide(database: str | None, decide: Callable[[Any], Any]) -> None:
    """Do what an admin decided, and show what is still lost."""
    from service.storage.engine import transaction
    from service.transparency.recovery import answer_of

    engine = ready_engine(database)
    try:
        with transaction(engine) as connection:
            found = decide(connection)
    except LedgerError as error:
        raise failed(error.detail, 1) from None
    finally:
        engine.dispose()
    typer.echo(f"the ledger is {found.state}")
    for lost in answer_of(found).lost:
        name = "installation" if lost.dataset is None else f"dataset {lost.dataset}"
        typer.echo(
            f"{name}: {lost.steps} steps were signed, {lost.recorded_steps} are recorded, "
            f"{lost.missing_steps} are missing"
        )
