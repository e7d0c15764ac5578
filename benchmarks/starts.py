"""Seconds from the start of a service to its first answer, and the memory that it holds.

    python benchmarks/starts.py [--count 7] [--mlflow PYTHON]

A server is a process of its own: it is started, asked until it says that it is ready, and left
alone for three seconds, after which its resident memory is read. A service then takes a first step
and answers with a first guarantee, and its memory is read again. The servers take turns, and
medians are printed: `dpledger serve` on a new SQLite ledger and on one that is there, the
framework's own endpoint (benchmarks/bare.py), and an MLflow tracking server when there is a Python
that has MLflow: --mlflow, else DPLEDGER_BENCH_MLFLOW; its memory is that of all its processes.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, where `service` is another file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bars import at_most, print_bars
from benchmarks.conditions import conditions
from benchmarks.servers import (
    READY_SECONDS,
    START_TOKEN,
    Server,
    ServerError,
    ask,
    create,
    new_dataset,
    new_run,
    service,
)
from benchmarks.service import MLFLOW, bare, mlflow
from service.storage import migrations
from service.storage.engine import connect

COUNT: Final = 7
LOOK_SECONDS: Final = 0.005  # between two questions whether a server is ready
REST_SECONDS: Final = 3.0
START_BAR: Final = 1.0  # seconds
MEMORY_BAR: Final = 120.0  # MiB
NEW: Final = "dpledger serve, a new ledger"
THERE: Final = "dpledger serve, a ledger that is there"
STEP: Final = {
    "first_step": 0,
    "steps": 1,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
    "sampling": {"kind": "poisson", "sampling_probability": 0.0042667},
}


@dataclass(slots=True)
class Measured:
    """What one server took, start after start."""

    seconds: list[float] = field(default_factory=list)
    resting: list[float] = field(default_factory=list)  # MiB
    used: list[float] = field(default_factory=list)  # MiB, after the first step and guarantee


def new_ledger(folder: Path) -> Server:
    """A service whose ledger does not exist yet."""
    return service(f"sqlite:///{folder / 'ledger.db'}", folder)


def ledger_there(folder: Path) -> Server:
    """A service whose ledger is there, and empty."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine, new=True)
    engine.dispose()
    return service(url, folder)


def seconds_to_ready(server: Server) -> float:
    """Start a server and wait until it answers."""
    began = time.perf_counter()
    server.start()
    while not server.answers():
        ended = server.process is None or server.process.poll() is not None
        if ended or time.perf_counter() - began > READY_SECONDS:
            raise ServerError(f"{server.arguments[0]} did not start:\n{server.log.read_text()}")
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - began


def use(server: Server) -> None:
    """Record a first step, and ask for a first guarantee."""
    new_dataset(server.port, "data", START_TOKEN, budget={"epsilon": 8.0, "delta": 1e-5})
    new_run(server.port, "run", "data", START_TOKEN)
    create(server.port, "/v1/runs/run/events", {"events": [STEP]})
    status, answer = ask(server.port, "GET", "/v1/runs/run/guarantee")
    if status != 200:
        raise ServerError(f"The guarantee was answered {status}: {answer}")


def start_once(make: Callable[[Path], Server], found: Measured, *, uses: bool) -> None:
    """Start a server in a folder of its own, and add what it took."""
    with TemporaryDirectory() as folder:
        server = make(Path(folder))
        try:
            found.seconds.append(seconds_to_ready(server))
            time.sleep(REST_SECONDS)
            found.resting.append(server.group_memory_mib())
            if uses:
                use(server)
                found.used.append(server.group_memory_mib())
        finally:
            server.stop()


def shown(name: str, found: Measured) -> str:
    """A line of the table."""
    used = f"{statistics.median(found.used):9.1f}" if found.used else f"{'':9}"
    return (
        f"{name:40} {statistics.median(found.seconds):8.2f} {min(found.seconds):7.2f} "
        f"{statistics.median(found.resting):9.1f} {used}"
    )


def servers(python: str | None) -> Iterator[tuple[str, Callable[[Path], Server]]]:
    """How each server is made, by name."""
    yield NEW, new_ledger
    yield THERE, ledger_there
    yield "bare endpoint", lambda folder: bare(folder).server
    if python:
        yield "MLflow", lambda folder: mlflow(folder, python).server
    else:
        print(f"MLflow: not measured; give --mlflow or set {MLFLOW}.")


def main() -> None:
    """Print the table and the bars; end with 1 where one is not reached."""
    parser = argparse.ArgumentParser(description="start and memory of services")
    parser.add_argument("--count", type=int, default=COUNT, help="starts of each server")
    parser.add_argument("--mlflow", default=os.environ.get(MLFLOW), help="a Python that has it")
    given = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with conditions():
        made = dict(servers(given.mlflow))
        for name, make in made.items():  # bytecode is written, files are read
            start_once(make, Measured(), uses=name in (NEW, THERE))
        found = {name: Measured() for name in made}
        for _ in range(given.count):
            for name, make in made.items():
                start_once(make, found[name], uses=name in (NEW, THERE))
        print(f"\n{'':40} {'ready s':>8} {'least':>7} {'rest MiB':>9} {'used MiB':>9}")
        for name, one in found.items():
            print(shown(name, one))
    seconds = statistics.median(found[NEW].seconds)
    memory = statistics.median(found[NEW].resting)
    bars = [
        at_most("seconds to the first answer, a new ledger", seconds, START_BAR),
        at_most("MiB of memory at rest, a new ledger", memory, MEMORY_BAR, "{:.1f}"),
    ]
    sys.exit(not print_bars(bars))


if __name__ == "__main__":
    main()
