"""The faults of benchmarks/faults.py: each is a moment that begins, lasts and is over."""

import os
import resource
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from benchmarks.fault_disk import Limited
from benchmarks.fault_network import Proxy, Watch, commits, inserts
from benchmarks.fault_postgres import Postgres
from benchmarks.fault_sites import Site
from benchmarks.servers import ServerError

LASTS_SECONDS: Final = 1.5  # longer than a lock is waited for
TRAP_SECONDS: Final = 20.0
SQLITE: Final = "SQLite"
POSTGRES: Final = "PostgreSQL"
BOTH: Final = (SQLITE, POSTGRES)
_BLOCK: Final = 4096

# Within it the fault has happened; after it the fault is over, but nothing is waited for.
Cause = Callable[[Site], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    databases: tuple[str, ...]
    cause: Cause
    answers: frozenset[int | str] = frozenset({200, 201, 503, "none"})  # that a trainer may get


def _hold() -> None:
    time.sleep(LASTS_SECONDS)


@contextmanager
def worker_killed(site: Site) -> Iterator[None]:
    """SIGKILL to one worker."""
    site.random.choice(site.workers).kill()
    yield
    site.revive()


@contextmanager
def all_killed(site: Site) -> Iterator[None]:
    """SIGKILL to all, as when the machine loses power."""
    for worker in site.workers:
        worker.kill()
    yield
    site.revive()


@contextmanager
def killed_before_commit(site: Site) -> Iterator[None]:
    """A worker dies with a batch that is written and not committed."""
    site.trap.touch()
    _wait(site.any_dead, "No worker has committed anything.")
    yield
    site.revive()


@contextmanager
def stands_still(site: Site) -> Iterator[None]:
    """SIGSTOP to one worker, wherever it is."""
    worker = site.random.choice(site.workers)
    if worker.process is None:
        raise ServerError("A worker is not there.")
    worker.process.send_signal(signal.SIGSTOP)
    try:
        _hold()
        yield
    finally:
        worker.process.send_signal(signal.SIGCONT)


@contextmanager
def out_of_memory(site: Site) -> Iterator[None]:
    """No worker gets memory that it does not have."""
    site.limit(resource.RLIMIT_AS, 1)
    _hold()
    yield
    site.limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
    site.revive()


@contextmanager
def locked(site: Site) -> Iterator[None]:
    """Another program holds the file of SQLite."""
    connection = sqlite3.connect(site.file, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    _hold()
    yield
    connection.close()


@contextmanager
def disk_full(site: Site) -> Iterator[None]:
    """Not a block is left."""
    if isinstance(site.disk, Limited) or site.disk is None:
        site.limit(resource.RLIMIT_FSIZE, site.file.stat().st_size)
    else:
        site.disk.fail()
    _hold()
    yield
    site.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    if site.disk is not None and not isinstance(site.disk, Limited):
        site.disk.mend()


@contextmanager
def no_writes(site: Site) -> Iterator[None]:
    """Every write to a file fails."""
    site.limit(resource.RLIMIT_FSIZE, _BLOCK)
    _hold()
    yield
    site.limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)


@contextmanager
def moved_away(site: Site) -> Iterator[None]:
    """The file and its log are moved away; then put back, and the workers started anew."""
    names = [site.file.name + suffix for suffix in ("", "-wal", "-shm")]
    elsewhere = site.file.parent / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    for name in names:
        with suppress(FileNotFoundError):
            os.replace(site.file.parent / name, elsewhere / name)
    _hold()
    yield
    for worker in site.workers:
        worker.kill()
    for name in names:
        with suppress(FileNotFoundError):
            os.replace(elsewhere / name, site.file.parent / name)
    site.revive()


def server_of(site: Site) -> tuple[Postgres, Proxy]:
    """What only PostgreSQL has."""
    if site.server is None or site.proxy is None:
        raise ServerError("This fault is one of PostgreSQL.")
    return site.server, site.proxy


def _down(stop: Callable[[Postgres], None]) -> Cause:
    @contextmanager
    def cause(site: Site) -> Iterator[None]:
        server, _ = server_of(site)
        stop(server)
        yield
        server.start()

    return cause


@contextmanager
def failover(site: Site) -> Iterator[None]:
    """The server dies, and the standby that had confirmed every commit takes its place."""
    server, proxy = server_of(site)
    site.standbys += 1
    name = f"standby{site.standbys}"
    standby = server.copy(site.folder / name, name)
    standby.start()
    server.execute(
        f"ALTER SYSTEM SET synchronous_standby_names = '{name}'", "SELECT pg_reload_conf()"
    )
    query = f"SELECT count(*) FROM pg_stat_replication WHERE application_name = '{name}' "  # noqa: S608
    _wait(lambda: server.value(query + "AND sync_state = 'sync'") == "1", "No standby followed.")
    time.sleep(LASTS_SECONDS)  # in which every commit waits for the standby
    server.kill()
    proxy.cut()
    yield
    standby.promote()
    proxy.target = standby.port
    site.server = standby


@contextmanager
def cut(site: Site) -> Iterator[None]:
    """Every connection to the database is cut, and new ones are refused for a while."""
    _, proxy = server_of(site)
    proxy.refuse()
    _hold()
    yield
    proxy.refuse(False)


def _cut_at(moment: str, watch: Watch) -> Cause:
    @contextmanager
    def cause(site: Site) -> Iterator[None]:
        _, proxy = server_of(site)
        before = proxy.caused
        proxy.arm(moment, watch)
        _wait(lambda: proxy.caused > before, "Nothing was sent to the database.")
        yield

    return cause


@contextmanager
def silent(site: Site) -> Iterator[None]:
    """The database takes everything and answers nothing."""
    _, proxy = server_of(site)
    proxy.silence()
    _hold()
    yield
    proxy.silence(False)


def _wait(true: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + TRAP_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise ServerError(otherwise)
        time.sleep(0.005)


_MEMORY: Final = frozenset[int | str]({200, 201, 500, 503, "none"})
FAULTS: Final = (
    Fault("worker-killed", BOTH, worker_killed),
    Fault("all-workers-killed", BOTH, all_killed),
    Fault("killed-before-commit", BOTH, killed_before_commit),
    Fault("worker-stands-still", BOTH, stands_still),
    Fault("out-of-memory", BOTH, out_of_memory, _MEMORY),
    Fault("file-locked", (SQLITE,), locked),
    Fault("disk-full", (SQLITE,), disk_full),
    Fault("no-writes", (SQLITE,), no_writes),
    Fault("file-moved-away", (SQLITE,), moved_away),
    Fault("server-stopped", (POSTGRES,), _down(lambda server: server.stop("fast"))),
    Fault("server-stopped-at-once", (POSTGRES,), _down(lambda server: server.stop("immediate"))),
    Fault("server-killed", (POSTGRES,), _down(Postgres.kill)),
    Fault("failover", (POSTGRES,), failover),
    Fault("network-cut", (POSTGRES,), cut),
    Fault("cut-before-insert", (POSTGRES,), _cut_at("before", inserts)),
    Fault("cut-before-commit", (POSTGRES,), _cut_at("before", commits)),
    Fault("cut-after-commit", (POSTGRES,), _cut_at("after", commits)),
    Fault("database-silent", (POSTGRES,), silent),
)
