"""Trainers race one budget while clients and services are killed; then the ledger is audited.

    python benchmarks/race.py [--seconds 60] [--databases SQLite PostgreSQL] [--replicas 1 2]

64 trainers in 8 processes charge, reserve, record and release against one dataset, half of them on
runs of their own and half on branches of four hot runs. Replies are lost and requests sent again;
processes of trainers and services get SIGKILL and are started anew. With two replicas the trainers
choose one at every connection. What must hold in the end is in benchmarks/audit.py; tests run a
short form of the same campaign.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import audit
from benchmarks.servers import (
    DATASET_SIZE,
    ROOT,
    Server,
    ServerError,
    ask,
    databases,
    mark,
    migrated,
    new_branch,
    new_dataset,
    new_run,
    running,
    service,
)
from benchmarks.trainers import Config
from service.storage.engine import connect, snapshot

BUDGET: Final = {"epsilon": 3.0, "delta": 1e-5}
PLACES: Final = 8  # branches of a hot run
WARM_SECONDS: Final = 1.5  # in which every trainer starts and opens its connection
END_SECONDS: Final = 60.0  # for the last requests of the trainers
FAULTS_SHOWN: Final = 10
MAIN: Final = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """How long, how many, and how often something is killed."""

    seconds: float = 60.0
    processes: int = 8
    trainers: int = 64
    replicas: int = 1
    kill_seconds: float = 3.0  # between two kills, about
    steps_a_second: float = 0.5  # of each trainer, for which the budget has room
    seed: int = 1

    @property
    def noise_multiplier(self) -> float:
        """Noise with which the budget has room for so many of the dear steps."""
        order = 1 + 2 * math.log(1 / BUDGET["delta"]) / BUDGET["epsilon"]
        room = self.trainers * self.seconds * self.steps_a_second
        return math.sqrt(room * order / BUDGET["epsilon"])


@dataclass(slots=True, kw_only=True)
class Race:
    """A campaign on one database."""

    campaign: Campaign
    url: str
    folder: Path
    key: str
    dataset: str
    servers: list[Server]
    places: list[tuple[int, str, str]]  # of each trainer: number, run, branch
    random: Random
    start_at: float = 0.0
    clients: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    incarnations: dict[int, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=lambda: {"clients": 0, "services": 0})

    def prepare(self) -> None:
        """The dataset, its runs and branches."""
        port = self.servers[0].port
        # The relation under which a pass in a fixed order costs what one Gaussian release does.
        relation = "replace_special"
        new_dataset(port, self.dataset, self.key, budget=BUDGET, neighboring_relation=relation)
        for run in dict.fromkeys(run for _, run, _ in self.places):
            new_run(port, run, self.dataset, self.key)
        for _, run, branch in self.places:
            if branch != MAIN:
                new_branch(port, run, branch, self.key)

    def _log(self, process: int) -> Path:
        return self.folder / f"{self.dataset}-{process}.jsonl"

    def _places_of(self, process: int) -> list[tuple[int, str, str]]:
        """Where the trainers of a process are: they may have opened branches since."""
        mine = {place[0]: place for place in self.places[process :: self.campaign.processes]}
        if self._log(process).exists():
            text = self._log(process).read_text(encoding="ascii")
            for line in map(json.loads, text.splitlines()):
                if line["what"] == "forked":
                    number = int(line["branch"].removeprefix("t").partition("-")[0])
                    mine[number] = (number, line["run"], line["branch"])
        return list(mine.values())

    def enlist(self, process: int) -> None:
        """Start a process of trainers, the first or the next of its number."""
        incarnation = self.incarnations[process] = self.incarnations.get(process, -1) + 1
        config = Config(
            ports=[server.port for server in self.servers],
            key=self.key,
            dataset=self.dataset,
            dataset_size=DATASET_SIZE,
            noise_multiplier=self.campaign.noise_multiplier,
            trainers=self._places_of(process),
            incarnation=incarnation,
            seed=self.campaign.seed,
            start_at=self.start_at,
            stop_at=self.start_at + self.campaign.seconds,
            log=str(self._log(process)),
        )
        path = self.folder / f"{self.dataset}-{process}.json"
        path.write_text(json.dumps(asdict(config)), encoding="utf-8")
        arguments = [sys.executable, "-m", "benchmarks.trainers", str(path)]
        self.clients[process] = subprocess.Popen(arguments, cwd=ROOT)

    def kill(self) -> None:
        """SIGKILL for a process of trainers or a service, which is started anew."""
        server = self.random.choice(self.servers)
        if self.random.random() < 0.6 or not server.answers():
            victim = self.random.choice(list(self.clients))
            self.clients[victim].kill()
            self.clients[victim].wait()
            self.enlist(victim)
            self.kills["clients"] += 1
        else:
            server.kill()
            server.start()
            self.kills["services"] += 1

    def run(self) -> None:
        """From the start to the last answer.

        Raises:
            ServerError: a service did not come back, or trainers did not end.
        """
        self.start_at = time.time() + WARM_SECONDS
        for process in range(self.campaign.processes):
            self.enlist(process)
        end = self.start_at + self.campaign.seconds
        time.sleep(WARM_SECONDS)
        while (left := end - time.time()) > 0:
            time.sleep(min(left, self.random.uniform(0.5, 1.5) * self.campaign.kill_seconds))
            if time.time() < end:
                self.kill()
        for server in self.servers:
            server.wait()
        for client in self.clients.values():
            if client.wait(END_SECONDS) != 0:
                raise ServerError("A process of trainers failed.")

    def end(self) -> None:
        """No trainer outlives the campaign, however it ends."""
        for client in self.clients.values():
            client.kill()
            client.wait()

    def told(self) -> list[dict[str, Any]]:
        """What each replica says of the dataset."""
        found = []
        for server in self.servers:
            status, answer = ask(server.port, "GET", f"/v1/datasets/{self.dataset}", key=self.key)
            if status != 200:
                raise ServerError(f"GET dataset: {status}; {dict(logged(self.folder))}")
            found.append(answer)
        return found


@dataclass(slots=True, kw_only=True)
class Report:
    """What a campaign came to."""

    faults: list[str]
    kills: dict[str, int]
    numbers: dict[str, float]
    logged: dict[str, int]  # exceptions in the services' logs

    def print(self, title: str) -> None:
        """A table, and every fault."""
        print(f"\n{title}: {'holds' if not self.faults else 'DOES NOT HOLD'}")
        for what, number in self.numbers.items():
            shown = f"{number:.6f}" if isinstance(number, float) else f"{number:,}"
            print(f"  {what:<52} {shown:>12}")
        kinds = Counter(fault.partition(":")[0] for fault in self.faults)
        for kind, count in kinds.most_common(FAULTS_SHOWN):
            example = next(fault for fault in self.faults if fault.startswith(kind))
            print(f"  FAULT, {count} times: {example[:500]}")
        for line, count in self.logged.items():
            print(f"  logged {count} times: {line}")


def places_of(count: int, name: str) -> list[tuple[int, str, str]]:
    """Half of the trainers on runs of their own, the others on branches of hot runs."""
    alone = [(number, f"{name}-{number}", MAIN) for number in range(0, count, 2)]
    together = [
        (number, f"{name}-hot{place // PLACES}", f"t{number}")
        for place, number in enumerate(range(1, count, 2))
    ]
    return alone + together


def logged(folder: Path) -> Counter[str]:
    """The last lines of the exceptions in the services' logs."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.log"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if '"exception"' in line:
                found[json.loads(line)["exception"].strip().splitlines()[-1]] += 1
    return found


