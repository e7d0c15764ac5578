"""Three machines with etcd, Patroni, PostgreSQL and PgBouncer each, as an operator sets them up."""

import json
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.failovers.networks import Machine, lay_cables, own_folder
from benchmarks.servers import TEST_DATABASE, ServerError

SIZE: Final = 3
POSTGRES_PORT: Final = 5432
BOUNCER_PORT: Final = 6432
PATRONI_PORT: Final = 8008
USER: Final = "postgres"
TTL_SECONDS: Final = 6  # after which a leader that says nothing is none any more
HEALTHY_SECONDS: Final = 120.0
TAKEN_SECONDS: Final = 60.0  # by which another has taken over
POLL_SECONDS: Final = 0.1
ASK_SECONDS: Final = 1.0
BINARIES: Final = Path("/usr/lib/postgresql")
LEADER: Final = ("leader", "standby_leader")
SYNCHRONOUS: Final = "sync_standby"
NEEDED: Final = ("patroni", "etcd", "pgbouncer")

_PARAMETERS: Final[dict[str, Any]] = {
    "max_connections": 150, "wal_keep_size": "256MB", "max_wal_senders": 10,
    "max_replication_slots": 10, "wal_level": "replica", "wal_log_hints": "on", "jit": "off",
    "shared_buffers": "64MB", "wal_sender_timeout": "5s", "wal_receiver_timeout": "5s",
}  # fmt: skip


def binaries() -> Path:
    """Where PostgreSQL's programs are.

    Raises:
        ServerError: a program that the campaign needs is not installed.
    """
    missing = [name for name in NEEDED if shutil.which(name) is None]
    found = sorted(BINARIES.glob("*/bin/postgres"))
    if missing or not found:
        raise ServerError(
            "The campaign needs Debian's patroni, etcd-server, postgresql and pgbouncer: "
            f"{', '.join(missing) or 'postgres'} not found."
        )
    return found[-1].parent


