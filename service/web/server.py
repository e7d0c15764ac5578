"""Run uvicorn: it announces its stop, ends the streams, and closes slow connections."""

import asyncio
import ctypes
import errno
import gc
import json
import signal
import socket
import struct
import sys
import time
from asyncio.events import TimerHandle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, ClassVar, Final

import uvicorn
from httptools import HttpParserError
from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.errors import StartupError
from service.settings import Settings
from service.web.problems import MEDIA_TYPE, PROBLEMS, RETRY_AFTER_SECONDS

BACKLOG: Final = 2048  # connections that wait to be accepted
# Objects made since the last sweep of the young; sweeps of these before one of the older ones,
# and of those before one of all, as often as Python does.
SWEEP_AFTER: Final = (50_000, 10, 10)
_M_ARENA_MAX: Final = -8  # of glibc's mallopt
_ARENAS: Final = 2
HEAD_BYTES_MAX: Final = 64 * 1024
# Of pipelined requests; no known client sends as many.
PIPELINED_MAX: Final = 32
DISCARDED_BYTES_MAX: Final = 64 * 1024 * 1024  # of a body that was refused before it was read
TAKEN_BYTES_MIN: Final = 16 * 1024  # of an answer, in the time that a reader is given
_NOT_AT_ALL: Final = struct.pack("ii", 1, 0)  # how long to go on sending after the end
_FULL: Final = json.dumps(
    {
        "type": "/problems/unavailable",
        "title": PROBLEMS["unavailable"][1],
        "status": 503,
        "detail": "There are too many connections now; come again.",
    }
).encode()
_FULL_ANSWER: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\n"
    b"content-type: %b\r\ncontent-length: %d\r\nretry-after: %d\r\nconnection: close\r\n\r\n%b"
) % (MEDIA_TYPE.encode(), len(_FULL), RETRY_AFTER_SECONDS, _FULL)


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
    caches many objects: looking as often as usual takes a third of the time of a large batch.
    So no request may leave a cycle behind (`errors.release`): until the next look one keeps all
    that it holds, and a few hundred large bodies would fill the memory.
    """
    gc.freeze()  # without a look before: it takes a tenth of a start, and finds 2,000 objects
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
    for `drain_seconds`, in which the load balancer learns to send requests elsewhere.
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


class Connection(HttpToolsProtocol):
    """A connection that is closed when a head takes too long to arrive or an answer to be taken.

    Uvicorn ends a connection that says nothing after an answer; one that says a little at a time it
    would hold for ever, and one that never said anything, too. One that never reads it would hold
    with all that is left to be sent, even while it closes it.
    """

    header_seconds: ClassVar[float]
    write_seconds: ClassVar[float]
    connections_max: ClassVar[int]
    _waiting: TimerHandle | None = None  # while a head is awaited
    _in_head = False  # of the message that is arriving
    _looking: TimerHandle  # whether answers are taken
    _left: int | None = None  # of an answer at the last look, where it was being taken
    _head_bytes = 0
    _in_body = False  # of the message that is arriving
    _discarded = 0  # bytes of it that came after its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or tell it to come again."""
        super().connection_made(transport)
        self._looking = self.loop.call_later(self.write_seconds, self._look)
        if len(self.connections) > self.connections_max:
            transport.write(_FULL_ANSWER)
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        self._looking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless the connection is being closed."""
        if self.transport.is_closing():
            return
        # Many clients read no answer before they have sent the whole body: one that is refused
        # early is read to its end, for so long as a head may take, and thrown away.
        answered = self._in_body and self.cycle is not None and self.cycle.response_complete
        if answered and self._waiting is None:
            self._wait()
        super().data_received(data)
        if answered:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES_MAX:
                self._reset()
            return
        self._head_bytes += len(data)
        if not self._awaits_head():  # most heads come whole, and no clock runs for them
            return
        if self._waiting is None:
            self._wait()
        if self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_bytes = self._discarded = 0
        self._in_head, self._in_body = True, False
        self._stop_waiting()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_waiting()
        self._in_head, self._in_body = False, True
        super().on_headers_complete()
        if len(self.pipeline) > PIPELINED_MAX:
            # Without an answer: it would be read as that to another request.
            self.transport.abort()
            raise HttpParserError("too many requests at once")  # no further one is looked at

    def on_message_complete(self) -> None:
        """The body is there."""
        self._in_body = False
        super().on_message_complete()

    def resume_writing(self) -> None:
        """What was to be taken was taken, or nearly so."""
        self._left = None
        super().resume_writing()

    def _awaits_head(self) -> bool:
        """Whether bytes have come that are to become a head, be it only a line's end."""
        idle = self.cycle is None or self.cycle.response_complete
        return self._in_head or (idle and not self._in_body)

    def send_400_response(self, msg: str) -> None:
        """Refuse an invalid request; without memory to read it, its kind is not known."""
        if self.transport.is_closing():
            return
        error = sys.exc_info()[1]
        if error is not None and isinstance(error.__context__, MemoryError):
            self.transport.close()
            return
        super().send_400_response(msg)

    def _look(self) -> None:
        """End a connection whose reader has taken next to nothing since the last look."""
        leaving = self.flow.write_paused or self.transport.is_closing()
        left = self.transport.get_write_buffer_size() if leaving else None
        if left is not None and self._left is not None and self._left - left < TAKEN_BYTES_MIN:
            self._reset()
            return
        self._left = left
        self._looking = self.loop.call_later(self.write_seconds, self._look)

    def _reset(self) -> None:
        """End it now. To close it would wait for its reader, here or in the system's buffers."""
        connected = self.transport.get_extra_info("socket")
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOT_AT_ALL)
        self.transport.abort()

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.header_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send an answer in one write, where uvicorn would need two; False if it cannot be.

    The request is found by its `send`: stored in its scope, it would be a cycle (`settle`).
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return False
    if cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
        return False
    cycle.response_started = cycle.response_complete = True
    parts = [STATUS_LINE[status]]
    parts += [b"%b: %b\r\n" % header for header in [*cycle.default_headers, *headers]]
    cycle.transport.write(b"".join([*parts, b"\r\n", body]))
    cycle.message_event.set()
    cycle.on_response()
    return True


def connection_limits(settings: Settings) -> dict[str, Any]:
    """What uvicorn is told of connections."""
    limits = {
        "header_seconds": settings.header_seconds,
        "write_seconds": settings.write_seconds,
        "connections_max": settings.connections_max,
    }
    # The service does not use WebSocket, so nothing is upgraded. No decision depends on the client
    # address in headers of a proxy, so these headers need no trust.
    http = type("Bounded", (Connection,), limits)
    return {"http": http, "ws": "none", "proxy_headers": False}
