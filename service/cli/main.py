"""The command line. What a command needs is loaded when it is called, and not before."""

import gc
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from service.cli.options import DatabaseOption, failed_to_start, open_engine, settings_of
from service.errors import LedgerError, StartupError

# Commands, or groups of them, by name: where each is found.
ELSEWHERE: Final = {
    "epsilon": "service.cli.offline:epsilon",
    "calibrate": "service.cli.offline:calibrate",
    "bounds": "service.cli.offline:bounds",
    "bound": "service.cli.offline:bound",
    "openapi": "service.cli.offline:openapi",
    "audit": "service.cli.activity:audit",
    "backup": "service.cli.operations:backup",
    "restore": "service.cli.operations:restore",
    "doctor": "service.cli.operations:doctor",
    "probe": "service.cli.probe:probe",
    "figures": "service.cli.figures.command:figures",
    "restate": "service.cli.verify:restate",
    "verify": "service.cli.verify:verify",
    "checkpoint": "service.cli.transparency:checkpoint",
    "witness": "service.cli.transparency:witness",
    "recover": "service.cli.transparency:recover",
    "reconcile": "service.cli.transparency:reconcile",
    "as-new-ledger": "service.cli.transparency:as_new_ledger",
    "runs": "service.cli.runs:runs",
    "requests": "service.cli.requests:requests",
    "incidents": "service.cli.incidents:incidents",
    "watch": "service.cli.watch:watch",
    "report": "service.cli.runs:report",
    "keys": "service.cli.keys:keys",
    "signing-key": "service.cli.transparency:signing_key",
}
GC_THRESHOLD: Final = 500_000  # objects: what is imported (270,000) is not searched for garbage
_PLAIN: Final[dict[str, Any]] = {"add_completion": False, "pretty_exceptions_enable": False}


class Commands(TyperGroup):
    """All commands; each of ELSEWHERE is imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names, in the order of the help."""
        return [*super().list_commands(ctx), *ELSEWHERE]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None if there is none of that name."""
        if cmd_name not in ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = ELSEWHERE[cmd_name].partition(":")
        found = getattr(import_module(module), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(**_PLAIN)
            alone.command()(found)
            found = alone
        command = get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="dpledger",
    help="Record and limit the privacy loss of machine-learning training.",
    cls=Commands,
    no_args_is_help=True,
    **_PLAIN,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpledger {version('dpledger')}")
        raise typer.Exit


@app.callback()
def options(
    _version_wanted: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="print the version"),
    ] = False,
) -> None:
    """Record and limit the privacy loss of machine-learning training."""


def _stop(_number: int, _frame: object) -> None:
    # Uvicorn raises the signal again once every accepted request is answered: that is success.
    raise SystemExit(0)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="address to bind; or DPLEDGER_HOST")] = None,
    port: Annotated[int | None, typer.Option(help="port to bind; or DPLEDGER_PORT")] = None,
    database: DatabaseOption = None,
    role: Annotated[
        str | None, typer.Option(help="all, reader or writer; or DPLEDGER_ROLE")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="processes that share the port, on PostgreSQL; or DPLEDGER_WORKERS"),
    ] = None,
    shared: Annotated[str | None, typer.Option(hidden=True)] = None,
    silent: Annotated[bool, typer.Option("--silent", hidden=True)] = False,
) -> None:
    """Migrate the database, then serve until interrupted; finish accepted requests."""
    from service.cli.serving.workers import shared_sockets
    from service.web.server import listening, share_arenas

    share_arenas()
    settings = settings_of(host=host, port=port, database_url=database, role=role, workers=workers)
    try:
        if shared is not None:
            _serve(settings, shared_sockets(shared), greets=not silent)
            return
        with listening(settings.host, settings.port) as sockets:  # before any file is made
            if settings.workers == 1:
                _serve(settings, sockets)
            else:
                given = {"--host": host, "--port": port, "--database": database, "--role": role}
                _serve_by_workers(settings, sockets, given)
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None


def _serve_by_workers(
    settings: Any, sockets: list[socket.socket], given: Mapping[str, object]
) -> None:
    from service.cli.serving.workers import Workers, require_several
    from service.identity.first_key import first_key

    require_several(settings)
    _migrate(settings.database_url, allowed=lambda: first_key(settings))
    options = [
        word for name, value in given.items() if value is not None for word in (name, str(value))
    ]
    raise typer.Exit(Workers(options, sockets, settings.workers).run())


def _serve(settings: Any, sockets: list[socket.socket], *, greets: bool = True) -> None:
    from service.identity.first_key import first_key
    from service.storage import migrations

    engine = open_engine(settings.database_url)
    migrated = migrations.upgrade_apart(engine, allowed=lambda: first_key(settings))
    # Loaded meanwhile.
    import uvicorn

    from service import telemetry
    from service.app import create_app
    from service.cli.serving.start_message import Greeting
    from service.web.server import Server, connection_limits, settle

    begun = migrated()
    application = create_app(settings)
    telemetry.configure()
    if begun:
        logging.getLogger("dpledger").warning("there was no ledger: a new one was begun")
    config = uvicorn.Config(
        application,
        log_config=None,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        server_header=False,
        **connection_limits(settings),
    )
    settle()
    # From here on: what a signal raises within a collection of garbage would be lost.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    addresses = [(one.getsockname()[0], one.getsockname()[1]) for one in sockets]
    greeting = Greeting(settings.host, addresses, application.state.keys)
    server = Server(
        config,
        drain_seconds=settings.drain_seconds,
        on_start=greeting.begin if greets else None,
        on_stop=greeting.end,
    )
    try:
        server.run(sockets)
    finally:
        greeting.end()


@app.command()
def migrate(
    database: DatabaseOption = None,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="start a new ledger in place of a lost one, which cannot be undone"
        ),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            help="divide the entries of a new PostgreSQL ledger into so many tables, by dataset",
        ),
    ] = None,
) -> None:
    """Migrate the database's schema to this version."""
    _migrate(database, new=new)
    if partitions is not None:
        _divide(database, partitions)


def _divide(database: str | None, partitions: int) -> None:
    from service.storage.partitions import partition_entries

    engine = open_engine(database)
    try:
        divided_now = partition_entries(engine, partitions)
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()
    typer.echo(f"The entries are in {partitions} parts{'' if divided_now else ' already'}.")


def _migrate(
    database: str | None, *, new: bool = False, allowed: Callable[[], object] | None = None
) -> bool:
    from service.storage import migrations

    engine = open_engine(database, new=new)
    try:
        return migrations.upgrade(engine, new=new, allowed=allowed)
    except (StartupError, LedgerError) as error:
        raise failed_to_start(error) from None
    finally:
        engine.dispose()


@app.command()
def demo(
    incidents: Annotated[
        bool, typer.Option("--incidents", help="serve a temporary ledger with incidents instead")
    ] = False,
) -> None:
    """Train a real classifier twice against a temporary service and compare the epsilons.

    With --incidents, serve a temporary ledger in which incidents have happened, to practise on.
    """
    if incidents:
        from service.cli.serving.practice import main as practise

        practise()
    from service.cli.demo import main as run_demo

    run_demo()


def main() -> None:
    """Run the command line."""
    os.umask(0o077)  # databases, keys and backups that it makes are their owner's alone
    # Before NumPy is loaded: arrays are small, and threads for them cost more than they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(GC_THRESHOLD)
    try:
        app()
    finally:
        gc.freeze()  # nor is it at the end: the process returns all of its memory


if __name__ == "__main__":
    main()
