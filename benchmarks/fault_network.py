"""A proxy between a service and its database that cuts, or falls silent, at a chosen moment."""

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

from benchmarks.servers import free_port

CHUNK: Final = 65536
POLL_SECONDS: Final = 0.05

Watch = Callable[[bytes], bool]


class Proxy:
    """Passes bytes on, until what it was told to watch for is sent.

    Then it does once what `fault` says: `before` cuts without passing that on, `after` passes it on
    and cuts as soon as the answer comes, which it keeps; `silent` passes nothing on any more.
    """

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self.target = target
        self.caused = 0
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._fault: tuple[str, Watch] | None = None
        self._refusing = False
        self._silent = False
        self._closed = False
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closed = True
        self._listener.close()
        self.cut()
        self._thread.join()

    def arm(self, fault: str, watch: Watch) -> None:
        """Do this once, when `watch` says so of everything that a session has sent since then."""
        self._fault = (fault, watch)

    def refuse(self, refusing: bool = True) -> None:
        """Take no new connections and cut those that are open; or take them again."""
        self._refusing = refusing
        if refusing:
            self.cut()

    def silence(self, silent: bool = True) -> None:
        """Keep everything that is sent, in both directions; or pass it on again."""
        self._silent = silent

    def cut(self) -> None:
        """Cut what is open."""
        for one in tuple(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closed:
            try:
                ready, _, _ = select.select([self._listener], [], [], POLL_SECONDS)
                if not ready:
                    continue
                client, _ = self._listener.accept()
            except (OSError, ValueError):  # closed
                return
            if self._refusing:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        self._open |= {client, server}
        try:
            self._pass_on(client, server)
        except OSError:  # one of them has left
            pass
        finally:
            self._open -= {client, server}
            client.close()
            server.close()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        cut_at_answer, sent = False, b""
        while not self._closed:
            ready, _, _ = select.select([client, server], [], [], POLL_SECONDS)
            if self._silent:
                threading.Event().wait(POLL_SECONDS)
                continue
            for one in ready:
                data = one.recv(CHUNK)
                if not data or (one is server and cut_at_answer):
                    return
                if one is client:
                    sent = sent + data if self._fault else b""
                    fault = self._due(sent)
                    if fault == "before":
                        return
                    cut_at_answer = fault == "after"
                (server if one is client else client).sendall(data)

    def _due(self, sent: bytes) -> str | None:
        if self._fault is None or not self._fault[1](sent):
            return None
        fault, self._fault = self._fault[0], None
        self.caused += 1
        return fault


def inserts(sent: bytes) -> bool:
    """Whether entries were sent to PostgreSQL."""
    return b"INSERT INTO entries" in sent


def commits(sent: bytes) -> bool:
    """Whether entries were sent, and then a commit; others commit what they read."""
    return b"COMMIT" in sent.partition(b"INSERT INTO entries")[2]
