"""A port that a test gives to a server is given to no other, here and in other processes."""

import random
import socket
from types import SimpleNamespace

import pytest

from benchmarks.ports import free_port


def test_a_port_is_given_once_and_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    given = free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", given))
    drawn = iter(range(given, given + 1000))
    monkeypatch.setattr(
        random, "SystemRandom", lambda: SimpleNamespace(randrange=lambda *_: next(drawn))
    )
    assert free_port() > given
    with socket.socket(type=socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", given))  # as another process would
