"""The server: uvicorn, which says first that it will stop, and ends the streams."""

import ctypes
import gc
import signal
import socket
import time
from types import FrameType
from typing import Any, Final

import uvicorn

# Objects made since the last sweep of the young; sweeps of these before one of the older ones,
# and of those before one of all, as often as Python does.
SWEEP_AFTER: Final = (50_000, 10, 10)
_M_ARENA_MAX: Final = -8  # of glibc's mallopt
_ARENAS: Final = 2


def share_arenas() -> None:
    """Let all threads that will be started take memory from the same few arenas.

    glibc gives each its own, which keep what they once held: memory grew by megabytes a minute.
    Another C library has no such option and needs none.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is not None:
        option(_M_ARENA_MAX, _ARENAS)


def settle() -> None:
    """Look for cycles of objects seldom, and never among what was made until now.

    Python looks at every object that lives to find cycles among those that do not. The service
    remembers many objects: looking as often as usual takes a third of the time of a large batch.
    So no request may leave a cycle behind (`errors.release`): until the next look one keeps all
    that it holds, and a few hundred large bodies would fill the memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SWEEP_AFTER)


class Server(uvicorn.Server):
    """Uvicorn waits for open requests before it stops the application; a stream never ends.

    Told to end by SIGTERM, it drains: it is not ready any more and ends its streams, yet answers
    for `drain_seconds`, in which whoever spreads the requests learns to send them elsewhere.
    """

    def __init__(self, config: uvicorn.Config, *, drain_seconds: float = 0.0) -> None:
        super().__init__(config)
        self._application: Any = config.app
        self._drain_seconds = drain_seconds
        self._ends_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain on the first SIGTERM; stop at once on a second, or when interrupted."""
        first = self._ends_at is None
        self._application.state.draining = True
        self._ends_at = time.monotonic() + self._drain_seconds
        super().handle_exit(sig, frame)
        if first and sig == signal.SIGTERM:
            self.should_exit = False

    async def on_tick(self, counter: int) -> bool:
        """Whether to stop now; uvicorn asks ten times a second."""
        if self._ends_at is not None:
            self._application.state.feed.close()
            if time.monotonic() >= self._ends_at:
                self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, whose readers resume elsewhere, then stop as uvicorn does."""
        self._application.state.feed.close()
        await super().shutdown(sockets)
