"""The dashboard on a ledger of some size: how long the server takes for each of its pages.

    python benchmarks/dashboard.py fill --database sqlite:////tmp/big.db [--separate]
    python benchmarks/dashboard.py pages --database sqlite:////tmp/big.db [--path /planner ...]

The ledger is filled by the service's own write path, as if over some months: 200 datasets of 25
runs, a million entries, and 20,000 incidents in bulk. Pages and searched lists are then asked of a
real server, one after another; one that takes more than its bar at the median fails the command.
"""

import argparse
import http.client
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from sqlalchemy import Engine, func, insert, select

from benchmarks.load import quantile
from benchmarks.months import DATASETS, ENTRIES, LONG_STEPS, PIECES, RUNS, fill, sizes
from benchmarks.servers import mark, running, service
from service.clock import now
from service.identity.keys import Role, create_key
from service.ledger.incidents import Kind
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.tables import api_keys, datasets, entries, incident_notes, incidents, runs

PAGES: Final = (
    "/",
    "/datasets",
    "/datasets?name=scans",
    "/datasets/{dataset}",
    "/datasets/{largest}",
    "/runs",
    "/runs?dataset={dataset}&state=active",
    "/runs/{run}",
    "/runs/{longest}",
    "/planner",
    "/theorems",
    "/compare?runs={run},{other},{longest}",
    "/runs/{run}/report",
    "/datasets/{dataset}/report",
    "/runs/{longest}/history.json",
    "/runs/{longest}/schedule.json",
    "/runs/{pieces}",
    "/runs/{pieces}/history.json",
    "/runs/{pieces}/schedule.json",
    "/overview/chart",
    "/compare/curves?runs={run}&runs={other}&runs={longest}&delta=1e-5",
    "/incidents",
    "/log",
    "/keys",
    "/requests",
    "/datasets/{largest}/proved",
    "/datasets/{largest}/report",
    "/v1/runs/{pieces}/history?points=100",
)
# Lists that are searched, sorted and filtered, and their interfaces.
SEARCHES: Final = (
    "/datasets?name=scans&sort=-entries", "/datasets?by=officer&sort=by", "/runs?name=run-1",
    "/runs?label=team%3Dteam-1", "/runs?by=ada&sort=-steps", "/runs?state=finished&sort=dataset",
    "/runs?sort=-steps", "/incidents?state=any&kind=overdraft", "/incidents?state=acknowledged",
    "/incidents?assignee=officer", "/incidents?dataset={dataset}&state=any",
    "/keys?name=trainer-1&sort=-name", "/keys?state=ended",
    "/log?kind=run_state", "/log?by=officer", "/log?dataset={dataset}", "/log?of=installation",
    "/log?since=2026-01-01&until=2099-01-01&sort=oldest",
    "/v1/incidents?page_size=100&state=open", "/v1/incidents?page_size=100&assignee=officer",
)  # fmt: skip


