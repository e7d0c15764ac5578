"""A line on a terminal about a request that takes long."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread, current_thread, main_thread
from typing import Final, TextIO

QUIET_SECONDS: Final = 2.0
TICK_SECONDS: Final = 1.0
_CLEAR: Final = "\r\x1b[K"


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Say on standard error what the script waits for, after two seconds and each second.

    Nothing is said where standard error is no terminal, and of requests in the background. The line
    is cleared at the end.
    """
    stream = sys.stderr
    if stream is None or not stream.isatty() or current_thread() is not main_thread():
        yield
        return
    ended = Event()
    thread = Thread(target=_tell, args=(stream, what, ended), name="dpledger-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(stream: TextIO, what: str, ended: Event) -> None:
    seconds, said = QUIET_SECONDS, False
    pause = QUIET_SECONDS
    while not ended.wait(pause):
        stream.write(f"{_CLEAR}dpledger: waits for {what}, {seconds:.0f} s")
        stream.flush()
        pause, said = TICK_SECONDS, True
        seconds += TICK_SECONDS
    if said:
        stream.write(_CLEAR)
        stream.flush()
