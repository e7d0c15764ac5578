"""A service as it is run, with everything under it in hand: workers, network, server, disk."""

import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.fault_disk import Disk, small_disk
from benchmarks.fault_network import Proxy
from benchmarks.fault_postgres import Postgres, own_postgres
from benchmarks.servers import Server, free_port, running

WORKERS: Final = 2
BUSY_SECONDS: Final = 1.0
DISK_MEBIBYTES: Final = 48
SETTINGS: Final = {"DPLEDGER_BUSY_TIMEOUT_SECONDS": str(BUSY_SECONDS)}


@dataclass(slots=True, kw_only=True)
class Site:
    """Two workers on one database."""

    database: str
    folder: Path
    random: Random
    url: str
    workers: list[Server] = field(default_factory=list)
    disk: Disk | None = None
    server: Postgres | None = None
    proxy: Proxy | None = None
    standbys: int = 0

    @property
    def ports(self) -> list[int]:
        """Of the workers."""
        return [worker.port for worker in self.workers]

    @property
    def file(self) -> Path:
        """Of a SQLite ledger."""
        return Path(self.url.removeprefix("sqlite:///"))

    @property
    def trap(self) -> Path:
        """A worker that commits while this file is there is killed."""
        return self.folder / "trap"

    def pids(self) -> list[int]:
        """Of the workers that live."""
        return [one.process.pid for one in self.workers if one.process is not None]

    def limit(self, what: int, value: int) -> None:
        """Limit what the workers may take."""
        for pid in self.pids():
            resource.prlimit(pid, what, (value, resource.prlimit(pid, what)[1]))

    def dead(self) -> list[Server]:
        """The workers that have died."""
        return [w for w in self.workers if w.process is None or w.process.poll() is not None]

    def any_dead(self) -> bool:
        """Whether one has."""
        return bool(self.dead())

    def revive(self) -> None:
        """Start the workers that have died."""
        for one in self.dead():
            one.kill()
            one.start()

    def wait(self) -> None:
        """Wait until all workers are ready."""
        for one in self.workers:
            one.wait()

    def add_workers(self) -> None:
        """As many as there are to be; they are not started yet."""
        for _ in range(WORKERS):
            port = free_port()
            words = ["serve", "--port", str(port), "--database", self.url]
            self.workers.append(
                Server(
                    arguments=["benchmarks.fault_worker", "commit", "1", "SIGKILL", str(self.trap),
                               *words],
                    port=port,
                    log=self.folder / f"{port}.log",
                    settings=dict(SETTINGS),
                )
            )  # fmt: skip


@contextmanager
def sqlite_site(folder: Path, random: Random) -> Iterator[Site]:
    """On a small disk of its own."""
    with small_disk(folder / "disk", mebibytes=DISK_MEBIBYTES) as disk:
        url = f"sqlite:///{disk.folder / 'ledger.db'}"
        site = Site(database="SQLite", folder=folder, random=random, url=url, disk=disk)
        with _served(site):
            yield site


@contextmanager
def postgres_site(folder: Path, random: Random) -> Iterator[Site]:
    """Behind a network that can be cut."""
    with ExitStack() as stack:
        server = stack.enter_context(own_postgres(folder / "pg"))
        proxy = stack.enter_context(Proxy(server.port))
        site = Site(
            database="PostgreSQL", folder=folder, random=random,
            url=server.url_at(proxy.port), server=server, proxy=proxy,
        )  # fmt: skip
        stack.callback(_stop_last, site)
        stack.enter_context(_served(site))
        yield site


def _stop_last(site: Site) -> None:
    """The server that took over last; the first is stopped by whoever started it."""
    if site.server is not None and site.standbys and site.server.running():
        site.server.stop("immediate")


@contextmanager
def _served(site: Site) -> Iterator[None]:
    site.add_workers()
    first, *others = site.workers
    with running(first), running(*others):
        yield
