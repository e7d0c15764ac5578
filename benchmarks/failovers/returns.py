"""Databases that lack acknowledged steps, or have others: each must be found and not served from.

A standby that lags, an old primary that comes back with a step of its own, a backup from before
acknowledged steps, and a failover without synchronous mode.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.failovers.cluster import (
    BOUNCER_PORT,
    HEALTHY_SECONDS,
    POSTGRES_PORT,
    USER,
    Cluster,
    binaries,
    value,
    wait_for,
)
from benchmarks.failovers.networks import Machine, run, unprivileged
from benchmarks.fault_trainers import Trainer, open_dataset
from benchmarks.servers import ROOT, TEST_DATABASE, Server, ask, mark, running, service
from service.errors import UnavailableError
from service.storage.engine import connect, snapshot

OTHER_PORT: Final = 5433  # of a database beside the cluster's
TRAIN_SECONDS: Final = 2.0
WITNESSED_SECONDS: Final = 3.0  # by which the witness has seen the last step
ENTRIES: Final = "SELECT count(*) FROM entries"
SUSPENDED: Final = "/problems/ledger-suspended"


@dataclass(slots=True)
class Returns:
    """A cluster, one service on it, and the settings of others beside it."""

    cluster: Cluster
    folder: Path
    server: Server
    public_key: str

    def train(self, seconds: float = TRAIN_SECONDS) -> Trainer:
        """A trainer that has sent for a while; its steps are acknowledged."""
        self.server.wait()
        name = mark("returns")
        open_dataset(self.server.port, name)
        trainer = Trainer([self.server.port], name, 3.0, 0.02)
        trainer.open()
        trainer.start()
        time.sleep(seconds)
        trainer.stop()
        return trainer

    def lagging(self) -> list[str]:
        """A standby that does not replay what it has received."""
        leader = self.cluster.wait_until_healthy()
        (standby, *_) = [one for one in self.cluster.machines if one is not leader]
        _replay(standby, signal.SIGSTOP)
        try:
            self.train()
            behind, whole = value(standby, ENTRIES), value(leader, ENTRIES)
            said = [f"a standby that lags has {behind} of {whole} entries"]
            for way, port in (("direct", POSTGRES_PORT), ("PgBouncer", BOUNCER_PORT)):
                # What PgBouncer knows of its server may be old; it is asked before, too.
                for name, machines in (("it first", [standby, leader]), ("it alone", [standby])):
                    found = _read(self.cluster.addresses(port, *machines))
                    right = found == (whole if len(machines) > 1 else None)
                    said.append(f"{_mark(right)} {way}, {name}: read {found or 'refused'}")
            return said
        finally:
            _replay(standby, signal.SIGCONT)

    def old_primary(self) -> list[str]:
        """A primary that was cut off with a step under way comes back when others have gone on."""
        leader = self.cluster.wait_until_healthy()
        before = self.train()
        leader.plug("back", into=False)
        late = Trainer(before.ports, before.dataset, 3.0, 0.02, run=before.run)
        late.acknowledged = before.acknowledged
        late.start()
        self.cluster.wait_for_leader(other_than=leader)
        copy = self.folder / leader.name / "old-primary"
        leader.kill()
        late.stop()
        run(*unprivileged("cp", "-a", str(self.cluster.data(leader)), str(copy)))
        leader.plug("back")
        self.cluster.start(leader)
        after = self.train()
        time.sleep(WITNESSED_SECONDS)
        now = self.cluster.wait_until_healthy()
        with self._beside(leader, copy) as url:
            own = value(leader, f"{ENTRIES} JOIN runs ON runs.id = entries.run_id "
                        "WHERE runs.name = %s", before.run, port=OTHER_PORT)  # fmt: skip
            said = [f"an old primary has {own} steps of a run with {before.acknowledged} "
                    f"acknowledged when it was cut off, and none of {after.acknowledged} later "
                    f"ones; {value(now, ENTRIES)} entries are in the cluster"]  # fmt: skip
            return [*said, *self._refused(url, "old primary")]

    def point_in_time(self) -> list[str]:
        """A backup of the server's files, from before acknowledged steps, is put to use."""
        leader = self.cluster.wait_until_healthy()
        copy = self.folder / leader.name / "backup"
        run(*unprivileged(str(binaries() / "pg_basebackup"), "-h", leader.address("front"),
                          "-U", USER, "-D", str(copy), "-X", "stream", "-c", "fast"))  # fmt: skip
        after = self.train()
        time.sleep(WITNESSED_SECONDS)
        with self._beside(leader, copy) as url:
            said = [f"a backup lacks {after.acknowledged} acknowledged steps"]
            return [*said, *self._refused(url, "backup")]

    def asynchronous(self) -> list[str]:
        """A failover without synchronous mode loses acknowledged steps; the ledger says so."""
        self.cluster.change(synchronous_mode=False)
        leader = self.cluster.wait_until_healthy(synchronous=False)
        wait_for(
            lambda: value(leader, "SHOW synchronous_standby_names") == "",
            HEALTHY_SECONDS, self.cluster.said,
        )  # fmt: skip
        before = self.train()
        leader.plug("back", into=False)
        lost = Trainer(before.ports, before.dataset, 3.0, 0.02, run=before.run)
        lost.acknowledged = before.acknowledged
        lost.start()
        now = self.cluster.wait_for_leader(other_than=leader)
        time.sleep(WITNESSED_SECONDS)
        lost.stop()
        leader.plug("back")
        held = value(now, f"{ENTRIES} JOIN runs ON runs.id = entries.run_id "
                     "WHERE runs.name = %s", before.run)  # fmt: skip
        deadline = time.monotonic() + HEALTHY_SECONDS
        while (found := _state(self.server.port)) != "suspended" and time.monotonic() < deadline:
            time.sleep(0.2)
        return [
            f"asynchronous: {lost.acknowledged} steps acknowledged, {held} recorded afterwards",
            f"{_mark(held >= lost.acknowledged or found == 'suspended')} ledger: {found}",
        ]

    def _refused(self, url: str, name: str) -> list[str]:
        """Whether `verify` and a service find that a database is not what was witnessed."""
        witness = self.folder / f"witness of {name}"
        shutil.copy(self.folder / "witness", witness)
        words = [sys.executable, "-m", "service.cli.main", "verify", url, "--witness",
                 str(witness), "--public-key", self.public_key]  # fmt: skip
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [line for line in done.stdout.splitlines() if "missing" in line or "brok" in line]
        beside = service(url, self.folder)
        beside.settings |= self.server.settings | {"DPLEDGER_WITNESS_FILE": str(witness)}
        beside.ready_path = "/healthz"
        with running(beside):
            state = _state(beside.port)
            body = {"name": mark("later"), "dataset_size": 10, "privacy_unit": "example",
                    "neighboring_relation": "add_or_remove_one"}  # fmt: skip
            status, answer = ask(beside.port, "POST", "/v1/datasets", body)
        return [
            f"{_mark(done.returncode == 1)} verify: {lines[0] if lines else done.stderr[-200:]}",
            f"{_mark(answer['type'] == SUSPENDED)} a service on it: {state}, answers a write "
            f"with {status} {answer.get('type', '')}",
        ]

    @contextmanager
    def _beside(self, machine: Machine, data: Path) -> Iterator[str]:
        """A database of its own on a machine, from a folder; its URL."""
        (data / "standby.signal").unlink(missing_ok=True)
        settings = {
            "listen_addresses": "*", "port": OTHER_PORT, "synchronous_standby_names": "",
            "unix_socket_directories": self.folder / machine.name,
            "hba_file": data / "pg_hba.conf", "ident_file": data / "pg_ident.conf",
        }  # fmt: skip
        words = [word for key, one in settings.items() for word in ("-c", f"{key}={one}")]
        machine.start(str(binaries() / "postgres"), "-D", str(data), *words)
        url = f"postgresql://{USER}@{machine.address('front')}:{OTHER_PORT}/{TEST_DATABASE}"
        wait_for(lambda: _read(url) is not None, HEALTHY_SECONDS, self.cluster.said)
        try:
            yield url
        finally:
            stop = str(binaries() / "pg_ctl")
            run(*unprivileged(stop, "-D", str(data), "stop", "-m", "immediate"))


def _replay(standby: Machine, number: signal.Signals) -> None:
    """Stop what replays the log on a standby, which still receives it; or let it go on."""
    for pid in standby.processes("postgres"):
        if b": startup " in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, number)


def _read(url: str) -> int | None:
    """How many entries are read with the service's own means; none if it does not read there."""
    engine = connect(url, busy_timeout_seconds=2.0, serving=True)
    try:
        with snapshot(engine) as connection:
            return int(connection.exec_driver_sql(ENTRIES).scalar_one())
    except UnavailableError:
        return None
    finally:
        engine.dispose()


def _state(port: int) -> str:
    """What a service says of its log: ok, suspended, unknown."""
    return str(ask(port, "GET", "/readyz")[1]["checks"]["log"])


def _mark(right: bool) -> str:
    return "right:" if right else "WRONG:"
