"""Bytes sent over a socket as they are, and every answer that comes back."""

import json
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.servers import START_TOKEN
from tests.service.samples import event

PATIENCE = 60.0  # seconds until a connection that should be closed is called open


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def slug(self) -> str:
        return str(json.loads(self.body)["type"]).removeprefix("/problems/")


class Talk:
    """A connection; sends bytes and reads whole answers."""

    def __init__(self, address: str) -> None:
        url = httpx.URL(address)
        self.socket = socket.create_connection((url.host, url.port or 80), timeout=PATIENCE)
        self.kept = b""

    def __enter__(self) -> "Talk":
        return self

    def __exit__(self, *_args: object) -> None:
        self.socket.close()

    def send(self, *parts: bytes, pause: float = 0.0) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # an answer may have ended it
            for part in parts:
                self.socket.sendall(part)
                time.sleep(pause)

    def answer(self) -> Answer | None:
        """The next answer; None where the connection was closed instead."""
        while b"\r\n\r\n" not in self.kept:
            if not self._more():
                return None
        head, _, self.kept = self.kept.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        while len(self.kept) < size and self._more():
            pass
        body, self.kept = self.kept[:size], self.kept[size:]
        return Answer(int(first.split()[1]), headers, body)

    def answers(self) -> list[Answer]:
        """Every answer until the connection is closed."""
        found = []
        while (answer := self.answer()) is not None:
            found.append(answer)
        return found

    def _more(self) -> bool:
        try:
            part = self.socket.recv(65536)
        except ConnectionResetError:
            return False
        self.kept += part
        return bool(part)


def request(
    method: str,
    path: str,
    headers: Iterable[bytes] = (),
    body: bytes = b"",
    *,
    end: bool = False,
    key: str = START_TOKEN,
) -> bytes:
    """A request as bytes; `end` asks for the connection to be closed after it."""
    bearer = f"Authorization: Bearer {key}".encode()
    head = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", bearer, *headers]
    if end:
        head.append(b"Connection: close")
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def steps(first_step: int, count: int = 1, **given: Any) -> bytes:
    return json.dumps({"events": [event(first_step, count)]} | given).encode()
