"""How fast a ledger is verified: all of it, by the command, start and end of the process included.

    python benchmarks/verify.py [--database SQLite] [--entries 1000000] [--runs 10]

A service is filled over HTTP in batches of 10,000 events of one step each, neighbours different, so
that each is an entry of its own; then it is stopped and `dpledger verify` reads its database.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bars import Bar, at_least, print_bars
from benchmarks.bulk import BATCH, NOISES, Ground, lines, place, send
from benchmarks.servers import ROOT, ServerError, databases, migrated, running, service

RATE: Final = 100_000  # entries a second, at least
REPEATED: Final = 3


def fill(ground: Ground) -> None:
    """Entries of one step each, in runs of one dataset."""
    names = place(ground, "verified", ground.runs)
    for number in range(-(-ground.entries // BATCH)):
        run, first = names[number % ground.runs], number // ground.runs * BATCH
        noises = [NOISES[step % len(NOISES)] for step in range(BATCH)]
        send(ground, run, lines(first, noises))


def verified(url: str) -> tuple[float, int]:
    """The seconds that the command takes, and how many entries it read.

    Raises:
        ServerError: it found something broken.
    """
    command = [sys.executable, "-m", "service.cli.main", "verify", url, "--json"]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise ServerError(f"verify: {done.stdout}{done.stderr}")
    return seconds, int(json.loads(done.stdout)["checked"]["entries"])


def main() -> int:
    """Fill, measure, print the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--database", choices=("SQLite", "PostgreSQL"), help="only this one")
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=10)
    asked = parser.parse_args()
    bars: list[Bar] = []
    with TemporaryDirectory(prefix="dpledger-bench-") as name, databases(Path(name)) as urls:
        for database, url in urls.items():
            if asked.database not in (None, database):
                continue
            key = migrated(url)
            server = service(url, Path(name))
            with running(server):
                fill(Ground(server, key, database, asked.entries, asked.runs))
            found = [verified(url) for _ in range(REPEATED)]
            rates = [entries / seconds for seconds, entries in found]
            print(f"{database}: {found[0][1]:,} entries, {[f'{one:,.0f}' for one in rates]} each s")
            rate = sorted(rates)[len(rates) // 2]
            bars.append(at_least(f"{database}, entries verified a second", rate, RATE, "{:,.0f}"))
    return 0 if print_bars(bars) else 1


if __name__ == "__main__":
    sys.exit(main())
