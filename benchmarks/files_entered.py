"""How many of our own files a request enters, beside how many it should.

    python benchmarks/files_entered.py [--list]

A server runs in this process on a temporary SQLite ledger. Each request is sent once before it is
counted, so that nothing is loaded or remembered for the first time; before a guarantee and a
certificate are counted, one more step is recorded, so that neither comes from a cache. The fourth
line is one epsilon in the accounting core, without the service. A file is entered when a function
of it is called, in whatever thread; a file that is not entered by every repetition belongs to work
that the process does now and then, and is not counted.
"""

import argparse
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, where `service` is a module of its own.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import uvicorn

import accounting
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson, Span
from benchmarks.bars import at_most, print_bars
from benchmarks.servers import ROOT, ask, free_port, migrated, new_dataset, new_run
from service.app import create_app
from service.settings import Settings
from service.web.server import Server, connection_limits

OURS: Final = tuple(f"{ROOT / name}/" for name in ("service", "accounting"))
REPETITIONS: Final = 3
GOALS: Final = {"append": 28, "guarantee": 45, "certificate": 60, "epsilon in the core": 16}
MECHANISM: Final = {"kind": "gaussian", "noise_multiplier": 2.0}
SAMPLING: Final = {"kind": "poisson", "sampling_probability": 0.01}


class Entered:
    """The files of ours whose functions are called."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def watch(self) -> None:
        """Look at every call of this thread and of all that are started from here on."""
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._files is not None and event == "call":
            self._files.add(frame.f_code.co_filename)

    def during(self, work: Callable[[], object]) -> set[str]:
        """The files that some work enters, from the root of the repository."""
        found: set[str] = set()
        self._files = found
        try:
            work()
        finally:
            self._files = None
        return {str(Path(name).relative_to(ROOT)) for name in found if name.startswith(OURS)}


@contextmanager
def serving(folder: Path) -> Iterator[tuple[int, str]]:
    """A server in a thread of this process: its port and an admin's key."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    key, port = migrated(url), free_port()
    settings = Settings(database_url=url)
    config = uvicorn.Config(
        create_app(settings),
        host="127.0.0.1",
        port=port,
        log_config=None,
        **connection_limits(settings),
    )
    started = threading.Event()
    server = Server(config, on_start=started.set)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        started.wait()
        yield port, key
    finally:
        server.should_exit = True
        thread.join()


class Trainer:
    """Records one step after another, and asks what they come to."""

    def __init__(self, port: int, key: str) -> None:
        self._port, self._key, self._step = port, key, 0
        new_dataset(port, "data", key, budget={"epsilon": 8.0, "delta": 1e-5})
        new_run(port, "run", "data", key)

    def append(self) -> None:
        """Record the next step."""
        event = {
            "first_step": self._step,
            "steps": 1,
            "mechanism": MECHANISM,
            "sampling": SAMPLING,
        }
        self._ask("POST", "/v1/runs/run/events", {"events": [event]})
        self._step += 1

    def guarantee(self) -> None:
        """Ask for the run's guarantee."""
        self._ask("GET", "/v1/runs/run/guarantee")

    def certificate(self) -> None:
        """Ask for the run's certificate."""
        self._ask("GET", "/v1/runs/run/certificate")

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        status, answer = ask(self._port, method, path, body, key=self._key)
        if status not in (200, 201):
            raise RuntimeError(f"{method} {path} answered {status}: {answer}")


def epsilon(steps: int) -> None:
    """One epsilon of so many steps; another number of them is another question."""
    event = Event(
        mechanism=Gaussian(noise_multiplier=2.0), sampling=Poisson(sampling_probability=0.01)
    )
    counts = accounting.count_events([[Span(event=event, steps=steps)]])
    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    accounting.guarantee(counts, relation=relation, delta=1e-5)


def entered() -> dict[str, set[str]]:
    """The files that each kind of request enters."""
    seen = Entered()
    seen.watch()  # before the threads of the server are started

    def of(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> set[str]:
        before()
        work()
        found = []
        for _ in range(REPETITIONS):
            before()
            found.append(seen.during(work))
        return set.intersection(*found)

    with (
        TemporaryDirectory(prefix="dpledger-files-", ignore_cleanup_errors=True) as name,
        serving(Path(name)) as (port, key),
    ):
        trainer = Trainer(port, key)
        requests = (
            of(trainer.append),
            of(trainer.guarantee, trainer.append),
            of(trainer.certificate, trainer.append),
        )
    counts = iter(range(1000, 2000))
    return dict(zip(GOALS, (*requests, of(lambda: epsilon(next(counts)))), strict=True))


def main() -> int:
    """Count, list where that is asked for, and print the goals beside the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="list the files of each")
    listed = parser.parse_args().list
    found = entered()
    for what, files in found.items():
        if listed:
            print(f"\n{what}: {len(files)} files", *sorted(files), sep="\n  ")
    bars = [at_most(what, len(files), GOALS[what], "{:.0f}") for what, files in found.items()]
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