@dataclass(slots=True)
class Cluster:
    """The machines, and what an operator asks them."""

    folder: Path
    strict: bool = False
    machines: list[Machine] = field(default_factory=list)
    mended: int = 0  # how often a machine was further than the leader, and was set up anew

    def data(self, machine: Machine) -> Path:
        """The folder of its database."""
        return self.folder / machine.name / "data"

    def addresses(self, port: int, *machines: Machine) -> str:
        """The database's URL, which names all machines or some."""
        hosts = ",".join(one.address("front") for one in machines or self.machines)
        return f"postgresql://{USER}@{hosts}:{port}/{TEST_DATABASE}"

    def start(self, machine: Machine) -> None:
        """Start everything on a machine, the first time or after a power cut."""
        folder = self.folder / machine.name
        machine.start(*_etcd(machine, self.machines, folder))
        machine.start("patroni", str(folder / "patroni.json"))
        machine.start("pgbouncer", "-q", str(folder / "pgbouncer.ini"))

    def configure(self, machine: Machine) -> None:
        """Write the settings of a machine."""
        folder = self.folder / machine.name
        own_folder(folder)
        (folder / "users").write_text(f'"{USER}" ""\n', encoding="ascii")
        (folder / "pgbouncer.ini").write_text(_bouncer(folder), encoding="ascii")
        settings = json.dumps(_patroni(machine, self.machines, folder, strict=self.strict))
        (folder / "patroni.json").write_text(settings, encoding="ascii")

    def members(self) -> dict[str, dict[str, Any]]:
        """What Patroni says of each machine, asked of the first that answers."""
        for machine in self.machines:
            if (found := _ask(machine, "GET", "/cluster")) is not None:
                return {one["name"]: one for one in found["members"]}
        return {}

    def leader(self, *, other_than: Machine | None = None) -> Machine | None:
        """The machine that says it is the leader."""
        for machine in self.machines:
            if machine is not other_than and _ask(machine, "GET", "/primary") is not None:
                return machine
        return None

    def synchronous(self) -> Machine | None:
        """The standby that takes over next."""
        names = [name for name, one in self.members().items() if one["role"] == SYNCHRONOUS]
        return next((one for one in self.machines if one.name in names), None)

    def is_healthy(self, *, synchronous: bool = True) -> bool:
        """Whether there is a leader that all others follow, one of them synchronously."""
        found = self.members().values()
        roles = [one["role"] for one in found]
        running = all(one["state"] in ("running", "streaming") for one in found)
        lines = {one.get("timeline") for one in found}
        return (
            len(roles) == SIZE
            and running
            and len(lines) == 1
            and any(role in LEADER for role in roles)
            and (SYNCHRONOUS in roles or not synchronous)
            and self.leader() is not None
        )

    def is_ready(self) -> bool:
        """Whether a leader may be lost: a standby takes over, and Patroni is up on all."""
        self.mend()
        found = self.members().values()
        running = [one for one in found if one["state"] in ("running", "streaming")]
        synchronous = any(one["role"] == SYNCHRONOUS for one in found)
        return len(running) == SIZE and synchronous and self.leader() is not None

    def mend(self) -> None:
        """Set up anew what cannot follow the leader, because it was a later one.

        A primary that stood still, its etcd with it, may take the lock back when it goes on.
        """
        found = self.members()
        lines = [one.get("timeline") for one in found.values() if one["role"] in LEADER]
        for machine in self.machines:
            line = found.get(machine.name, {}).get("timeline")
            if lines and lines[0] is not None and line is not None and line > lines[0]:
                self.mended += (
                    _ask(machine, "POST", "/reinitialize", {"force": True}, any_body=True) is True
                )

    def writes(self, machine: Machine) -> bool:
        """Whether a machine's database is a primary."""
        try:
            return value(machine, "SELECT pg_is_in_recovery()") is False
        except psycopg.Error:
            return False

    def wait_until_ready(self) -> Machine:
        """Wait until a leader may be lost; the leader."""
        wait_for(self.is_ready, HEALTHY_SECONDS, self.said)
        leader = self.leader()
        return leader or self.wait_until_ready()

    def wait_until_healthy(self, *, synchronous: bool = True) -> Machine:
        """Wait until every machine is in its place; the leader."""
        wait_for(lambda: self.is_healthy(synchronous=synchronous), HEALTHY_SECONDS, self.said)
        leader = self.leader()
        return leader or self.wait_until_healthy(synchronous=synchronous)

    def wait_for_leader(self, *, other_than: Machine) -> Machine:
        """Wait until another machine has taken over."""
        wait_for(lambda: self.leader(other_than=other_than) is not None, HEALTHY_SECONDS, self.said)
        leader = self.leader(other_than=other_than)
        return leader or self.wait_for_leader(other_than=other_than)

    def change(self, **settings: Any) -> None:
        """Change what Patroni keeps in etcd for the whole cluster."""
        leader = self.wait_until_healthy(synchronous=False)
        if _ask(leader, "PATCH", "/config", settings) is None:
            raise ServerError(f"Patroni did not take {settings}.")

    def said(self) -> str:
        """The end of what every machine logged, for a campaign that cannot go on."""
        logs = [one.log.read_text(encoding="utf-8", errors="replace") for one in self.machines]
        return f"{self.members()}\n" + "\n".join(log[-1500:] for log in logs)


def value(
    machine: Machine, query: str, *given: Any, database: str = TEST_DATABASE,
    port: int = POSTGRES_PORT,
) -> Any:  # fmt: skip
    """What a query answers in one cell, on one machine; nothing if it answers nothing."""
    with psycopg.connect(
        host=machine.address("front"), port=port, user=USER, dbname=database,
        autocommit=True, connect_timeout=5,
    ) as connection:  # fmt: skip
        done = connection.execute(query.encode(), given or None)
        row = done.fetchone() if done.description else None
        return row[0] if row else None


def wait_for(reached: Callable[[], bool], seconds: float, said: Callable[[], str]) -> None:
    """Wait until something is so.

    Raises:
        ServerError: it is not in time.
    """
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            raise ServerError(f"The cluster is not as it must be after {seconds:g} s.\n{said()}")
        time.sleep(POLL_SECONDS)


