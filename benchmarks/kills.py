"""A trainer is killed at random moments; the ledger must count every step whose noise was drawn.

    python benchmarks/kills.py [--kills 50] [--seed 1]

The trainer leases its steps, Poisson steps and shuffled passes in turn, and says in a file of its
own which noise it drew. It gets SIGKILL, in a third of the cases the service, too. Then

- the ledger alone must hold at least what was drawn, recorded or leased, by steps and by price;
- the spool must have every step that was drawn;
- after a sync both must agree, to the step and to the bit, with nothing held any more.

The spool is sent in three ways in turn: from where it was written, from a copy, or by the next
trainer, which goes on from the last checkpoint. Sent once more it must change nothing.
"""

import argparse
import http.client
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from dpledger_client.recording.write_ahead_file import Contents, SpoolError, read

from benchmarks import servers
from benchmarks.doomed import DATASET_SIZE, Config
from benchmarks.servers import Server, ServerError, ask, create, mark, new_dataset, running, service

WAYS: Final = ("file", "copy", "resume")
WRONG: Final = (
    "lost", "doubled", "understated", "still held", "another price", "changed by a second sync",
    "sync failed", "trainer failed",
)  # fmt: skip
STEPPING_CHANCE: Final = 0.8  # that a trainer is not killed before its first step
OPEN_SECONDS: Final = 60.0  # for a trainer to go on
FAULTS_SHOWN: Final = 10
ROUNDING: Final = 1e-9  # relative, of what is spent and reserved together

Place = tuple[str, str]  # run, branch


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """How often, and how long a trainer lives."""

    kills: int = 50
    life_seconds: float = 2.0  # the longest
    pause_seconds: float = 0.002  # the longest of a step
    seed: int = 1


