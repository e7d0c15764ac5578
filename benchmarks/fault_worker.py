"""`dpledger` in a process that sends itself a signal at a chosen moment, once a file is there.

    python -m benchmarks.fault_worker commit 1 SIGKILL FILE serve --port 8000

The moments: `commit`, in which the thread that appends has written everything and commits next, and
`statement`, in which any statement is about to be sent. The number counts them from 1.

Without words it is told what to do by lines of its input, each of them as above, and writes a line
with what became of each: it forks, which takes less time than to start anew.
"""

import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, event

from service.cli.main import app
from service.storage import engine

WRITER: Final = "dpledger-writer"
TAKES_SECONDS: Final = 0.5  # longer than a signal takes, also on a busy machine


class Trap:
    """Counts moments while its file is there."""

    def __init__(self, number: int, name: str, file: Path) -> None:
        self._number = number
        self._signal = signal.Signals[name]
        self._file = file
        self._count = count(1)

    def spring(self) -> None:
        """Send the signal if this is the moment; a process that goes on has had it."""
        if self._file.exists() and next(self._count) == self._number:
            self._file.unlink()
            os.kill(os.getpid(), self._signal)
            time.sleep(TAKES_SECONDS)  # this thread runs on until the signal has arrived


def act(moment: str, number: str, name: str, file: str, *words: str) -> None:
    """Set the trap, then do as `dpledger` does."""
    trap = Trap(int(number), name, Path(file))

    commit = engine._commit

    def commits(connection: Connection) -> None:
        if threading.current_thread().name == WRITER:
            trap.spring()
        commit(connection)

    def executes(*_given: Any) -> None:
        trap.spring()

    if moment == "commit":
        engine._commit = commits
    else:
        event.listen(Engine, "before_cursor_execute", executes)
    app(list(words))


def main() -> None:
    """Act once, or for each line."""
    if len(sys.argv) > 1:
        act(*sys.argv[1:])
        return
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            act(*line.split())
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
