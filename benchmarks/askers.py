"""Connections that ask the same again as soon as they are answered, whatever the answer says.

They speak HTTP over plain sockets and look at no more of an answer than where it ends, so that to
ask costs as little as it can: the processors are for what is asked.
"""

import selectors
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Final

RECEIVED_BYTES: Final = 256 * 1024
LOOK_SECONDS: Final = 0.05
AGAIN_SECONDS: Final = 0.05  # until a connection that was closed is opened anew
CLOSED: Final = 0  # counted as a status
_LENGTH: Final = b"content-length:"
_HEAD_ENDS: Final = b"\r\n\r\n"


@dataclass(slots=True)
class Asked:
    """What came of it."""

    statuses: Counter[int] = field(default_factory=Counter)
    bytes: int = 0
    seconds: float = 0.0
    processor_seconds: float = 0.0  # that the asking took

    def add(self, other: "Asked") -> None:
        """Add another round."""
        self.statuses.update(other.statuses)
        self.bytes += other.bytes
        self.seconds += other.seconds
        self.processor_seconds += other.processor_seconds


@dataclass(slots=True)
class _Asker:
    """One connection."""

    socket: socket.socket
    head: bytes = b""
    left: int | None = None  # bytes of a body whose head is there

    def received(self, data: memoryview) -> int | None:
        """The status, once the answer is there to its end."""
        if self.left is not None:
            self.left -= len(data)
        else:
            self.head += data
            end = self.head.find(_HEAD_ENDS)
            if end < 0:
                return None
            place = self.head.lower().find(_LENGTH, 0, end)
            if place < 0:
                raise ConnectionError("an answer without Content-Length")
            length = int(self.head[place + len(_LENGTH) : end].partition(b"\r\n")[0])
            self.left = length - (len(self.head) - end - len(_HEAD_ENDS))
        if self.left > 0:
            return None
        status = int(self.head[9:12])
        self.head, self.left = b"", None
        return status


def ask_on(port: int, request: bytes, connections: int, told: Connection) -> None:
    """Ask over so many connections until told to stop; then tell what came of it."""
    found, buffer = Asked(), memoryview(bytearray(RECEIVED_BYTES))
    closed: list[float] = []  # when connections were
    with selectors.EpollSelector() as selector:
        for _ in range(connections):
            _open(selector, port, request)
        told.send(None)
        began, processor = time.perf_counter(), time.process_time()
        while not told.poll():
            for key, _ in selector.select(LOOK_SECONDS):
                if not _take(key.data, request, buffer, found):
                    selector.unregister(key.fileobj)
                    key.data.socket.close()
                    closed.append(time.perf_counter())
            while closed and time.perf_counter() - closed[0] > AGAIN_SECONDS:
                closed.pop(0)
                with suppress(OSError):
                    _open(selector, port, request)
        found.seconds = time.perf_counter() - began
        found.processor_seconds = time.process_time() - processor
    told.send(found)


def ask_once(port: int, request: bytes) -> int:
    """The status of one answer."""
    buffer = memoryview(bytearray(RECEIVED_BYTES))
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connected:
        connected.sendall(request)
        asker, status = _Asker(connected), None
        while status is None:
            count = connected.recv_into(buffer)
            if not count:
                return CLOSED
            status = asker.received(buffer[:count])
        return status


def _open(selector: selectors.BaseSelector, port: int, request: bytes) -> None:
    connected = socket.create_connection(("127.0.0.1", port), timeout=60)
    connected.sendall(request)
    selector.register(connected, selectors.EVENT_READ, _Asker(connected))


def _take(asker: _Asker, request: bytes, buffer: memoryview, found: Asked) -> bool:
    """Take what has come, and ask again at an answer's end; whether the connection is open."""
    try:
        count = asker.socket.recv_into(buffer)
        status = asker.received(buffer[:count]) if count else CLOSED
        found.bytes += count
        if status is not None:
            found.statuses[status] += 1
        if status:
            asker.socket.sendall(request)
    except OSError:
        found.statuses[CLOSED] += 1
        return False
    return status != CLOSED
