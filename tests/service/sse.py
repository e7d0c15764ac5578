"""Reading server-sent events as a browser does."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Frame:
    """One event; a comment has no data."""

    event: str
    id: str | None
    data: Any


def frames(lines: Iterator[str]) -> Iterator[Frame]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields or "" in fields:
            data = json.loads(fields["data"]) if "data" in fields else None
            yield Frame(fields.get("event", "comment"), fields.get("id"), data)
        fields = {}


@contextmanager
def watching(api: httpx.Client, path: str, **headers: str) -> Iterator[Iterator[Frame]]:
    """The frames of a stream, as they come."""
    with api.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        yield frames(answer.iter_lines())


def take(stream: Iterator[Frame], count: int) -> list[Frame]:
    return [next(stream) for _ in range(count)]