def examine(race: Race) -> Report:
    """Audit the ledger against the trainers' account and the replicas' answers."""
    findings, account = audit.Findings(), audit.Account.of(race.folder)
    told = race.told()
    budget, noise = told[0]["budget"], race.campaign.noise_multiplier
    engine = connect(race.url)
    with snapshot(engine) as connection:
        ledger = audit.Ledger.read(connection, race.dataset, noise)
        audit.check_steps(ledger, account, findings)
        audit.check_counts(connection, ledger, findings)
        held = audit.check_reservations(connection, ledger, account, findings)
    engine.dispose()
    admitted, spent = audit.check_limit(
        ledger,
        findings,
        epsilon=BUDGET["epsilon"],
        delta=BUDGET["delta"] * budget["delta_share"],
        order=budget["order"],
        noise_multiplier=noise,
    )
    faults = [f"{line['fault']}: {line}" for line in account.of_kind("fault")]
    findings.faults += faults
    for answer in told:
        same = {key: answer[key] == told[0][key] for key in ("sequence", "spent", "reserved")}
        findings.require(all(same.values()), f"replicas disagree: {same}")
        findings.require(answer["sequence"] == ledger.dataset.head_sequence, "a stale sequence")
    taken = account.of_kind("taken")
    numbers: dict[str, float] = {
        "charges admitted": account.count("taken", mode="charge"),
        "records": account.count("taken", mode="record"),
        "refused for the budget's sake": account.count("refused"),
        "reservations admitted": account.count("reserved"),
        "  released": account.count("released"),
        "steps acknowledged": sum(line["steps"] for line in taken),
        "steps in the ledger": sum(row.steps for row in ledger.entries),
        "steps that open reservations hold": held,
        "entries beyond the limit": sum(row.verdict != "within" for row in ledger.entries),
        "answers 503, sent again": account.count("unavailable"),
        "clients killed": race.kills["clients"],
        "services killed": race.kills["services"],
        "branches opened by resumed trainers": account.count("forked"),
        "repetitions recognised": account.count("repeated"),
        "admitted, of the limit": admitted,
        "spent with facts beyond it, of the limit": spent,
    }
    return Report(
        faults=findings.faults, kills=race.kills, numbers=numbers, logged=logged(race.folder)
    )


