"""The command restate: what was certified, looked at again."""

from typing import Annotated, Any

import typer

from service.commands.opening import DatabaseOption, failed, ready_engine
from service.errors import LedgerError


def restate(
    database: DatabaseOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="append nothing")] = False,
) -> None:
    """Compute again what earlier versions certified; exit 1 if something was too low."""
    from service.certificates.restate import restate_all

    low, count, engine = 0, 0, ready_engine(database)
    try:
        for found in restate_all(engine, dry_run=dry_run):
            count, low = count + 1, low + found.too_low
            for line in _lines(found.content):
                typer.echo(line)
    except (LedgerError, ArithmeticError) as error:
        raise failed(str(error)) from None
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
