"""The primary is lost again and again, under training; nothing acknowledged may be lost with it.

    python -m benchmarks.failovers [--tries 100] [--only "cut off"] [--strict] [--seed 1]
    python -m benchmarks.failovers --returns

Needs Debian's patroni, etcd-server, postgresql and pgbouncer. Three machines on this one, each with
etcd, Patroni, PostgreSQL and PgBouncer, in synchronous mode; two services, one with the databases'
addresses, one with those of the PgBouncers. Trainers send each step until it is acknowledged. After
each try the entries are counted in the database itself. In the end, and every so often, `dpledger
verify` compares every leaf with what the witness has seen. With --returns, databases that lack
acknowledged steps, or have others, are put before the service, which must not serve them.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.failovers.causes import CAUSES, UNGUARDED, Cause
from benchmarks.failovers.cluster import BOUNCER_PORT, POSTGRES_PORT, Cluster, started
from benchmarks.failovers.counting import (
    Tally,
    is_right,
    longest_silence,
    over_limit,
    table,
    wrongs_of,
)
from benchmarks.failovers.load import LEFT, spans, training
from benchmarks.failovers.networks import enter
from benchmarks.failovers.returns import Returns
from benchmarks.servers import ROOT, Server, ServerError, running, service

WAYS: Final = {"direct": POSTGRES_PORT, "PgBouncer": BOUNCER_PORT}
BUSY_SECONDS: Final = 1.0
WITNESS_SECONDS: Final = 1.0
WARM_SECONDS: Final = 1.0  # of training before a fault
VERIFY_EVERY: Final = 20  # tries
SHOWN: Final = 10
KEY_LENGTH: Final = 43  # of a public key, base64url
_DPLEDGER: Final = (sys.executable, "-m", "service.cli.main")


@dataclass(slots=True)
class Campaign:
    """A cluster, its services, and what they went through."""

    cluster: Cluster
    folder: Path
    services: dict[str, Server]
    random: Random
    said: list[str] = field(default_factory=list)

    def once(self, cause: Cause, tally: Tally) -> None:
        """Lose the leader under training, and count."""
        waited = time.monotonic()
        leader = self.cluster.wait_until_ready()
        waited = time.monotonic() - waited
        server = self.services[tally.way]
        server.wait()
        with training(server.port, self.folder / "spool") as load:
            time.sleep(WARM_SECONDS * (0.5 + self.random.random()))
            begin = time.monotonic()
            with cause.of(self.cluster, leader) as now:
                pass
            stuck = load.wait_until_all_go_on(time.monotonic())
            end = time.monotonic()
        tally.tries += 1
        tally.stuck += stuck + bool(load.leaser.fault)
        tally.silences.append(
            max(longest_silence(one.acknowledged_at, begin, end) for one in load.recording)
        )
        for one in [*load.recording, *load.charging]:
            tally.answers += one.answers
        if not self.cluster.writes(now):  # yet another has taken over
            now = self.cluster.wait_until_ready()
        wrong, limited = tally.wrong.copy(), 0
        for told in load.told():
            held = spans(now, told.run)
            tally.acknowledged += told.acknowledged
            tally.wrong += wrongs_of(told, held)
            limited += sum(s for _, s in held) * any(told.run == one.run for one in load.charging)
        tally.wrong += over_limit(limited, LEFT)
        if stuck or load.leaser.fault or tally.wrong != wrong:
            self.said.append(f"{cause.name}, {tally.way}: {stuck} stuck, {load.leaser.fault}, "
                             f"{dict(tally.wrong)}, {load.told()}")  # fmt: skip
        print(f"{cause.name:<24} {tally.way:<9} {leader.name} to {now.name}: "
              f"{tally.silences[-1]:5.1f} s, after {waited:.0f} s, {limited} of {LEFT} charged, "
              f"{dict(sum((one.answers for one in load.recording), type(tally.answers)()))}",
              flush=True)  # fmt: skip

    def verify(self, tally: Tally) -> None:
        """Let `dpledger verify` look at every row and leaf."""
        self.cluster.wait_until_ready()
        url = self.cluster.addresses(POSTGRES_PORT)
        print(f"{self.cluster.mended} times a machine was further than the leader", flush=True)
        key = public_key(self.folder)
        words = [*_DPLEDGER, "verify", url, "--witness", str(self.folder / "witness"),
                 "--public-key", key]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            tally.wrong["verify"] += 1
            self.said.append(f"verify: {done.stdout[-1500:]}{done.stderr[-1500:]}")
        print((done.stdout.splitlines() or [""])[-1], flush=True)


def _said(*words: str) -> str:
    return subprocess.run(
        [*_DPLEDGER, *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def public_key(folder: Path) -> str:
    """The key that a reader knows the service by."""
    said = _said("signing-key", "show", str(folder / "signing_key"))
    return next(word for word in said.split() if len(word) == KEY_LENGTH)


def bring_back(folder: Path) -> bool:
    """Put databases before the service that lack something; whether it refuses each."""
    _said("signing-key", "create", str(folder / "signing_key"))
    with started(folder) as cluster:
        server = services_of(cluster, folder)["direct"]
        with running(server):
            shown = Returns(cluster, folder, server, public_key(folder))
            told: list[str] = []
            for part in (shown.lagging, shown.point_in_time, shown.old_primary, shown.asynchronous):
                said = part()
                print("\n".join(said), flush=True)
                told += said
    return not any(line.startswith("WRONG") for line in told)


def services_of(cluster: Cluster, folder: Path) -> dict[str, Server]:
    """A service a way, with one key and one witness."""
    found = {}
    for way, port in WAYS.items():
        found[way] = service(cluster.addresses(port), folder)
        found[way].settings |= {
            "DPLEDGER_BUSY_TIMEOUT_SECONDS": str(BUSY_SECONDS),
            "DPLEDGER_SIGNING_KEY_FILE": str(folder / "signing_key"),
            "DPLEDGER_WITNESS_FILE": str(folder / "witness"),
            "DPLEDGER_WITNESS_SECONDS": str(WITNESS_SECONDS),
        }
    return found


def options(words: Sequence[str]) -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.failovers",
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=24 * 60.0, help="end earlier, after these")
    parser.add_argument("--only", choices=[one.name for one in (*CAUSES, UNGUARDED)])
    parser.add_argument("--through", choices=list(WAYS))
    parser.add_argument("--strict", action="store_true", help="synchronous_mode_strict")
    parser.add_argument("--returns", action="store_true", help="old primaries, backups, standbys")
    parser.add_argument("--folder", type=Path, help="new, for all files, which stay")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(words)
    if not 1 <= asked.tries <= 10_000:
        parser.error("--tries lies in [1, 10000]")
    if not 0 < asked.minutes <= 24 * 60:
        parser.error("--minutes lies in (0, 1440]")
    return asked


def hold(asked: argparse.Namespace, folder: Path) -> bool:
    """Lose primaries, print the table; whether nothing is wrong."""
    tallies = [
        Tally(cause.name, way)
        for cause in (CAUSES if asked.only is None else (*CAUSES, UNGUARDED))
        for way in WAYS
        if asked.only in (None, cause.name) and asked.through in (None, way)
    ]
    causes = {one.name: one for one in (*CAUSES, UNGUARDED)}
    deadline = time.monotonic() + 60 * asked.minutes
    (folder / "spool").mkdir()
    _said("signing-key", "create", str(folder / "signing_key"))
    with started(folder, strict=asked.strict) as cluster:
        services = services_of(cluster, folder)
        first, *others = services.values()
        campaign = Campaign(cluster, folder, services, Random(asked.seed))
        with running(first), running(*others):
            tally, ended = tallies[0], ""
            try:
                for number in range(asked.tries):
                    if time.monotonic() > deadline:
                        break
                    tally = tallies[number % len(tallies)]
                    campaign.once(causes[tally.fault], tally)
                    if (number + 1) % VERIFY_EVERY == 0:
                        campaign.verify(tally)
                campaign.verify(tally)
            except ServerError as error:  # the cluster itself did not go on
                ended = str(error)[:6000]
    print("\n" + "\n".join(table(tallies)))
    print("\n".join([*campaign.said[:SHOWN], ended]))
    return is_right(tallies) and not ended


def _begin(asked: argparse.Namespace, folder: Path) -> bool:
    return bring_back(folder) if asked.returns else hold(asked, folder)


def main() -> int:
    """Run the campaign, print its table."""
    asked = options(sys.argv[1:])
    enter("benchmarks.failovers", sys.argv[1:])
    if asked.folder is not None:
        asked.folder.mkdir()
        return 0 if _begin(asked, asked.folder.resolve()) else 1
    with TemporaryDirectory(prefix="dpledger-failovers-", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)  # another user runs the databases
        return 0 if _begin(asked, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
