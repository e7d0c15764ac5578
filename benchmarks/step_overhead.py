"""What a step costs the trainer in leased mode: microseconds of `run.step`, and of an Opacus step.

    .integrations/opacus/bin/python benchmarks/step_overhead.py [--steps 2000] [--rounds 5]

In an environment without Opacus only the first is measured. The service is `dpledger serve` on a
SQLite file, a process of its own: DPLEDGER_COMMAND, else the one of .venv. It leases and records
behind the trainer all the while, on the same processors.

Two copies of the network of examples/opacus_cnn take the same batches, in turn, one with the ledger
and one without. The medians of their steps are compared, by the clock on the wall and by the
processor time of the training thread; and what the ledger adds is also timed by itself. On a
machine that does other things at the same time only the last of these is to be trusted.
"""

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import httpx
from dpledger_client import Client, Run, gaussian, poisson

from benchmarks.bars import Bar, at_most, print_bars
from benchmarks.servers import START_TOKEN, start_token_file

ROOT: Final = Path(__file__).resolve().parents[1]
COMMAND: Final = os.environ.get("DPLEDGER_COMMAND", str(ROOT / ".venv" / "bin" / "dpledger"))
START_SECONDS: Final = 60.0
WORK_SECONDS: Final = 0.001  # of a step that is not the ledger's, where only run.step is timed
STEP_MICROSECONDS: Final = 30.0
SHARE_PERCENT: Final = 1.0
ROW: Final = "{:<44} {:>10} {:>10} {:>10}"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A service of its own process; its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = [COMMAND, "serve", "--port", str(port), "--database", f"sqlite:///{folder}/ledger.db"]
    environment = os.environ | {"DPLEDGER_START_TOKEN_FILE": str(start_token_file(folder))}
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            _wait_for(url)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def _wait_for(url: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            if httpx.get(f"{url}/readyz").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("The service did not start.")


def new_run(client: Client, name: str, records: int) -> Run:
    """A leased run of a dataset of its own, under a budget that is never used up."""
    client.create_dataset(
        name,
        dataset_size=records,
        neighboring_relation="add_or_remove_one",
        privacy_unit="one record",
        budget={"epsilon": 1000.0, "delta": 1e-5},
    )
    return client.start_run(name, name)


def microseconds_of_run_step(run: Run, steps: int) -> list[float]:
    """Of each call, between which the trainer is busy with something else."""
    run.declare(
        mechanism=gaussian(noise_multiplier=2.0), sampling=poisson(sampling_probability=0.01)
    )
    taken = []
    for _ in range(steps):
        until = time.perf_counter() + WORK_SECONDS
        while time.perf_counter() < until:
            pass
        start = time.perf_counter_ns()
        run.step()
        taken.append((time.perf_counter_ns() - start) / 1e3)
    return taken[steps // 20 :]  # the first asks for a lease


class Copies:
    """The network twice: with the ledger, and without."""

    def __init__(self, run: Run) -> None:
        import torch

        from examples.opacus_cnn import train

        warnings.simplefilter("ignore")  # Opacus' own
        torch.set_num_threads(1)
        records, _ = train.digits()
        self.loss = torch.nn.functional.cross_entropy
        self.alone = train.made_private(None, records)
        self.counted = train.made_private(run, records)
        self.ledger_microseconds: list[float] = []
        self._time_the_ledger(run)

    def batches(self, steps: int) -> Iterator[Any]:
        """Of the loader that the ledger watches, pass after pass."""
        while True:
            for batch in self.counted[2]:
                if not steps:
                    return
                steps -= 1
                yield batch

    def step(self, copy: Any, batch: Any) -> tuple[float, float]:
        """Microseconds of a step: on the wall, and of this thread's processor time."""
        model, optimizer, _ = copy
        wall, processor = time.perf_counter_ns(), time.thread_time_ns()
        optimizer.zero_grad()
        self.loss(model(batch[0]), batch[1]).backward()
        optimizer.step()
        processor, wall = time.thread_time_ns() - processor, time.perf_counter_ns() - wall
        return wall / 1e3, processor / 1e3

    def _time_the_ledger(self, run: Run) -> None:
        """Time what stands between clipping and noise; Opacus' own question takes next to none."""
        optimizer, taken = self.counted[1], self.ledger_microseconds
        check: Callable[..., bool] = optimizer._check_skip_next_step

        def timed(*given: Any, **options: Any) -> bool:
            start = time.perf_counter_ns()
            answer = check(*given, **options)
            taken.append((time.perf_counter_ns() - start) / 1e3)
            return answer

        optimizer._check_skip_next_step = timed


def compared(copies: Copies, steps: int) -> dict[str, float]:
    """Medians of one round, in microseconds."""
    times: dict[str, list[tuple[float, float]]] = {"alone": [], "counted": []}
    copies.ledger_microseconds.clear()
    pairs = (("alone", copies.alone), ("counted", copies.counted))
    for number, batch in enumerate(copies.batches(steps)):
        for name, copy in pairs if number % 2 else reversed(pairs):
            times[name].append(copies.step(copy, batch))
    medians = {
        f"{name} {clock}": statistics.median(taken[index] for taken in times[name])
        for name in times
        for index, clock in enumerate(("wall", "processor"))
    }
    return {**medians, "ledger": statistics.median(copies.ledger_microseconds)}


def of_opacus(client: Client, steps: int, rounds: int) -> list[Bar]:
    """A/B of the network's steps, and their bars."""
    try:
        with new_run(client, "network", 1500) as run:
            copies = Copies(run)
            found = [compared(copies, steps) for _ in range(rounds + 1)][1:]  # the first is to warm
    except ModuleNotFoundError as error:
        print(f"No Opacus here: {error.name} is missing.")
        return [at_most("what the ledger adds to a step of Opacus, percent", None, SHARE_PERCENT)]
    middle = {name: statistics.median(one[name] for one in found) for name in found[0]}
    print(ROW.format("median step of the network, microseconds", "alone", "counted", "more, %"))
    shares = {}
    for clock in ("wall", "processor"):
        alone, counted = middle[f"alone {clock}"], middle[f"counted {clock}"]
        shares[clock] = statistics.median(
            100 * (one[f"counted {clock}"] / one[f"alone {clock}"] - 1) for one in found
        )
        print(ROW.format(clock, f"{alone:.0f}", f"{counted:.0f}", f"{shares[clock]:.2f}"))
    own = 100 * middle["ledger"] / middle["alone wall"]
    print(ROW.format("the ledger by itself, wall", "", f"{middle['ledger']:.1f}", f"{own:.2f}"))
    return [
        at_most("the ledger by itself, percent of a step", own, SHARE_PERCENT),
        at_most("a counted step beside one alone, percent more", shares["wall"], SHARE_PERCENT),
        at_most("the same in processor time", shares["processor"], SHARE_PERCENT),
    ]


def main() -> None:
    """Measure, print, and leave with 1 if a bar is not reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=2000, help="of run.step alone, a round")
    parser.add_argument("--network-steps", type=int, default=300, help="of each copy, a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="dpledger-overhead-") as name, serving(Path(name)) as url:
        os.environ["DPLEDGER_SPOOL"] = f"{name}/spool"
        with Client(url, START_TOKEN) as client:
            rounds = []
            for number in range(given.rounds):
                with new_run(client, f"steps-{number}", 1000) as run:
                    rounds.append(microseconds_of_run_step(run, given.steps))
            medians = [statistics.median(taken) for taken in rounds]
            means = [statistics.fmean(taken) for taken in rounds]
            tails = [statistics.quantiles(taken, n=100)[98] for taken in rounds]
            middle = [statistics.median(values) for values in (medians, means, tails)]
            print(ROW.format("run.step, microseconds", "median", "mean", "99 %"))
            print(ROW.format("leased, a step each millisecond", *(f"{one:.1f}" for one in middle)))
            bars = [at_most("run.step, leased: median microseconds", middle[0], STEP_MICROSECONDS)]
            bars += of_opacus(client, given.network_steps, given.rounds)
    sys.exit(not print_bars(bars))


if __name__ == "__main__":
    main()
