"""Ports for servers that tests and benchmarks start; the standard library is enough."""

import random
import socket
from contextlib import suppress
from typing import Final

_UNASKED: Final = (20000, 32768)


def free_port() -> int:
    """A port without a listener.

    It is below those that Linux gives to sockets that name none: until the caller listens, no
    connection and no other server takes it by chance. Nor does another call, in this process or in
    another: this one keeps the UDP port of the same number.
    """
    chosen = random.SystemRandom()
    while True:
        port = chosen.randrange(*_UNASKED)
        kept = socket.socket(type=socket.SOCK_DGRAM)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            kept.bind(("127.0.0.1", port))
            kept.detach()  # it is open until this process ends
            return port
        kept.close()
