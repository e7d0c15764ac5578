"""What a step costs whose noise is another one each time: milliseconds, of a leased run.

    .venv/bin/python benchmarks/changing_noise.py [--steps 400] [--work 5]

The service is `dpledger serve`, a process of its own on a SQLite file. Each row is a run on a
dataset of its own. The trainer works so many milliseconds before each step; "a step" is the mean
time inside `run.step`, the first left out, and "in all" is that of the run without its work, until
`finish` has returned. Requests are counted by the client.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx
from dpledger_client import Client, event, gaussian, poisson

from benchmarks.bars import at_most, print_bars
from benchmarks.servers import START_TOKEN
from benchmarks.step_overhead import serving

ROW: Final = "{:<34} {:<10} {:>9} {:>9} {:>9} {:>9} {:>9}"
SAMPLING: Final = poisson(sampling_probability=0.01)
TIMES_OF_CONSTANT: Final = 3.0  # of a planned, changing noise, over one that never changes


class Counted(httpx.HTTPTransport):
    """Counts requests by the last part of their path."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[str] = Counter()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one, and count it."""
        self.requests[request.url.path.rpartition("/")[2].rpartition(":")[2]] += 1
        return super().handle_request(request)


def events_of(steps: int, *, changing: bool) -> list[dict[str, Any]]:
    """A schedule: of one kind, or of a new noise each step."""
    if not changing:
        noise = gaussian(noise_multiplier=2.0)
        return [event(mechanism=noise, sampling=SAMPLING, steps=steps)]
    return [
        event(mechanism=gaussian(noise_multiplier=2.0 + at / 1e3), sampling=SAMPLING, steps=1)
        for at in range(steps)
    ]


def budget_of(kind: str, steps: int, *, changing: bool) -> dict[str, Any]:
    """One that holds all steps: the default filter, or an envelope of at most 256 items."""
    limit: dict[str, Any] = {"epsilon": 1000.0, "delta": 1e-5}
    if kind == "filter":
        return limit
    # Items that cover all: one of the least noise.
    items = events_of(steps, changing=changing)[:1]
    return limit | {"filter": "envelope", "envelope": [items[0] | {"steps": steps}]}


def measured(
    url: str, name: str, steps: int, *, changing: bool, planned: bool, kind: str, work: float
) -> tuple[float, float, Counter[str]]:
    """Milliseconds of run.step, and of a step of the whole run without work; and its requests."""
    counted, events = Counted(), events_of(steps, changing=changing)
    with Client(url, START_TOKEN, transport=counted, timeout_seconds=60.0) as client:
        client.create_dataset(
            name,
            dataset_size=60_000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="one record",
            budget=budget_of(kind, steps, changing=changing),
        )
        run = client.start_run(name, name, plan=events if planned else None)
        counted.requests.clear()
        inside: list[float] = []
        for one in events:
            for _ in range(one["steps"]):
                time.sleep(work / 1e3)
                before = time.perf_counter()
                run.step(mechanism=one["mechanism"], sampling=one["sampling"])
                inside.append(time.perf_counter() - before)
        ended = time.perf_counter()
        run.finish()
        taken = sum(inside) + time.perf_counter() - ended
        found = client.dataset(name)
        assert client.run(name)["steps"] == steps  # noqa: S101 (what was measured is a ledger)
        assert (found["reserved"], found["budget"]["overdrawn"]) == (0, False)  # noqa: S101
    return 1e3 * sum(inside[1:]) / (steps - 1), 1e3 * taken / steps, counted.requests


def main() -> int:
    """Print the table, and whether the bar holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--work", type=float, default=5.0)
    given = parser.parse_args()
    heads = ("noise", "budget", "a step", "in all", "leases", "returns", "appends")
    print(ROW.format(*heads))
    told: dict[tuple[str, str], float] = {}
    with TemporaryDirectory() as folder, serving(Path(folder)) as url:
        os.environ["DPLEDGER_SPOOL"] = folder
        common: dict[str, Any] = {"work": given.work}
        measured(url, "warm", 64, changing=True, planned=False, kind="filter", **common)
        for kind in ("filter", "envelope"):
            for title, changing, planned in (
                ("constant", False, False),
                ("new at each step, without a plan", True, False),
                ("new at each step, with a plan", True, True),
            ):
                name = f"{kind}-{int(changing)}{int(planned)}"
                cost, whole, requests = measured(
                    url, name, given.steps, changing=changing, planned=planned, kind=kind, **common
                )
                told[kind, title] = cost
                sent = (requests[path] for path in ("reservations", "release", "events"))
                print(ROW.format(title, kind, f"{cost:.3f}", f"{whole:.3f}", *sent))
    bars = [
        at_most(
            f"{kind}: a planned new noise beside a constant one, times",
            told[kind, "new at each step, with a plan"] / told[kind, "constant"],
            TIMES_OF_CONSTANT,
        )
        for kind in ("filter", "envelope")
    ]
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
