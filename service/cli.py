"""The commands serve, migrate, demo, epsilon, calibrate, bounds, bound, openapi, figures, keys."""

import json
import logging
import os
import signal
import socket
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.table import Column, Table

from service.commands.audit import audit
from service.commands.keys import keys
from service.commands.log import (
    as_new_ledger,
    checkpoint,
    reconcile,
    recover,
    signing_key,
    witness,
)
from service.commands.opening import (
    DatabaseOption,
    engine_of,
    failed,
    failed_to_start,
    settings_of,
)
from service.commands.operations import backup, doctor, licences, restore
from service.commands.restate import restate
from service.commands.rounding import lower, upper
from service.commands.runs import report, runs
from service.commands.verify import verify
from service.commands.watch import watch
from service.errors import InvalidRequestError, LedgerError, StartupError
from service.figures.command import figures

app = typer.Typer(
    name="dpledger",
    help="A ledger and meter for the privacy that training spends.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(keys, name="keys")
app.add_typer(signing_key, name="signing-key")
_out = Console()


def _stopped(_number: int, _frame: object) -> None:
    # Uvicorn raises the signal again once every accepted request is answered: that is success.
    raise SystemExit(0)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind; or DPLEDGER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="port to bind; or DPLEDGER_PORT")] = None,
    database: DatabaseOption = None,
) -> None:
    """Migrate the database, then serve until interrupted; what was accepted is finished."""
    from service.server import listening, share_arenas

    share_arenas()
    settings = settings_of(host=host, port=port, database_url=database)
    try:
        with listening(settings.host, settings.port) as sockets:  # before any file is made
            _serve(settings, sockets)
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None


def _serve(settings: Any, sockets: list[socket.socket]) -> None:
    import uvicorn

    from service import logs
    from service.app import create_app
    from service.connections import bounded
    from service.greeting import greeting
    from service.server import Server, settle

    begun = migrate(settings.database_url)
    application = create_app(settings)
    logs.configure()
    if begun:
        logging.getLogger("dpledger").warning("there was no ledger: a new one was begun")
    config = uvicorn.Config(
        application,
        log_config=None,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        server_header=False,
        **bounded(settings),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stopped)
    settle()
    with greeting(settings.host, sockets[0].getsockname()[1], application.state.keys) as greet:
        Server(config, drain_seconds=settings.drain_seconds, on_start=greet).run(sockets)


@app.command()
def migrate(
    database: DatabaseOption = None,
    new: Annotated[
        bool, typer.Option("--new", help="begin a new ledger where one was lost; nothing returns")
    ] = False,
) -> bool:
    """Bring the database's schema to this version."""
    from service import schema_version

    engine = engine_of(database, new=new)
    try:
        return schema_version.upgrade(engine, new=new)
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()


@app.command()
def demo() -> None:
    """Train a real classifier twice against a temporary service and compare the epsilons."""
    from service.demo import main as run_demo

    run_demo()


def _document(file: Path) -> Any:
    from service.documents import LedgerDocument
    from service.http import parse_json
    from service.problems import fault_list

    try:
        body = file.read_bytes()
    except OSError as error:
        raise failed(f"{file}: {error.strerror}") from None
    try:
        return LedgerDocument.model_validate(parse_json(body, where=str(file)))
    except ValidationError as error:
        fault = fault_list(list(error.errors()))[0]
        raise failed(f"{file}: {fault['location']}: {fault['message']}") from None
    except LedgerError as error:
        raise failed(error.detail) from None


@app.command()
def epsilon(
    ledger: Annotated[Path, typer.Argument(help="a ledger document", metavar="LEDGER.json")],
    delta: Annotated[float, typer.Option(help="in (0, 1)")],
    accountant: Annotated[str, typer.Option(help="best, pld, rdp, gdp or odometer")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="the guarantee as JSON")] = False,
) -> None:
    """Recompute what a ledger document guarantees, offline."""
    from accounting.math_library import InaccurateLibraryError
    from service.calculate import account

    if not 0 < delta < 1:
        raise failed("--delta: must lie in (0, 1)")
    document = _document(ledger)
    try:
        answer = account(document, delta=delta, accountant=accountant)
    except InvalidRequestError as error:
        raise failed(f"{ledger}: {error.detail}") from None
    except ValueError as error:
        raise failed(f"--accountant: {error}") from None
    except InaccurateLibraryError as error:
        raise failed(str(error)) from None
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    _show(answer)
    for left in answer.outside_guarantee:
        typer.echo(f"outside this guarantee: the verdict on the batch sizes of {left.branch}")


