"""The commands verify and restate: check a ledger, a certificate or a backup, without trust."""

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from service.cli.options import (
    DatabaseOption,
    build_failure,
    failed_to_start,
    present_engine,
    ready_engine,
)
from service.errors import LedgerError, StartupError

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from service.transparency.verification.report import VerificationReport
    from service.transparency.verification.saved_heads import Kept

_SHOWN: Final = 10  # broken places, without --json
# The author of the data may have forged all of it: printed last, so that it is not overlooked.
_UNAUTHENTICATED: Final = "NOT AUTHENTICATED: {}"
_NOTHING_KEPT: Final = (
    "nothing that was kept elsewhere was given, so this may be a forged history; pass --witness or "
    "--checkpoint, and --public-key"
)
_NO_KEY: Final = (
    "no key was named, so anyone may have signed this; pass --public-key, which the operator gave "
    "you by another way"
)
_SQLITE: Final = b"SQLite format 3\0"  # which each of its files begins with


def restate(
    database: DatabaseOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only print; append nothing")] = False,
) -> None:
    """Recompute certificates of earlier versions; exit 1 if a certified epsilon was too low."""
    from service.transparency.certificates.recheck import restate_all

    low, count, engine = 0, 0, ready_engine(database)
    try:
        for found in restate_all(engine, dry_run=dry_run):
            count, low = count + 1, low + found.too_low
            for line in _lines(found.content):
                typer.echo(line)
    except (LedgerError, ArithmeticError) as error:
        raise build_failure(str(error)) from None
    finally:
        engine.dispose()
    done = "would be restated" if dry_run else "restated"
    typer.echo(f"{count} {done}, {low} of them certified TOO LOW")
    if low:
        raise typer.Exit(1)


def _lines(content: dict[str, Any]) -> list[str]:
    """A line for each number that is another now."""
    about, changes = content["about"], content["changes"]
    where = f"{about['kind']} {about['name']} at entry {content['sequence']}"
    by = f"version {content['old_core_version']} certified"
    return [
        f"{'TOO LOW: ' if one['direction'] == 'too_low' else ''}{where}, delta {one['delta']!r}, "
        f"{one['accountant']}: {by} {_epsilon(one['old'])}, "
        f"version {content['core_version']} proves {_epsilon(one['new'])}"
        for one in changes
    ]


def _epsilon(ends: dict[str, float | None]) -> str:
    return "nothing finite" if ends["epsilon"] is None else repr(ends["epsilon"])


def verify(
    target: Annotated[
        str, typer.Argument(help="sqlite:///FILE, postgresql://... or a certificate file")
    ],
    witness: Annotated[
        Path | None, typer.Option(help="witness file to compare every leaf with")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="saved checkpoint that the logs must continue")
    ] = None,
    public_key: Annotated[
        str | None, typer.Option("--public-key", help="key that must have signed them")
    ] = None,
    generation: Annotated[
        int, typer.Option(min=0, help="accept the declared losses of this many reconciliations")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="everything found, as JSON")] = False,
) -> None:
    """Check a ledger, row by row, or a certificate, and name the first thing that is broken.

    Nothing is written. Exit status 1 if something is broken, 2 if it cannot be read. The last line
    says NOT AUTHENTICATED unless a signature was checked with --public-key.
    """
    from service.transparency.signing import is_public_key

    if public_key is not None and not is_public_key(public_key):
        raise build_failure(
            "--public-key: must be a key, 43 characters that `signing-key show` prints"
        )
    if "://" in target:
        kept = _read_kept(witness, checkpoint, public_key)
        doubt = _NO_KEY if public_key is None else ""
        doubt = doubt if kept.logs else _NOTHING_KEPT
        _database(target, kept, generation=generation, doubt=doubt, as_json=as_json)
    elif witness is not None or checkpoint is not None:
        raise build_failure(
            "--witness and --checkpoint are held against a database, not a file. "
            "Name a database of SQLite as sqlite:///FILE."
        )
    else:
        _certificate(Path(target), public_key, as_json=as_json)


