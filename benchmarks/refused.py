"""Memory after bodies that were refused, route by route.

    python benchmarks/refused.py [--count 300] [--bytes 3900000] [--route events] [--database URL]

Each route of the application that takes a body gets a service of its own, and that service so many
bodies of every kind, one after another on one connection with an admin's key. Reads the resident
memory of the service after some bodies and in the end. Ends with 1 if it grew by 20 MiB anywhere.
"""

import argparse
import http.client
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import urlencode

if __name__ == "__main__":
    # Run by its path, Python looks first in this folder, which hides the package `service`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.servers import Server, ServerError, create, migrated, new_dataset, running, service
from benchmarks.watchers import sign_in
from service.app import wire
from service.identity.authentication import KeyRing
from service.settings import Settings
from service.storage.engine import connect
from service.web.dashboard.routes import install_pages, page_modules

GROWTH_MAX: Final = 20.0  # MiB above the start
WARM: Final = 30  # bodies of each kind before the start: threads and caches find their size
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
FORM: Final = "application/x-www-form-urlencoded"
DATASET: Final = "data"
RUN: Final = "run"
APPENDS: Final = "POST /v1/runs/{run}/events"
_NAMES: Final = {"dataset": DATASET, "run": RUN, "reservation": "lease"}
_SMALL_BUDGET: Final = {"epsilon": 0.01, "delta": 1e-5}
_STEP: Final = {
    "steps": 1,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 0.5},
    "sampling": {"kind": "poisson", "sampling_probability": 0.0042},
}
_MEBIBYTE: Final = 1 << 20
_READING: Final = {"GET", "HEAD", "OPTIONS"}


def routes_with_bodies() -> list[str]:
    """Every route of the application that a body may be sent to: a method and a path."""
    engine = connect("sqlite:///never-opened.db")
    application = wire(engine, KeyRing(engine), Settings())
    install_pages(application, page_modules())
    methods: dict[str, set[str]] = application.state.methods
    return sorted(
        f"{method} {path}" for path, known in methods.items() for method in known - _READING
    )


@dataclass(frozen=True, slots=True)
class Body:
    """What is sent, again and again."""

    kind: str
    media_type: str
    content: bytes
    query: str = ""


@dataclass(frozen=True, slots=True)
class Growth:
    """The memory of a service that refused bodies of one kind on one route."""

    route: str
    kind: str
    statuses: tuple[int, ...]
    before: float  # MiB
    after: float

    @property
    def mib(self) -> float:
        """By how much it grew."""
        return self.after - self.before

    def __str__(self) -> str:
        """A line of the table."""
        statuses = ",".join(map(str, self.statuses))
        mark = "  GREW" if self.mib >= GROWTH_MAX else ""
        return (
            f"{self.route:<52} {self.kind:<22} {statuses:<8} {self.before:7.1f} {self.after:7.1f} "
            f"{self.mib:+7.1f}{mark}"
        )


