"""Trainers of one try, and what the database holds of theirs in the end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dpledger_client import Client, gaussian, poisson

from benchmarks.failovers.cluster import value
from benchmarks.failovers.counting import Told
from benchmarks.failovers.networks import Machine
from benchmarks.fault_trainers import DELTA, RELATION, SIZE, Trainer, open_dataset, step
from benchmarks.servers import START_TOKEN, create, mark

RECORDING: Final = 2  # trainers of the dataset without a limit
CHARGING: Final = 2  # trainers that share the limit of another
STEP_SECONDS: Final = 0.02
CHARGE_SECONDS: Final = 0.05
LIMIT: Final = 1.05  # epsilon of the dataset with a limit
ROOM: Final = 141  # steps for which its filter has room
LEFT: Final = 20  # of them, when the trainers begin
TIMEOUT_SECONDS: Final = 3.0  # of a request
GO_ON_SECONDS: Final = 90.0  # by which every trainer has gone on


@dataclass(slots=True)
class Leaser(threading.Thread):
    """A training with the real client, which leases and spools its steps."""

    port: int
    dataset: str
    spool: Path
    run_name: str = field(default_factory=lambda: mark("leased"))
    taken: int = 0
    fault: str = ""
    _stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread.__init__(self, daemon=True)

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        """Take steps until the end, then finish the run."""
        try:
            with Client(f"http://127.0.0.1:{self.port}", START_TOKEN) as client:
                run = client.start_run(
                    self.run_name, self.dataset, delta=DELTA, spool=self.spool,
                    mechanism=gaussian(noise_multiplier=1.1),
                    sampling=poisson(sampling_probability=0.01),
                )  # fmt: skip
                while not self._stopping.wait(STEP_SECONDS):
                    run.step()
                    self.taken += 1
                run.finish()
        except Exception as error:
            self.fault = repr(error)

    def stop(self) -> None:
        """Finish the run."""
        self._stopping.set()
        self.join(GO_ON_SECONDS)
        if self.is_alive():
            self.fault = "the client did not finish its run"


@dataclass(slots=True)
class Load:
    """The trainers of one try."""

    recording: list[Trainer]
    charging: list[Trainer]
    leaser: Leaser
    limited: str  # name of the dataset with a limit

    def told(self) -> list[Told]:
        """What all remember; the client's own steps are all recorded once its run has ended."""
        trainers = [*self.recording, *self.charging]
        leased = Told(self.leaser.run_name, self.leaser.taken, self.leaser.taken)
        return [*(Told(one.run, one.acknowledged, one.under_way) for one in trainers), leased]

    def wait_until_all_go_on(self, since: float) -> int:
        """Wait until every trainer without a limit has gone on; how many have not."""
        deadline = time.monotonic() + GO_ON_SECONDS
        waiting = list(self.recording)
        while waiting and time.monotonic() < deadline:
            waiting = [one for one in waiting if one.first_after(since) is None]
            time.sleep(0.02)
        return len(waiting)


@contextmanager
def training(port: int, folder: Path) -> Iterator[Load]:
    """Trainers that send to a service until the block ends."""
    free, limited = mark("free"), mark("limited")
    open_dataset(port, free)
    body = {"name": limited, "dataset_size": SIZE, "neighboring_relation": RELATION,
            "privacy_unit": "example",
            "budget": {"epsilon": LIMIT, "delta": DELTA}}  # fmt: skip
    create(port, "/v1/datasets", body)
    before = mark("before")
    create(port, "/v1/runs", {"name": before, "writer": f"writer-of-{before}", "dataset": limited})
    used = {"mode": "charge", "events": [step(0, ROOM - LEFT)]}
    create(port, f"/v1/runs/{before}/events", used)
    recording = [Trainer([port], free, TIMEOUT_SECONDS, STEP_SECONDS) for _ in range(RECORDING)]
    charging = [
        Trainer([port], limited, TIMEOUT_SECONDS, CHARGE_SECONDS, "charge") for _ in range(CHARGING)
    ]
    load = Load(recording, charging, Leaser(port, free, folder), limited)
    for one in [*recording, *charging]:
        one.open()
    parts: list[Trainer | Leaser] = [*recording, *charging, load.leaser]
    for part in parts:
        part.start()
    try:
        yield load
    finally:
        for part in parts:
            part.stop()


def spans(machine: Machine, run: str) -> list[tuple[int, int]]:
    """The entries of a run in a machine's own database, read past the service."""
    found = value(
        machine,
        "SELECT coalesce(json_agg(json_build_array(first_step, steps)), '[]') FROM entries "
        "JOIN runs ON runs.id = entries.run_id WHERE runs.name = %s",
        run,
    )
    return [(first, steps) for first, steps in found]
