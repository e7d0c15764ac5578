"""Connections: how many there are, and how long one may take to say what it wants."""

import asyncio
import json
import sys
from asyncio.events import TimerHandle
from typing import Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.problems import MEDIA_TYPE, PROBLEMS, RETRY_AFTER_SECONDS
from service.settings import Settings

HEAD_BYTES_MAX: Final = 64 * 1024
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
    """A connection that is closed when the head of a request takes too long to arrive.

    Uvicorn ends a connection that says nothing after an answer; one that says a little at a time it
    would hold for ever, and one that never said anything, too.
    """

    header_seconds: ClassVar[float]
    connections_max: ClassVar[int]
    _waiting: TimerHandle | None = None  # while a head is awaited
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or tell it to come again."""
        super().connection_made(transport)
        if len(self.connections) > self.connections_max:
            transport.write(_FULL_ANSWER)
            transport.close()
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes, unless the connection is being closed."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._head_bytes += len(data)
        if self._waiting is not None and self._head_bytes > HEAD_BYTES_MAX:
            self.send_400_response("The head of the request is too large.")

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_bytes = 0
        self._stop_waiting()
        self._wait()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._stop_waiting()
        super().on_headers_complete()

    def _unset_keepalive_if_required(self) -> None:
        """Bytes have come: what they begin must end in time, be it only a line's end."""
        super()._unset_keepalive_if_required()
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._waiting is None:
            self._wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request; without memory to read it nobody can say what it is."""
        error = sys.exc_info()[1]
        if error is not None and isinstance(error.__context__, MemoryError):
            self.transport.close()
            return
        super().send_400_response(msg)

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
        "connections_max": settings.connections_max,
    }
    # The service speaks no WebSocket: nothing is to be upgraded.
    return {"http": type("Bounded", (Connection,), limits), "ws": "none"}
