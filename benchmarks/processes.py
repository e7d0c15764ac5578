"""Load in a process of its own, beside what is measured."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any


def _begin(
    work: Callable[..., None], given: tuple[Any, ...], niceness: int, told: Connection
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # it may be ended at any moment
    os.nice(niceness)
    work(*given, told)


@contextmanager
def beside(
    work: Callable[..., None], *given: Any, settle_seconds: float, niceness: int = 0
) -> Iterator[Connection]:
    """Work that has begun when the block does, and is ended with it.

    Args:
        work: called with what is given and a connection, over which it says that it has begun.
        given: see above.
        settle_seconds: that pass before the block once it has begun.
        niceness: added to that of this process.
    """
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_begin, args=(work, given, niceness, theirs), daemon=True
    )
    process.start()
    theirs.close()
    try:
        ours.recv()
        time.sleep(settle_seconds)
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()
