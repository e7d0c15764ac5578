"""Connections: how many there are, and how long one may take to ask, and to take its answer."""

import asyncio
import json
import socket
import struct
import sys
from asyncio.events import TimerHandle
from typing import Any, ClassVar, Final

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.problems import MEDIA_TYPE, PROBLEMS, RETRY_AFTER_SECONDS
from service.settings import Settings

HEAD_BYTES_MAX: Final = 64 * 1024
# Of requests that were sent before their answers were awaited; nobody needs as many.
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
        super().data_received(data)
        if answered:
            self._discarded += len(data)
            if self._discarded > DISCARDED_BYTES_MAX:
                self._reset()
            return
        self._head_bytes += len(data)
        if self._waiting is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_bytes = self._discarded = 0
        self._in_body = False
        self._stop_waiting()
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_waiting()
        self._in_body = True
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

    def _unset_keepalive_if_required(self) -> None:
        """Bytes have come: what they begin must end in time, be it only a line's end."""
        super()._unset_keepalive_if_required()
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._waiting is None:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; without memory to read it nobody can say what it is."""
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


def bounded(settings: Settings) -> dict[str, Any]:
    """What uvicorn is told of connections."""
    limits = {
        "header_seconds": settings.header_seconds,
        "write_seconds": settings.write_seconds,
        "connections_max": settings.connections_max,
    }
    # The service speaks no WebSocket: nothing is to be upgraded. Nor does anything depend on whom
    # a proxy says that it speaks for, so that nobody need be believed.
    http = type("Bounded", (Connection,), limits)
    return {"http": http, "ws": "none", "proxy_headers": False}