def hold(url: str, folder: Path, campaign: Campaign, key: str | None = None) -> Report:
    """Run a campaign on a database and audit what is left."""
    name = mark("race")
    logs = folder / name
    logs.mkdir()
    race = Race(
        campaign=campaign,
        url=url,
        folder=logs,
        key=key or migrated(url),
        dataset=name,
        servers=[service(url, logs) for _ in range(campaign.replicas)],
        places=places_of(campaign.trainers, name),
        random=Random(campaign.seed),
    )
    with running(*race.servers):
        try:
            race.prepare()
            race.run()
            return examine(race)
        finally:
            race.end()


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the caller asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trainers", type=int, default=64)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--room", type=float, default=0.5, help="steps a second of each trainer that the budget has"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--databases", nargs="+", choices=("SQLite", "PostgreSQL"), default=["SQLite", "PostgreSQL"]
    )
    asked = parser.parse_args(given)
    if not (1 <= asked.seconds <= 3600 and 1 <= asked.processes <= asked.trainers <= 1000):
        parser.error("--seconds lies in [1, 3600]; 1 <= --processes <= --trainers <= 1000")
    return asked


def main() -> int:
    """Run the campaigns, print their tables."""
    asked = arguments()
    faults = 0
    with TemporaryDirectory(prefix="dpledger-race-") as name, databases(Path(name)) as urls:
        for database in [one for one in asked.databases if one in urls]:
            key = migrated(urls[database])
            for replicas in asked.replicas:
                campaign = Campaign(
                    seconds=asked.seconds, processes=asked.processes, trainers=asked.trainers,
                    replicas=replicas, seed=asked.seed, steps_a_second=asked.room,
                )  # fmt: skip
                report = hold(urls[database], Path(name), campaign, key)
                of = f"{asked.trainers} trainers in {asked.processes} processes"
                report.print(f"{database}, {replicas} service(s), {of}, {asked.seconds:g} s")
                faults += len(report.faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