def places(engine: Engine) -> dict[str, str]:
    """What the paths of pages name: something usual, and the largest there is."""
    with engine.connect() as connection:
        heads = select(datasets.c.name).order_by(datasets.c.head_sequence.desc(), datasets.c.id)
        by_size = connection.scalars(heads).all()
        dataset = by_size[len(by_size) // 2]
        own = select(runs.c.name).join(datasets, datasets.c.id == runs.c.dataset_id)
        names = connection.scalars(own.where(datasets.c.name == dataset).order_by(runs.c.id)).all()
        longest = connection.scalar(
            select(runs.c.name)
            .join(entries, entries.c.run_id == runs.c.id)
            .where(entries.c.steps >= LONG_STEPS)
            .limit(1)
        )
        pieces = connection.scalar(select(runs.c.name).where(runs.c.name.endswith(PIECES)))
    return {
        "dataset": dataset,
        "largest": by_size[0],
        "run": names[-1],
        "other": names[0],
        "longest": longest or names[0],
        "pieces": pieces or names[0],
    }


def keyed(engine: Engine, number: int) -> str:
    """Create so many trainers' keys, if there are none, and an admin's key, which is returned."""
    with transaction(engine) as connection:
        known = connection.scalar(select(func.count()).select_from(api_keys)) or 0
        for place in range(0 if known else number):
            create_key(connection, name=f"trainer-{place}", scope=Role.TRAINER)
        return create_key(connection, name=mark("admin"), scope=Role.ADMIN)


def timed(port: int, path: str, repeats: int, key: str) -> tuple[int, list[float], int]:
    """The status of a page, the seconds of each answer, and its bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    seconds = []
    status = length = 0
    try:
        for _ in range(repeats):
            started = time.perf_counter()
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            length = len(answer.read())
            seconds.append(time.perf_counter() - started)
            status = answer.status
    finally:
        connection.close()
    return status, seconds, length


def measure(url: str, paths: Sequence[str], repeats: int) -> bool:
    """Ask every page and print what it took; whether each was answered and fast enough."""
    engine = connect(url)
    named = places(engine)
    key = keyed(engine, KEYS)
    print(sizes(engine))
    engine.dispose()
    print(f"{'page':<56} {'status':>6} {'first':>7} {'median':>7} {'p95':>7} {'cpu':>6} {'kB':>6}")
    well = True
    with TemporaryDirectory(prefix="dpledger-dashboard-") as folder:
        server = service(url, Path(folder))
        with running(server):
            for path in paths:
                bar = SEARCH_MS if path in SEARCHES else PAGE_MS
                asked = path.format(**named)
                _, (first,), _ = timed(server.port, asked, 1, key)
                began = server.processor_seconds()
                status, later, length = timed(server.port, asked, repeats, key)
                cpu = (server.processor_seconds() - began) / repeats
                median = 1000 * statistics.median(later)
                well = well and status == http.client.OK and median <= bar
                said = "" if median <= bar else f"  more than {bar:.0f}"
                print(
                    f"{asked:<56} {status:>6} {1000 * first:>7.1f} {median:>7.1f}"
                    f" {quantile(later, 0.95):>7.1f} {1000 * cpu:>6.1f} {length / 1000:>6.1f}"
                    f"{said}",
                    flush=True,
                )
    print("In milliseconds; cpu is the server's processor time a page, whatever else runs here.")
    return well


PAGE_MS: Final = 60.0  # the median that a page may take
SEARCH_MS: Final = 100.0  # and a list that is searched
KEYS: Final = 500  # of trainers
INCIDENTS: Final = 20_000  # that are added, nine in ten of them handled
_NOTES: Final = (("acknowledge", None), ("assign", "officer"), ("comment", None))


def happen(engine: Engine, number: int) -> None:
    """Add refusals in bulk, and what was done about most of them.

    No act of a log speaks of these notes: such a ledger is for measuring alone.
    """
    moment = now()
    with transaction(engine) as connection:
        homes = connection.execute(select(runs.c.id, runs.c.dataset_id)).all()
        if (connection.scalar(select(func.count()).select_from(incidents)) or 0) >= number:
            return
        first = (connection.scalar(select(func.max(incidents.c.id))) or 0) + 1
        rows = [
            {
                "id": first + place,
                "dataset_id": homes[place * 7919 % len(homes)].dataset_id,
                "run_id": homes[place * 7919 % len(homes)].id,
                "kind": Kind.REFUSAL.value,
                "sequence": 1,
                "detail": '{"limit":3.0,"requested":0.5,"scope":"dataset:data","spent":2.9}',
                "occurred_at": moment,
            }
            for place in range(number)
        ]
        connection.execute(insert(incidents), rows)
        notes = [
            {
                "dataset_id": row["dataset_id"],
                "incident_id": row["id"],
                "action": action,
                "text": "looked at",
                "assignee": assignee,
                "by": "officer",
                "noted_at": moment,
            }
            for place, row in enumerate(rows)
            if place % 10
            for action, assignee in _NOTES[: 1 + place % len(_NOTES)]
        ]
        connection.execute(insert(incident_notes), notes)


def arguments() -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("action", choices=("fill", "pages"))
    parser.add_argument("--database", required=True, help="the address of a database")
    parser.add_argument("--datasets", type=int, default=DATASETS)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each dataset")
    parser.add_argument("--entries", type=int, default=ENTRIES, help="in all")
    parser.add_argument(
        "--separate",
        action="store_true",
        help=f"beside them a run of {LONG_STEPS:,} entries, one for each step",
    )
    parser.add_argument("--incidents", type=int, default=INCIDENTS, help="that are added")
    parser.add_argument("--path", action="append", help="a page; {dataset} and {run} are filled in")
    parser.add_argument("--repeats", type=int, default=30)
    return parser.parse_args()


def main() -> int:
    """Fill a ledger, or ask its pages."""
    asked = arguments()
    if asked.action == "pages":
        paths = asked.path or (*PAGES, *SEARCHES)
        return 0 if measure(asked.database, paths, asked.repeats) else 1
    engine = connect(asked.database)
    migrations.upgrade(engine)
    fill(
        engine,
        count=asked.datasets,
        runs_of_each=asked.runs,
        total=asked.entries,
        separate=LONG_STEPS if asked.separate else 0,
        say=lambda said: print(said, flush=True),
    )
    happen(engine, asked.incidents)
    engine.dispose()
    return 0


if __name__ == "__main__":
    sys.exit(main())