def bodies(route: str, size: int) -> list[Body]:
    """Bodies of about a size that a route refuses."""
    if not route.partition(" ")[2].startswith("/v1/"):
        return [
            Body("a form, long field", FORM, urlencode({"csrf": "x" * (size - 5)}).encode()),
            Body("not a form", FORM, b"\xff" * size),
        ]
    found = [
        Body("spaces", JSON, b" " * size),
        Body("not UTF-8", JSON, b'"' + b"\xff" * size),
        Body("no end", JSON, b'{"x": "' + b"x" * size),
        Body("unknown field", JSON, json.dumps({"x": "x" * size}).encode()),
        Body("many numbers", JSON, json.dumps({"events": [1.5] * (size // 5)}).encode()),
    ]
    if route == APPENDS:
        found += [
            Body("spaces as lines", NDJSON, b" " * size),
            Body("lines, one is wrong", NDJSON, _lines(size) + b"{}"),
            Body("lines with spaces", NDJSON, _padded(size)),
            Body("beyond the budget", NDJSON, _lines(size), "?mode=charge"),
        ]
    return found


def _lines(size: int) -> bytes:
    """As many steps as a body may have, or as fit."""
    length = len(_line(0))
    return b"".join(_line(step) for step in range(min(9_900, size // length)))


def _line(step: int) -> bytes:
    return json.dumps({"first_step": step, **_STEP}).encode() + b"\n"


def _padded(size: int) -> bytes:
    """A line that is too long for what it says, and says something unknown at its end."""
    return json.dumps({"first_step": 0, **_STEP}).encode()[:-1] + b" " * size + b', "x": 1}'


def path_of(route: str) -> str:
    """A path of a route."""
    path = route.partition(" ")[2]
    return re.sub(r"{(\w+)}", lambda found: _NAMES.get(found[1], "other"), path)


class Sender:
    """A connection that sends bodies and reads the answers."""

    def __init__(self, port: int, key: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Cookie": sign_in(port, key),
            "Origin": f"http://127.0.0.1:{port}",
        }

    def send(self, route: str, body: Body) -> int:
        """The status of the answer.

        Raises:
            ServerError: the body was accepted.
        """
        headers = {**self._headers, "Content-Type": body.media_type}
        path = path_of(route) + body.query
        self._connection.request(route.partition(" ")[0], path, body.content, headers)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status < http.client.BAD_REQUEST:
            raise ServerError(f"{route} answered {body.kind} with {answer.status}.")
        return answer.status

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


@contextmanager
def sending(port: int, key: str) -> Iterator[Sender]:
    """A connection to a service, with a key."""
    sender = Sender(port, key)
    try:
        yield sender
    finally:
        sender.close()


def grown(server: Server, key: str, route: str, *, count: int, size: int) -> Iterator[Growth]:
    """The memory of a running service after so many bodies of each kind."""
    with sending(server.port, key) as sender:
        sent = bodies(route, size)
        for body in sent:
            for _ in range(min(WARM, count)):
                sender.send(route, body)
        for body in sent:
            before = server.memory_mib()
            statuses = {sender.send(route, body) for _ in range(count)}
            yield Growth(route, body.kind, tuple(sorted(statuses)), before, server.memory_mib())


def prepared(port: int, key: str) -> None:
    """A dataset with a budget that a few steps use up, and a run of it."""
    new_dataset(port, DATASET, key, budget=_SMALL_BUDGET)
    run: dict[str, Any] = {"name": RUN, "writer": "writer-token-of-the-run", "dataset": DATASET}
    create(port, "/v1/runs", run, key=key)


def _table(routes: Sequence[str], asked: argparse.Namespace, folder: Path) -> bool:
    url = asked.database or f"sqlite:///{folder / 'ledger.db'}"
    key, ready, small = migrated(url), False, True
    heads = f"{'route':<52} {'body':<22} {'answers':<8} {'MiB':>7} {'after':>7} {'grew':>7}"
    print(heads)
    for route in routes:
        server = service(url, folder)
        with running(server):
            if not ready:
                prepared(server.port, key)
                ready = True
            for one in grown(server, key, route, count=asked.count, size=asked.bytes):
                print(one, flush=True)
                small = small and one.mib < GROWTH_MAX
    return small


def main() -> int:
    """Send, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=300, help="bodies of each kind")
    parser.add_argument("--bytes", type=int, default=3_900_000, help="of each body")
    parser.add_argument("--route", default="", help="only routes with this in them")
    parser.add_argument("--database", help="the URL of an empty database; a SQLite file if none")
    asked = parser.parse_args()
    if not (1 <= asked.count <= 100_000 and 1000 <= asked.bytes <= 4 * _MEBIBYTE):
        parser.error("--count lies in [1, 100000], --bytes in [1000, 4194304]")
    routes = [one for one in routes_with_bodies() if asked.route in one]
    with TemporaryDirectory(prefix="dpledger-bench-") as name:
        return 0 if _table(routes, asked, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
