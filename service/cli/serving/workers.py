"""Several processes that serve one address: `dpledger serve --workers`.

They share the sockets that the first process listens at, and nothing else. One that dies is started
again; one that cannot start ends all. When the first process is gone, however that happened, the
others end by themselves: their end of a pipe says so.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from service.errors import StartupError
from service.settings import Settings, address_of

_LOGGER: Final = logging.getLogger("dpledger")
AGAIN_SECONDS: Final = 1.0  # before a process that died is started again
# Of a command that refuses to start, and of uvicorn where the application does not.
_CANNOT_START: Final = frozenset({2, 3})
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def require_several(settings: Settings) -> None:
    """Refuse several processes on SQLite.

    Raises:
        StartupError: it is so.
    """
    if address_of(settings.database_url).get_backend_name() == "sqlite":
        raise StartupError(
            "DPLEDGER_WORKERS: SQLite has one writer at a time, so several processes need "
            "PostgreSQL."
        )


class Workers:
    """Processes that run one command on the same sockets."""

    def __init__(self, options: Sequence[str], sockets: list[socket.socket], count: int) -> None:
        """Args: what each process is told besides the sockets; those; how many processes."""
        self._sockets = [one.fileno() for one in sockets]
        self._options, self._count = list(options), count
        self._lifeline, self._held = os.pipe()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ending = False

    def run(self) -> int:
        """Keep so many processes until told to end; the exit code of the first that failed."""
        for number in _SIGNALS:
            signal.signal(number, self._end)
        for _ in range(self._count):
            self._start(greets=not self._processes)
        code = 0
        while self._processes:
            pid, status = os.wait()
            process = self._processes.pop(pid, None)
            if process is None or self._ending:
                continue
            found = process.returncode = os.waitstatus_to_exitcode(status)
            if found in _CANNOT_START:
                code = found
                self._end(signal.SIGTERM, None)
                continue
            _LOGGER.error("a worker ended with %d and is started again", found)
            time.sleep(AGAIN_SECONDS)
            self._start(greets=False)
        os.close(self._held)
        os.close(self._lifeline)
        return code

    def _start(self, *, greets: bool) -> None:
        shared = ",".join(map(str, [self._lifeline, *self._sockets]))
        process = subprocess.Popen(  # noqa: S603
            [
                sys.executable, "-m", "service.cli.main", "serve", *self._options,
                "--shared", shared, *([] if greets else ["--silent"]),
            ],
            pass_fds=[self._lifeline, *self._sockets],
            start_new_session=True,  # an interrupt from the keyboard comes once, through here
        )  # fmt: skip
        self._processes[process.pid] = process
        if self._ending:  # told so before or while the process was made
            _terminate(process.pid)

    def _end(self, _number: int, _frame: Any) -> None:
        self._ending = True
        # An interrupt would be lost in a process that still loads what it needs.
        for pid in self._processes:
            _terminate(pid)


def _terminate(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def shared_sockets(given: str) -> list[socket.socket]:
    """The sockets that the first process listens at; when it is gone, this one ends, too."""
    lifeline, *numbers = (int(one) for one in given.split(","))
    threading.Thread(target=_watch, args=(lifeline,), name="dpledger-lifeline", daemon=True).start()
    return [socket.socket(fileno=number) for number in numbers]


def _watch(lifeline: int) -> None:
    os.read(lifeline, 1)  # nothing is ever written: it ends with the last process that could
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(AGAIN_SECONDS)