@dataclass(slots=True, kw_only=True)
class Doom:
    """A campaign on one service."""

    campaign: Campaign
    server: Server
    folder: Path
    random: Random
    dataset: str = field(default_factory=lambda: mark("kills"))
    plain: str = field(default_factory=lambda: mark("plain"))  # of drawn steps, told in one go
    run: str = ""
    trainer: subprocess.Popen[bytes] | None = None
    incarnation: int = 0
    before: Counter[str] = field(default_factory=Counter)  # words of the trainers before
    told: Counter[Place] = field(default_factory=Counter)  # drawn steps that `plain` has
    settled: set[Place] = field(default_factory=set)  # branches found to hold nothing any more
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def spool(self) -> Path:
        """Where the trainers spool."""
        return self.folder / "spool"

    @property
    def account(self) -> Path:
        """What the trainers say they did."""
        return self.folder / "account"

    @property
    def checkpoint(self) -> Path:
        """The last one."""
        return self.folder / "checkpoint"

    def prepare(self) -> None:
        """Two datasets of the same settings."""
        self.spool.mkdir()
        self.account.touch()
        for name in (self.dataset, self.plain):
            self._new_dataset(name)

    def _new_dataset(self, name: str) -> None:
        # The relation under which shuffled passes have a bound, as Poisson steps do.
        relation = "replace_special"
        new_dataset(
            self.server.port,
            name,
            servers.START_TOKEN,
            dataset_size=DATASET_SIZE,
            neighboring_relation=relation,
        )

    def fault(self, what: str, text: str) -> None:
        """Something that must not be."""
        self.counts[what] += 1
        self.faults.append(f"kill {self.incarnation}: {what}: {text}")

    def get(self, path: str) -> Any:
        """What the service answers; None if there is no such thing."""
        status, answer = ask(self.server.port, "GET", path)
        if status not in (http.client.OK, http.client.NOT_FOUND):
            raise ServerError(f"GET {path} answered {status}: {answer}")
        return answer if status == http.client.OK else None

    def start(self) -> None:
        """The next trainer: it goes on from the last checkpoint, or with a new run."""
        self.incarnation += 1
        self.before = self._said()
        if not self.checkpoint.exists():
            self.run = mark("run")
        config = Config(
            url=f"http://127.0.0.1:{self.server.port}",
            run=self.run,
            dataset=self.dataset,
            spool=str(self.spool),
            checkpoint=str(self.checkpoint),
            account=str(self.account),
            pause_seconds=self.campaign.pause_seconds,
            seed=self.random.getrandbits(32),
        )
        path = self.folder / "config"
        config.write(path)
        words = [sys.executable, "-m", "benchmarks.doomed", str(path)]
        with (self.folder / "trainer.log").open("ab") as log:
            self.trainer = subprocess.Popen(
                words, cwd=servers.ROOT, env=os.environ | {"DPLEDGER_API_KEY": servers.START_TOKEN},
                stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL at a random moment, for the service before, at times."""
        life = self.random.uniform(0, self.campaign.life_seconds)
        if self.random.random() < STEPPING_CHANCE:
            self._wait_until("drawn")
        if self.random.random() < 1 / 3:
            before = self.random.uniform(0, life)
            time.sleep(before)
            life -= before
            self.server.kill()
            self.counts["of the service"] += 1
        time.sleep(life)
        self.end()
        if self.server.process is None:
            self.server.start()
            self.server.wait()

    def end(self) -> None:
        """No trainer outlives the campaign; one that ended by itself failed."""
        if self.trainer is None:
            return
        if self.trainer.poll() is not None:
            log = (self.folder / "trainer.log").read_text(encoding="utf-8").splitlines()[-1:]
            self.fault("trainer failed", " ".join(log))
        self.trainer.kill()
        self.trainer.wait()
        self.trainer = None

    def drawn(self) -> Counter[Place]:
        """How many steps of each branch were drawn."""
        lines = map(str.split, self.account.read_text(encoding="ascii").splitlines())
        return Counter((line[1], line[2]) for line in lines if line[0] == "drawn")

    def spools(self) -> dict[Place, Contents]:
        """What the spools say, of each branch."""
        found = {}
        for path in self.spool.glob("*.spool"):
            try:
                contents = read(path)
            except SpoolError:
                if path.stat().st_size:  # it was cut before its first line was whole
                    raise
                continue
            branch = contents.header["branch"] or {"name": "main"}
            found[contents.header["run"]["name"], branch["name"]] = contents
        return found

    def ledger(self) -> dict[Place, int]:
        """How many steps of each branch are recorded."""
        found = {}
        for run in dict.fromkeys(run for run, _ in self.spools()):
            answer = self.get(f"/v1/runs/{run}") or {"branches": []}
            for one in answer["branches"]:
                found[run, one["name"]] = one["next_step"] - one["from_step"]
        return found

    def held(self, contents: Contents) -> int:
        """How many steps the leases of a spool still hold."""
        leases = (self.get(f"/v1/reservations/{name}") for name in contents.leases)
        return sum(lease["remaining"] for lease in leases if lease)

    def check_killed(self) -> None:
        """Before anything is sent: the ledger alone, and the spool."""
        drawn, spools, ledger = self.drawn(), self.spools(), self.ledger()
        for place, steps in drawn.items():
            contents = spools[place]
            counted = ledger.get(place, 0)
            if counted < steps and counted + self.held(contents) < steps:
                self.fault("understated", f"{place}: {steps} drawn, {counted} recorded")
            if _steps(contents) < steps:
                self.fault("lost", f"{place}: {steps} drawn, {_steps(contents)} in the spool")
        self._tell(self.plain, drawn, spools, self.told)
        now, plain = (self.get(f"/v1/datasets/{name}") for name in (self.dataset, self.plain))
        if not now["spent"] + now["reserved"] >= plain["spent"] * (1 - ROUNDING):
            self.fault("understated", f"{now['spent']} + {now['reserved']} < {plain['spent']}")

    def _tell(
        self,
        dataset: str,
        steps: Counter[Place],
        spools: dict[Place, Contents],
        told: Counter[Place],
    ) -> None:
        """Record the first steps of each branch, as runs of their own, in one go."""
        port = self.server.port
        for (run, branch), count in steps.items():
            name = f"{dataset}.{run}.{branch}"
            if (run, branch) not in told:
                opening = {"name": name, "writer": mark("writer-token"), "dataset": dataset}
                create(port, "/v1/runs", opening)
            events = _events(spools[run, branch], told[run, branch], count)
            if events:
                create(port, f"/v1/runs/{name}/events", {"events": events})
            told[run, branch] = count

    def bring_back(self, way: str) -> None:
        """Send what the killed trainer left."""
        copy, before = self.folder / "copy", self.spools()
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.spool, copy)
        if way == "resume" and self.checkpoint.exists():
            self.start()
            self._wait_until("opened")
        elif way == "copy":
            self._sync(copy)
            self._sync(copy, "--ended")
        else:
            way = "file"
            self._sync(self.spool)
        self.counts[f"sent from: {way}"] += 1
        self.check_synced(before)
        state = self.state(before)
        self._sync(copy, "--ended")
        if self.trainer is None:
            self._sync(self.spool)
        if self.state(before) != state:
            self.fault("changed by a second sync", f"{state} became {self.state(before)}")

    def state(self, spools: dict[Place, Contents]) -> Any:
        """What a second sync must not change."""
        ledger = self.ledger()
        state: list[Any] = [ledger.get(place) for place in spools]
        if self.trainer is None:
            state.append(self.get(f"/v1/datasets/{self.dataset}"))
        return state

    def check_synced(self, spools: dict[Place, Contents]) -> None:
        """Ledger and spools agree."""
        drawn, ledger = self.drawn(), self.ledger()
        for place, contents in spools.items():
            steps, counted = _steps(contents), ledger.get(place, -1)
            if counted < steps:
                self.fault("lost", f"{place}: {steps} in the spool, {counted} in the ledger")
            if not drawn[place] <= counted <= drawn[place] + 1:
                self.fault("doubled", f"{place}: {drawn[place]} drawn, {counted} in the ledger")
            if counted > steps:
                self.fault("doubled", f"{place}: {steps} in the spool, {counted} in the ledger")
            if place not in self.settled and (held := self.held(contents)):
                self.fault("still held", f"{place}: {held}")
        self.settled |= spools.keys()

    def _said(self) -> Counter[str]:
        return Counter(self.account.read_text(encoding="ascii").split())

    def _wait_until(self, word: str) -> None:
        deadline = time.monotonic() + OPEN_SECONDS
        while self._said()[word] == self.before[word]:
            if time.monotonic() > deadline or not self.trainer or self.trainer.poll() is not None:
                log = (self.folder / "trainer.log").read_text(encoding="utf-8")
                raise ServerError(f"The next trainer did not go on:\n{log}")
            time.sleep(0.01)

    def _sync(self, folder: Path, *words: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "dpledger_client.cli", "sync", str(folder), *words],
            env={**os.environ, "DPLEDGER_URL": f"http://127.0.0.1:{self.server.port}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            self.fault("sync failed", done.stderr)

    def finish(self) -> None:
        """What stands in the end is what the spools say, told in one go."""
        spools, ledger, whole = self.spools(), self.ledger(), mark("whole")
        self._new_dataset(whole)
        steps = Counter({place: _steps(contents) for place, contents in spools.items()})
        self._tell(whole, +steps, spools, Counter())
        now, plain = (self.get(f"/v1/datasets/{name}") for name in (self.dataset, whole))
        if (now["spent"], now["reserved"]) != (plain["spent"], 0.0):
            self.fault("another price", f"{now['spent']}, {now['reserved']}: {plain['spent']}")
        self.counts["steps drawn"] = self.drawn().total()
        self.counts["steps in the ledger"] = sum(ledger.values())


def _steps(contents: Contents) -> int:
    return int(contents.next_step - contents.header["first_step"])


def _events(contents: Contents, first: int, end: int) -> list[dict[str, Any]]:
    """The steps of a branch in [first, end), counted from its own first one."""
    events = []
    for span in contents.spans:
        event, at = span.event(), span.first_step - contents.header["first_step"]
        begin, stop = max(at, first), min(at + span.steps, end)
        if begin < stop:
            events.append({**event, "first_step": begin, "steps": stop - begin})
    return events


@contextmanager
def _doom(campaign: Campaign, url: str, folder: Path) -> Iterator[Doom]:
    server = service(url, folder)
    doom = Doom(campaign=campaign, server=server, folder=folder, random=Random(campaign.seed))
    with running(server):
        try:
            doom.prepare()
            yield doom
        finally:
            if doom.trainer is not None:
                doom.trainer.kill()
                doom.trainer.wait()


def hold(url: str, folder: Path, campaign: Campaign) -> Doom:
    """Kill so often; what became of it."""
    with _doom(campaign, url, folder) as doom:
        for number in range(campaign.kills):
            if doom.trainer is None:
                doom.start()
            doom.kill()
            doom.check_killed()
            last = number + 1 == campaign.kills
            doom.bring_back("file" if last else WAYS[number % len(WAYS)])
        doom.finish()
        return doom


def show(doom: Doom) -> bool:
    """The table; whether nothing is wrong."""
    counts = doom.counts
    print(f"{'kills':<44} {doom.campaign.kills:>10}")
    ways = (f"sent from: {way}" for way in WAYS)
    for row in ("of the service", *ways, "steps drawn", "steps in the ledger", *WRONG):
        print(f"{row:<44} {counts[row]:>10}")
    for fault in doom.faults[:FAULTS_SHOWN]:
        print(f"  {fault}")
    return not doom.faults


def main() -> int:
    """Run the campaign, print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    if not 1 <= asked.kills <= 10_000:
        parser.error("--kills lies in [1, 10000]")
    with TemporaryDirectory(prefix="dpledger-kills-") as name:
        folder = Path(name)
        campaign = Campaign(kills=asked.kills, seed=asked.seed)
        return 0 if show(hold(f"sqlite:///{folder / 'ledger.db'}", folder, campaign)) else 1


if __name__ == "__main__":
    sys.exit(main())
