"""Proofs of a long log: what a checkpoint, a comparison and each proof cost of the processor.

    python benchmarks/logs.py [--leaves 1000000] [--datasets 100]

The log is written row by row as the service would have it, without accounting anything. SQLite
works within this process, so that its time is counted as well.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import Connection, Engine, select, update

from service.clock import now
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.datasets import create_dataset
from service.ledger.log.leaves import TILE
from service.ledger.log.merkle import Frontier, leaf_hash
from service.ledger.runs import create_run
from service.schemas.requests import EventMessage, NewDataset, NewRun
from service.storage import bulk, migrations
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import branches, datasets, distinct_events, entries, log_tiles, runs
from service.transparency import proofs
from service.transparency.checkpoints import LogHeads
from service.transparency.head_tree import HeadTree
from service.transparency.signing import Signer

REPEATS = 20
COLUMNS = (
    "dataset_id", "sequence", "run_id", "branch_id", "first_step", "steps", "event_id", "mode",
    "verdict", "recorded_at", "leaf",
)  # fmt: skip
PART = 100_000  # rows in memory
STEP = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 4.0},
    "sampling": {"kind": "poisson", "sampling_probability": 0.01},
}


def begin(engine: Engine, count: int) -> None:
    """Datasets, one of them with a run and an entry."""
    given = {"dataset_size": 60000, "neighboring_relation": "add_or_remove_one"}
    with transaction(engine) as connection:
        for number in range(count):
            new = {"name": f"data-{number}", "privacy_unit": "example", **given}
            create_dataset(connection, NewDataset.model_validate(new), by="benchmark")
        run = {"name": "run", "writer": "benchmark-of-the-logs", "dataset": "data-0"}
        create_run(connection, NewRun.model_validate(run))
        message = EventMessage.model_validate({"first_step": 0, "steps": 1, **STEP})
        append = Append(run_name="run", branch_name="main", mode="record", events=[message])
        work = DatasetCache().open(connection, [append.place])
        append.apply(work, now())
        work.write()


def grow(connection: Connection, leaves: int) -> None:
    """Entries until the log has so many leaves."""
    row = connection.execute(select(datasets).where(datasets.c.name == "data-0")).one()
    ids = [
        connection.execute(select(table.c.id)).scalars().one()
        for table in (runs, branches, distinct_events)
    ]
    moment = bulk.to_driver_time(connection, now())
    log, sequence = Frontier.from_bytes(row.log_size, row.log_frontier), row.head_sequence
    while log.size < leaves:
        numbers = range(sequence + 1, sequence + 1 + min(PART, leaves - log.size))
        hashes = [leaf_hash(number.to_bytes(8)) for number in numbers]
        rows = [
            (
                row.id, number, ids[0], ids[1], number - 1, 1, ids[2], "record", "within", moment,
                leaf,
            )
            for number, leaf in zip(numbers, hashes, strict=True)
        ]  # fmt: skip
        bulk.insert(connection, entries, COLUMNS, rows)
        log, tiles = log.extended(hashes)
        bulk.insert(connection, log_tiles, TILE, [(row.id, *tile) for tile in tiles])
        sequence = numbers[-1]
    values = {"log_size": log.size, "log_frontier": log.to_bytes(), "head_sequence": sequence}
    connection.execute(update(datasets).where(datasets.c.id == row.id).values(values))


def measure(name: str, call: Callable[[int], object]) -> None:
    """Print the median and the longest time that some calls kept the processor busy."""
    taken = []
    for repeat in range(REPEATS):
        started = time.process_time()
        call(repeat)
        taken.append((time.process_time() - started) * 1000)
    print(f"{name:42} {statistics.median(taken):10.2f} {max(taken):10.2f}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--leaves", type=int, default=1_000_000)
    parser.add_argument("--datasets", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        signer = Signer.create(Path(folder) / "key")
        engine = connect(f"sqlite:///{folder}/ledger.db")
        migrations.upgrade(engine)
        begin(engine, given.datasets)
        with snapshot(engine) as connection:
            kept = LogHeads.of(connection).part(signer, "data-0")
        with transaction(engine) as connection:
            grow(connection, given.leaves)
        spread, tree = given.leaves // REPEATS, HeadTree()

        def inclusion(repeat: int) -> object:
            with snapshot(engine) as connection:
                return proofs.inclusion(
                    connection, "data-0", sequence=1 + repeat * spread, position=None, size=None
                )

        def consistency(repeat: int) -> object:
            with snapshot(engine) as connection:
                return proofs.consistency(
                    connection, "data-0", first=1 + repeat * spread, second=None
                )

        def checkpoint(_repeat: int) -> object:
            with snapshot(engine) as connection:
                return tree.head(connection, "data-0").part(signer, "data-0")

        print(f"{given.leaves} leaves, {given.datasets} datasets; milliseconds of the processor:")
        print(f"{'':42} {'median':>10} {'longest':>10}")
        measure("inclusion of an entry", inclusion)
        measure("consistency with a smaller size", consistency)
        measure("a signed checkpoint with a head", checkpoint)
        measure(
            "comparison with one that was kept",
            lambda _repeat: proofs.compare_checkpoint(
                engine, signer, kept, heads=tree, by="benchmark"
            ),
        )
        engine.dispose()


if __name__ == "__main__":
    main()
