"""The server: uvicorn, which says first that it will stop, and ends the streams."""

import ctypes
import errno
import gc
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final

import uvicorn

from service.errors import StartupError

BACKLOG: Final = 2048  # connections that wait to be accepted
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


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Listen at every address of a host; in the end no more.

    Raises:
        StartupError: an address is in use or is none of this machine's.
    """
    found: list[socket.socket] = []
    with ExitStack() as stack:
        _listen(host, port, found, stack)
        yield found


def _listen(host: str, port: int, found: list[socket.socket], stack: ExitStack) -> None:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, *_, address in dict.fromkeys(addresses):
            listener = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            found.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # A free port was asked for: all addresses get the first one's.
            chosen = port or (found[0].getsockname()[1] if len(found) > 1 else 0)
            listener.bind((address[0], chosen, *address[2:]))
            listener.listen(BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"Port {port} of {host} is in use by another process; nothing was created. Choose "
                "another with --port or DPLEDGER_PORT."
            ) from None
        raise StartupError(f"Cannot listen on {host} port {port}: {error.strerror}.") from None


class Server(uvicorn.Server):
    """Uvicorn waits for open requests before it stops the application; a stream never ends.

    Told to end by SIGTERM, it drains: it is not ready any more and ends its streams, yet answers
    for `drain_seconds`, in which whoever spreads the requests learns to send them elsewhere.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain_seconds: float = 0.0,
        on_start: Callable[[], None] | None = None,
        on_stop: Callable[[], None] | None = None,
    ) -> None:
        """Args: how long to drain; what is called when requests are answered, and no more."""
        super().__init__(config)
        self._on_start, self._on_stop = on_start, on_stop
        self._application: Any = config.app
        self._drain_seconds = drain_seconds
        self._ends_at: float | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        if self.started and self._on_start is not None:
            self._on_start()

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
        if self._on_stop is not None:
            self._on_stop()
        await super().shutdown(sockets)
