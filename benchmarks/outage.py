"""The service is killed under a training that leases its steps, and comes back much later.

    python benchmarks/outage.py [--outage-seconds 60] [--steps-a-second 200]

Training must not notice: it goes on under what was leased before. In the end nothing may be lost
or counted twice, and epsilon must be that of the same steps told in one go, to the bit.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dpledger_client import Client, Run, gaussian, poisson

from benchmarks.bars import Bar, at_least, at_most, print_bars
from benchmarks.servers import DATASET_SIZE, START_TOKEN, mark, running, service

BEFORE_SECONDS: Final = 20.0  # in which leases grow: by then one lasts for ten minutes
AFTER_SECONDS: Final = 5.0
WAITED_SECONDS: Final = 0.1  # a step that took longer has waited for something
DELTA: Final = 1e-5
BUDGET: Final = {"epsilon": 1e6, "delta": DELTA}  # so much that it never binds
WHAT: Final[dict[str, Any]] = {
    "mechanism": gaussian(noise_multiplier=1.1),
    "sampling": poisson(sampling_probability=0.001),
}


class Killable(Protocol):
    """A service on this machine, such as benchmarks.servers.Server."""

    port: int

    def kill(self) -> None:
        """End it at once."""

    def start(self) -> None:
        """Start it again at its port."""

    def answers(self) -> bool:
        """Whether it takes requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """How long the service is away, and how fast training is."""

    seconds: float = 60.0
    before_seconds: float = BEFORE_SECONDS
    after_seconds: float = AFTER_SECONDS
    steps_a_second: float = 200.0


@dataclass(slots=True, kw_only=True)
class Report:
    """What a training came to."""

    steps: dict[str, int] = field(default_factory=dict)  # taken before, during and after
    latencies: list[float] = field(default_factory=list)  # seconds of each call of step()
    unsent: int = 0  # steps that waited when the service came back
    recorded: int = 0
    reserved: float = 0.0  # nats, in the end
    epsilon: float = 0.0
    plain: float = 0.0  # of as many steps that were told in one go
    planned: float = 0.0  # of as many steps, by the stateless plan


def train(run: Run, until: Callable[[], bool], outage: Outage, latencies: list[float]) -> int:
    """Take a step, and others until something has come; how many."""
    first = run.next_step
    while run.next_step == first or not until():
        start = time.perf_counter()
        run.step()
        latencies.append(time.perf_counter() - start)
        time.sleep(1 / outage.steps_a_second)
    return run.next_step - first


def lasting(seconds: float) -> Callable[[], bool]:
    """Whether the time is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def hold(server: Killable, folder: Path, outage: Outage) -> Report:
    """Train through an outage of a service that runs."""
    report, name = Report(), mark("outage")
    with Client(f"http://127.0.0.1:{server.port}", START_TOKEN) as client:
        for dataset in (name, f"{name}-plain"):
            client.create_dataset(
                dataset,
                dataset_size=DATASET_SIZE,
                neighboring_relation="add_or_remove_one",
                privacy_unit="example",
                budget=BUDGET,
            )
        run = client.start_run(name, name, delta=DELTA, spool=folder, **WHAT)
        report.steps["before"] = train(
            run, lasting(outage.before_seconds), outage, report.latencies
        )
        server.kill()
        # Not by the thread that trains: a step may wait for the service.
        back = threading.Timer(outage.seconds, server.start)
        back.start()
        report.steps["during"] = train(run, lasting(outage.seconds), outage, report.latencies)
        report.unsent = run.unsent_steps
        back.join()
        report.steps["after"] = train(
            run, _and(server.answers, lasting(outage.after_seconds)), outage, report.latencies
        )
        run.finish()
        with client.start_run(
            f"{name}-plain", f"{name}-plain", mode="observe", delta=DELTA, spool=folder, **WHAT
        ) as plain:
            plain.step(steps=run.next_step)
        report.recorded = client.run(name)["steps"]
        report.reserved = client.dataset(name)["reserved"]
        report.epsilon = client.guarantee(name)["epsilon"]
        report.plain = client.guarantee(f"{name}-plain")["epsilon"]
        event = {"steps": run.next_step, **WHAT}
        report.planned = client.plan(
            neighboring_relation="add_or_remove_one", events=[event], delta=DELTA
        )["epsilon"]
    return report


def _and(here: Callable[[], bool], over: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: over() and here()


def bars(report: Report) -> list[Bar]:
    """What must hold."""
    taken = sum(report.steps.values())
    waited = sum(one > WAITED_SECONDS for one in report.latencies)
    return [
        at_least("steps taken while the service was away", report.steps["during"], 1, "{:.0f}"),
        at_most("lost", taken - report.recorded, 0, "{:.0f}"),
        at_most("counted twice", report.recorded - taken, 0, "{:.0f}"),
        at_most("epsilon still held", report.reserved, 0, "{:g}"),
        at_most("epsilon, less that of one go", abs(report.epsilon - report.plain), 0, "{:g}"),
        at_most("epsilon, less that of a plan", abs(report.epsilon - report.planned), 0, "{:g}"),
        at_most(f"steps that waited over {1e3 * WAITED_SECONDS:g} ms", waited, 0, "{:.0f}"),
    ]


def show(report: Report, outage: Outage) -> bool:
    """The table; whether all holds."""
    latencies = sorted(report.latencies)
    print(f"service away for {outage.seconds:g} s, {outage.steps_a_second:g} steps/s at most")
    rows = {
        **{f"steps taken {part}": steps for part, steps in report.steps.items()},
        "steps waiting when the service came back": report.unsent,
        "steps in the ledger": report.recorded,
        "epsilon (upper, delta 1e-5)": f"{report.epsilon:.6f}",
        "step(), median": f"{1e6 * latencies[len(latencies) // 2]:.1f} us",
        "step(), 99.9 % of them": f"{1e6 * latencies[int(0.999 * len(latencies))]:.1f} us",
        "step(), longest": f"{1e3 * latencies[-1]:.2f} ms",
    }
    for row, value in rows.items():
        print(f"{row:<58} {'':>12} {value:>12}")
    return print_bars(bars(report))


def main() -> int:
    """Train through an outage, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--outage-seconds", type=float, default=60.0)
    parser.add_argument("--before-seconds", type=float, default=BEFORE_SECONDS)
    parser.add_argument("--steps-a-second", type=float, default=200.0)
    asked = parser.parse_args()
    if not (0 < asked.outage_seconds <= 3600 and 0 < asked.steps_a_second <= 1e5):
        parser.error("--outage-seconds lies in (0, 3600], --steps-a-second in (0, 100000]")
    outage = Outage(
        seconds=asked.outage_seconds,
        before_seconds=asked.before_seconds,
        steps_a_second=asked.steps_a_second,
    )
    with TemporaryDirectory(prefix="dpledger-outage-") as name:
        server = service(f"sqlite:///{Path(name) / 'ledger.db'}", Path(name))
        with running(server):
            return 0 if show(hold(server, Path(name) / "spool", outage), outage) else 1


if __name__ == "__main__":
    sys.exit(main())