def _read_kept(witness: Path | None, checkpoint: Path | None, public_key: str | None) -> "Kept":
    from service.transparency.verification.saved_heads import (
        Kept,
        KeptError,
        join_heads,
        of_checkpoints,
        of_witness,
    )

    try:
        seen = of_witness(witness, public_key) if witness else Kept()
        return join_heads(seen, of_checkpoints(checkpoint, public_key) if checkpoint else Kept())
    except KeptError as error:
        raise build_failure(str(error)) from None


def _database(url: str, kept: "Kept", *, generation: int, doubt: str, as_json: bool) -> None:
    import psycopg
    from sqlalchemy.exc import DBAPIError

    from service.storage import migrations
    from service.storage.engine import snapshot
    from service.transparency.verification.ledger import verify

    engine = _engine(url)
    try:
        migrations.require_current(engine)
        with snapshot(engine) as connection:
            report = verify(connection, kept, generation=generation)
    except (sqlite3.Error, psycopg.Error, DBAPIError) as error:
        raise build_failure(
            f"The database cannot be read: {' '.join(str(error).split())}"
        ) from None
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()
    if as_json:
        typer.echo(json.dumps(_record(report, kept) | {"authenticated": not doubt}, indent=2))
    else:
        _show(report, kept)
    if report.first is not None:
        raise typer.Exit(1)
    if not as_json:
        _conclude(doubt)


def _conclude(doubt: str) -> None:
    typer.echo("nothing is broken")
    if doubt:
        typer.echo(_UNAUTHENTICATED.format(doubt))


def _engine(url: str) -> "Engine":
    from service.settings import address_of

    try:
        address_of(url)
    except StartupError:
        raise build_failure(
            "TARGET: sqlite:///FILE, postgresql://... or a certificate's file."
        ) from None
    engine: Engine = present_engine(url)
    return engine


def _record(report: "VerificationReport", kept: "Kept") -> dict[str, Any]:
    return {
        "sound": report.first is None,
        "checked": dict(report.checked),
        "held_against": sorted(_sources(kept)),
        "broken": [one.record() for one in report.broken],
        "broken_total": report.total,
        "notes": report.notes,
    }


def _sources(kept: "Kept") -> set[str]:
    named = {head.source for log in kept.logs.values() for head in log.heads}
    return named | {log.source for log in kept.logs.values() if log.size}


def _count_text(count: int, what: str) -> str:
    """A count and its plural, or the singular of one."""
    one = {"entries": "entry", "branches": "branch", "leaves": "leaf"}.get(what, what[:-1])
    return f"{count:,} {what if count != 1 else one}"


def _show(report: "VerificationReport", kept: "Kept") -> None:
    counts = ", ".join(_count_text(count, what) for what, count in report.checked.items() if count)
    typer.echo(f"checked: {counts or 'an empty ledger'}")
    against = ", ".join(sorted(_sources(kept)))
    typer.echo(f"held against: {against or 'itself alone; give --witness or --checkpoint'}")
    for note in report.notes:
        typer.echo(f"note: {note}")
    found = report.broken
    for one in found[:_SHOWN]:
        typer.echo(f"broken: {one.text}")
    if report.total > len(found[:_SHOWN]):
        typer.echo(f"and {report.total - len(found[:_SHOWN]):,} more; --json lists them")


def _certificate(path: Path, public_key: str | None, *, as_json: bool) -> None:
    from service.transparency.certificates.envelope import InvalidCertificateError
    from service.transparency.certificates.verify import verify_file

    try:
        with path.open("rb") as file:
            if file.read(len(_SQLITE)) == _SQLITE:
                raise build_failure(f"{path} is a database: name it as sqlite:///{path}")
        found = verify_file(path, public_key=public_key)
    except OSError as error:
        raise build_failure(f"{path}: {error.strerror}") from None
    except InvalidCertificateError as error:
        raise build_failure(f"broken: {path}: {error}", code=1) from None
    if as_json:
        kept = ("subject", "key_id", "pinned", "checks", "notes")
        shown = {name: getattr(found, name) for name in kept}
        told = {"sound": True, "authenticated": found.pinned, **shown}
        typer.echo(json.dumps(told, indent=2))
        return
    typer.echo(f"certificate of {found.subject}, signed by key {found.key_id}")
    for line in found.checks:
        typer.echo(f"checked: {line}")
    for line in found.notes:
        typer.echo(f"note: {line}")
    _conclude("" if found.pinned else _NO_KEY)