@app.command()
def calibrate(
    ledger: Annotated[Path, typer.Argument(help="a ledger document", metavar="LEDGER.json")],
    epsilon: Annotated[float, typer.Option(help="not to be passed; in (0, 1e6]")],
    delta: Annotated[float, typer.Option(help="in (0, 1)")],
    parameter: Annotated[
        str, typer.Option("--for", help="noise_multiplier, steps or sampling_probability")
    ],
    accountant: Annotated[str, typer.Option(help="best, pld, rdp, gdp or odometer")] = "best",
    as_json: Annotated[bool, typer.Option("--json", help="the answer as JSON")] = False,
) -> None:
    """Find the least noise, the most steps or the highest rate that keep to an epsilon.

    Noise is scaled by one factor in all events and the least is named; steps are those of the last
    event; the rate is one for all Poisson samplings, truncated ones among them.
    """
    from accounting.accountants import ACCOUNTANTS, BEST
    from accounting.calibration import Parameter
    from accounting.math_library import InaccurateLibraryError
    from service.calculate import calibrated
    from service.plan_responses import plan_answer

    if parameter not in list(Parameter):
        raise failed(f"--for: must be one of {', '.join(Parameter)}")
    if accountant not in (BEST, *ACCOUNTANTS):
        raise failed(f"--accountant: must be one of {', '.join((BEST, *ACCOUNTANTS))}")
    if not 0 < delta < 1:
        raise failed("--delta: must lie in (0, 1)")
    document, wanted = _document(ledger), Parameter(parameter)
    try:
        found = calibrated(
            document, parameter=wanted, epsilon=epsilon, delta=delta, accountant=accountant
        )
    except InvalidRequestError as error:
        raise failed(error.detail) from None
    except InaccurateLibraryError as error:
        raise failed(str(error)) from None
    answer = plan_answer(found.calibrated.guarantee, balance=found.balance, solved=found.calibrated)
    if as_json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    typer.echo(f"{parameter} {found.calibrated.value!r}")
    for index, noise in found.noises():
        typer.echo(f"events[{index}].mechanism.noise_multiplier {noise!r}")
    _show(answer)


def _show(answer: Any) -> None:
    table = Table(show_header=False, box=None)
    if answer.epsilon is None:
        table.add_row("epsilon", f"none: {answer.reason}")
    else:
        table.add_row("epsilon", f"{upper(answer.epsilon)} (upper bound)")
    if answer.epsilon_lower is not None:
        table.add_row("epsilon_lower", f"{lower(answer.epsilon_lower)} (some dataset loses this)")
    table.add_row("delta", repr(answer.delta))
    for name in ("neighboring_relation", "accountant", "bound", "status", "valid_for", "steps"):
        table.add_row(name, str(getattr(answer, name)))
    table.add_row("assumptions", ", ".join(answer.assumptions) or "none")
    if answer.unamplified_epsilon is not None:
        table.add_row("unamplified", upper(answer.unamplified_epsilon))
    for other in answer.alternatives:
        table.add_row("alternative", f"{upper(other.epsilon)} {other.bound} ({other.status})")
    _out.print(table)
    if (smaller := answer.smaller_bound) is not None:
        typer.echo(
            f"{smaller.bound} proves epsilon {upper(smaller.epsilon)} at delta {smaller.delta!r}. "
            f'It is {smaller.status}, which "accept" does not name'
        )
    if (poisson := answer.poisson_would_say) is not None:
        claim = f"Poisson accounting would say {upper(poisson.epsilon)}"
        typer.echo(f"{claim}: not applicable to batches taken in turn")


@app.command()
def bounds(
    as_json: Annotated[bool, typer.Option("--json", help="the registry as JSON")] = False,
) -> None:
    """List every theorem the accountant may use."""
    from service.registry import bound_answers

    answers = bound_answers()
    if as_json:
        typer.echo(json.dumps([answer.model_dump() for answer in answers.values()], indent=2))
        return
    table = Table(
        Column("id", no_wrap=True),
        "status",
        "relations",
        Column("source", overflow="fold"),
        box=None,
    )
    for answer in answers.values():
        relations = "all" if len(answer.relations) == 3 else ", ".join(answer.relations)
        table.add_row(answer.id, answer.status, relations, answer.source)
    _out.print(table)


@app.command()
def bound(
    identifier: Annotated[str, typer.Argument(help="as dpledger bounds lists it", metavar="ID")],
    params: Annotated[str, typer.Option(help="its parameters, a JSON object")],
) -> None:
    """Evaluate a theorem of the registry and print its value as JSON."""
    from service.calculate import evaluated
    from service.http import parse_json
    from service.registry import bound_answers

    try:
        typer.echo(json.dumps(evaluated(identifier, parse_json(params.encode(), where="--params"))))
    except (LedgerError, UnicodeEncodeError) as error:
        raise failed(" ".join(str(error).split())) from None
    found = bound_answers()[identifier]
    if found.counterexample:  # what is not proved never passes for a bound
        typer.echo(f"This is {found.status} and bounds nothing. {found.counterexample}", err=True)


@app.command()
def openapi() -> None:
    """Print the OpenAPI document of the HTTP interface."""
    from service.app import openapi_document

    typer.echo(json.dumps(openapi_document(), indent=1, sort_keys=True))


for command in (
    audit,
    backup,
    restore,
    doctor,
    licences,
    figures,
    restate,
    verify,
    checkpoint,
    witness,
    recover,
    reconcile,
    as_new_ledger,
    runs,
    watch,
    report,
):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    os.umask(0o077)  # databases, keys and backups that it makes are their owner's alone
    app()


if __name__ == "__main__":
    main()