@contextmanager
def started(folder: Path, *, strict: bool = False) -> Iterator[Cluster]:
    """A healthy cluster with an empty test database."""
    binaries()
    lay_cables()
    cluster = Cluster(folder, strict)
    cluster.machines = [Machine(n, folder / f"node{n}.log") for n in range(1, SIZE + 1)]
    try:
        for machine in cluster.machines:
            machine.connect()
            cluster.configure(machine)
        for machine in cluster.machines:
            cluster.start(machine)
        leader = cluster.wait_until_healthy()
        value(leader, f"CREATE DATABASE {TEST_DATABASE}", database="postgres")
        yield cluster
    finally:
        for machine in cluster.machines:
            machine.signal(signal.SIGCONT)
            machine.close()


def _ask(
    machine: Machine, method: str, path: str, body: Any = None, *, any_body: bool = False
) -> Any:
    """The answer of a machine's Patroni; None if there is none, or not the one that is meant."""
    url = f"http://{machine.address('back')}:{PATRONI_PORT}{path}"
    sent = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, sent, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=ASK_SECONDS) as answer:  # noqa: S310
            text = answer.read()
            return True if any_body else json.loads(text)
    except (OSError, ValueError):
        return None


def _etcd(machine: Machine, all_of_them: list[Machine], folder: Path) -> list[str]:
    here = machine.address("back")
    peers = ",".join(f"{one.name}=http://{one.address('back')}:2380" for one in all_of_them)
    return [
        "etcd", "--name", machine.name, "--data-dir", str(folder / "etcd"),
        "--listen-client-urls", f"http://{here}:2379",
        "--advertise-client-urls", f"http://{here}:2379",
        "--listen-peer-urls", f"http://{here}:2380",
        "--initial-advertise-peer-urls", f"http://{here}:2380",
        "--initial-cluster", peers, "--logger", "zap", "--log-level", "error",
    ]  # fmt: skip


def _patroni(
    machine: Machine, all_of_them: list[Machine], folder: Path, *, strict: bool
) -> dict[str, Any]:
    here, user = machine.address("back"), {"username": USER, "password": "not-asked-for"}
    rest = f"{here}:{PATRONI_PORT}"
    shared = {
        "ttl": TTL_SECONDS, "loop_wait": 1, "retry_timeout": 2, "maximum_lag_on_failover": 1048576,
        # Not to start a primary that crashed where it was, but to let the standby take over.
        "primary_start_timeout": 0, "synchronous_mode": True, "synchronous_mode_strict": strict,
        "postgresql": {"use_pg_rewind": True, "use_slots": True, "parameters": _PARAMETERS},
    }  # fmt: skip
    return {
        "scope": "dpledger", "name": machine.name,
        "restapi": {"listen": rest, "connect_address": rest},
        "etcd3": {"hosts": [f"{one.address('back')}:2379" for one in all_of_them]},
        "bootstrap": {
            "dcs": shared,
            "initdb": [{"encoding": "UTF8"}, "data-checksums", {"auth": "trust"}],
            "pg_hba": ["local all all trust", "host all all 0.0.0.0/0 trust",
                       "host replication all 0.0.0.0/0 trust"],
        },
        "postgresql": {
            "listen": f"0.0.0.0:{POSTGRES_PORT}", "connect_address": f"{here}:{POSTGRES_PORT}",
            "data_dir": str(folder / "data"), "bin_dir": str(binaries()),
            "pgpass": str(folder / "pgpass"),
            "authentication": {"superuser": user, "replication": user, "rewind": user},
            "parameters": {"unix_socket_directories": str(folder)},
            "remove_data_directory_on_rewind_failure": True,
            "remove_data_directory_on_diverged_timelines": True,
        },
    }  # fmt: skip


def _bouncer(folder: Path) -> str:
    """Session mode: what a session was told (how long to wait for a lock) stays with it."""
    return f"""[databases]
* = host=127.0.0.1 port={POSTGRES_PORT}
[pgbouncer]
listen_addr = *
listen_port = {BOUNCER_PORT}
unix_socket_dir =
auth_type = trust
auth_file = {folder / "users"}
pool_mode = session
default_pool_size = 60
max_client_conn = 200
server_login_retry = 1
query_wait_timeout = 5
server_connect_timeout = 3
"""
