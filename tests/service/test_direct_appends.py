"""Appends before the framework: answered as the framework answers them, in every case."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from service.app import create_app
from service.identity.keys import Role, Terms, create_key
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.transparency.recovery import LedgerStatus
from service.web.direct_appends import Application
from tests.service.correlated import noisy, separated
from tests.service.samples import BUDGET, FULL, WRITER, Json, event

EVENTS = "/v1/runs/run/events"
TYPE = (b"content-type", b"application/json")
HOST = (b"host", b"ledger")
Pairs = list[tuple[bytes, bytes]]
NAMES = ("admin", "trainer", "viewer", "here", "elsewhere", "slow", "once", "small")


@dataclass(kw_only=True)
class Sent:
    """A request as a server hands it over."""

    body: bytes
    key: str | None = "trainer"
    path: str = EVENTS
    query: bytes = b""
    method: str = "POST"
    headers: Pairs = field(default_factory=lambda: [HOST, TYPE])
    length: bool = True
    parts: int = 1  # messages in which the body arrives
    version: str = "1.1"
    direct: bool = False  # whether it is answered before the framework

    def scope(self, keys: dict[str, str]) -> dict[str, Any]:
        headers = list(self.headers)
        if self.key is not None:
            headers.append((b"authorization", f"Bearer {keys.get(self.key, self.key)}".encode()))
        if self.length:
            headers.append((b"content-length", b"%d" % len(self.body)))
        return {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": self.version,
            "method": self.method, "scheme": "http", "path": self.path,
            "raw_path": self.path.encode(), "query_string": self.query, "root_path": "",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
        }  # fmt: skip

    def messages(self) -> list[Json]:
        size = max(1, -(-len(self.body) // self.parts))
        pieces = [self.body[i : i + size] for i in range(0, len(self.body), size)] or [b""]
        return [
            {"type": "http.request", "body": piece, "more_body": place < len(pieces) - 1}
            for place, piece in enumerate(pieces)
        ]


def steps(*events: Json, **given: Any) -> bytes:
    return json.dumps({"branch": "main", "events": list(events)} | given).encode()


def usual(body: bytes, **given: Any) -> Sent:
    return Sent(body=body, direct=True, **given)


ONE = steps(event(9, 1))
GONE = steps(event(5, 1), mode="charge")
BIG = {"kind": "gaussian", "noise_multiplier": 0.05}
CASES: dict[str, Sent] = {
    "the first step": usual(steps(event(0, 1))),
    "the next": usual(steps(event(1, 1))),
    "the next, again": usual(steps(event(1, 1))),
    "several": usual(steps(event(2, 1), event(3, 2))),
    "a charge": usual(steps(event(5, 1), mode="charge")),
    "of an admin": usual(steps(event(6, 1)), key="admin"),
    "of a key with a rate": usual(steps(event(7, 1)), key="slow"),
    "beyond the rate": Sent(body=ONE, key="slow"),
    "refused within the rate": Sent(body=steps(event(50, 1)), key="once"),
    "of a key of this dataset": Sent(body=steps(event(8, 1)), key="here"),
    "of such a key again": usual(steps(event(8, 1)), key="here"),
    "of a key of another dataset": Sent(body=ONE, key="elsewhere"),
    "of a viewer": Sent(body=ONE, key="viewer"),
    "without a key": Sent(body=ONE, key=None),
    "with a wrong key": Sent(body=ONE, key="dpl_wrong"),
    "more than the key may send": Sent(body=ONE + b" " * 1100, key="small"),
    "too many bytes": Sent(body=ONE + b" " * 40_000_000),
    "of no declared length": Sent(body=ONE, length=False, headers=[HOST, TYPE]),
    "in two parts": Sent(body=steps(event(9, 2)), parts=2),
    "in two parts, the first one whole": Sent(body=ONE + b" " * len(ONE) + b"!", parts=2),
    "out of sequence": Sent(body=steps(event(50, 1))),
    "other content": Sent(body=steps(event(0, 1, sampling=FULL))),
    "beyond the budget": Sent(body=steps(event(11, 1000, mechanism=BIG), mode="charge")),
    "an unknown run": Sent(body=ONE, path="/v1/runs/none/events"),
    "an invalid name": Sent(body=ONE, path="/v1/runs/RUN/events"),
    "an unknown branch": Sent(body=steps(event(9, 1), branch="none")),
    "another writer": Sent(body=steps(event(9, 1), writer="another-writer-000001")),
    "no JSON": Sent(body=b"{"),
    "no body": Sent(body=b""),
    "an unknown field": Sent(body=steps(event(9, 1), more=1)),
    "a value out of range": Sent(body=steps(event(-1, 1))),
    "NaN": Sent(body=ONE.replace(b"1.1", b"NaN")),
    "a query": Sent(body=steps(event(11, 1)), query=b"branch=main"),
    "a query that contradicts": Sent(body=ONE, query=b"branch=other"),
    "an unknown query": Sent(body=ONE, query=b"more=1"),
    "two Hosts": Sent(body=ONE, headers=[HOST, HOST, TYPE]),
    "no Host": Sent(body=ONE, headers=[TYPE]),
    "no Host, HTTP/1.0": Sent(body=steps(event(12, 1)), headers=[TYPE], version="1.0"),
    "two types": Sent(body=ONE, headers=[HOST, TYPE, TYPE]),
    "no type": Sent(body=ONE, headers=[HOST]),
    "a charset": Sent(
        body=steps(event(13, 1)),
        headers=[HOST, (b"content-type", b"application/json; charset=utf-8")],
    ),
    "another charset": Sent(
        body=ONE, headers=[HOST, (b"content-type", b"application/json; charset=latin-1")]
    ),
    "compressed": Sent(body=ONE, headers=[HOST, TYPE, (b"content-encoding", b"gzip")]),
    "lines": Sent(
        body=json.dumps(event(14, 1)).encode() + b"\n",
        headers=[HOST, (b"content-type", b"application/x-ndjson")],
    ),
    "another method": Sent(body=ONE, method="PUT"),
    "the last": usual(steps(event(15, 1))),
}  # fmt: skip


class Twin:
    """A service in this process, and what it answered before the framework."""

    def __init__(self, folder: Path, *, direct: bool) -> None:
        url = f"sqlite:///{folder}/ledger.db"
        self.engine = connect(url)
        migrations.upgrade(self.engine)
        self.keys = self._keys()
        self.app: Application = create_app(Settings(database_url=url))
        self.framework_calls = 0
        appends = self.app._appends
        assert appends is not None
        self._framework = appends._framework
        appends._framework = self._counted
        if not direct:
            self.app._appends = None

    def _keys(self) -> dict[str, str]:
        scopes = {"admin": Role.ADMIN, "viewer": Role.VIEWER}
        terms = {
            "here": Terms(datasets=frozenset({"data"})),
            "elsewhere": Terms(datasets=frozenset({"other"})),
            "slow": Terms(requests_per_second=0.001),
            "once": Terms(requests_per_second=0.001),
            "small": Terms(body_bytes_max=1024),
        }
        with transaction(self.engine) as connection:
            return {
                name: create_key(
                    connection, name=name, scope=scopes.get(name, Role.TRAINER),
                    terms=terms.get(name, Terms()),
                )
                for name in NAMES
            }  # fmt: skip

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        self.framework_calls += 1
        await self._framework(scope, receive, send)

    async def ask(self, sent: Sent) -> tuple[int, dict[bytes, bytes], Any]:
        left, answer = sent.messages(), list[Any]()

        async def receive() -> Any:
            if not left:
                await asyncio.Event().wait()  # the client stays
            return left.pop(0)

        async def send(message: Any) -> None:
            answer.append(message)

        await self.app(sent.scope(self.keys), receive, send)
        headers = dict(answer[0]["headers"])
        headers.pop(b"x-request-id")
        content = b"".join(one.get("body", b"") for one in answer[1:])
        return answer[0]["status"], headers, json.loads(content)

    async def call(self, method: str, path: str, body: Json | None = None) -> Any:
        sent = Sent(
            body=b"" if body is None else json.dumps(body).encode(),
            method=method, path=path, key="admin",
        )  # fmt: skip
        status, _, content = await self.ask(sent)
        assert status in (200, 201), content
        return content

    async def begin(self) -> None:
        body = {
            "name": "data", "dataset_size": 60000, "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example", "budget": BUDGET,
        }  # fmt: skip
        await self.call("POST", "/v1/datasets", body)
        await self.call("POST", "/v1/runs", {"name": "run", "dataset": "data", "writer": WRITER})


@pytest.fixture(autouse=True)
def known_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework looks at keys and the ledger's state once, in the beginning."""
    monkeypatch.setattr("service.identity.authentication.KEY_REFRESH_SECONDS", 1e9)
    monkeypatch.setattr("service.web.middleware.STATUS_REFRESH_SECONDS", 1e9)


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[Sequence[Twin]]:
    """One that answers before the framework, and one that does not."""
    found = []
    for name, direct in (("direct", True), ("framework", False)):
        (tmp_path / name).mkdir()
        found.append(Twin(tmp_path / name, direct=direct))
    yield found
    for twin in found:
        twin.engine.dispose()


def together(twins: Sequence[Twin], act: Callable[[], Awaitable[None]]) -> None:
    """Do it while their services run."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for twin in twins:
                await stack.enter_async_context(twin.app.router.lifespan_context(twin.app))
                await twin.begin()
            await act()

    asyncio.run(run())


def test_each_request_is_answered_as_the_framework_answers_it(twins: Sequence[Twin]) -> None:
    async def act() -> None:
        direct, framework = twins
        for name, sent in CASES.items():
            before = direct.framework_calls
            found, expected = await direct.ask(sent), await framework.ask(sent)
            assert found == expected, name
            if sent.method == "POST":  # no other is looked at as an append
                assert (direct.framework_calls == before) is sent.direct, name
        for path in ("/v1/datasets/data", "/v1/runs/run"):
            found, expected = await direct.call("GET", path), await framework.call("GET", path)
            for part in (found, expected):
                for one in (part, *part.get("branches", ())):
                    one.pop("created_at")
            assert found == expected
        # A refusal is an incident; it is not recorded twice because two looked at it.
        kinds = [
            [one["kind"] for one in (await twin.call("GET", "/v1/incidents"))["incidents"]]
            for twin in twins
        ]
        assert kinds[0] == kinds[1]
        assert kinds[0].count("refusal") == 1

    together(twins, act)


def test_a_ledger_that_is_not_open_is_left_to_the_framework(twins: Sequence[Twin]) -> None:
    async def act() -> None:
        answers = []
        for twin in twins:
            twin.app.state.gate._standing = LedgerStatus("recovering")
            answers.append(await twin.ask(Sent(body=steps(event(0, 1)))))
        assert answers[0] == answers[1]
        assert answers[0][1][b"x-ledger-state"] == b"recovering"

    together(twins, act)


def test_what_must_be_looked_up_is_left_to_the_framework(
    twins: Sequence[Twin], monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = twins[0]

    async def left(sent: Sent) -> bool:
        before = twin.framework_calls
        await twin.ask(sent)
        return twin.framework_calls > before

    async def act() -> None:
        one = usual(steps(event(0, 1)))
        assert not await left(one)
        strategy = {"kind": "toeplitz", "coefficients": [1.0, 0.5]}
        kept = await twin.call("POST", "/v1/strategies", {"strategy": strategy})
        correlated = event(1, 1, mechanism=noisy(kept["digest"]), sampling=separated(n=2, b=2))
        assert await left(Sent(body=steps(correlated)))
        twin.app.state.keys.directory = Mock(admit=AsyncMock(), holder=lambda digest: None)
        assert await left(one)
        twin.app.state.keys.directory = None
        assert not await left(one)
        monkeypatch.setattr("service.identity.authentication.KEY_REFRESH_SECONDS", 0.0)
        assert await left(one)

    together([twin], act)


def test_requests_are_counted_and_named_alike(twins: Sequence[Twin]) -> None:
    async def act() -> None:
        for twin in twins:
            await twin.ask(usual(steps(event(0, 1))))
        counted = [
            {
                (sample.name, *sorted(sample.labels.items()))
                for family in twin.app.state.measures.families()
                for sample in family.samples
                if "/events" in str(sample.labels) or family.name == "dpledger_steps"
            }
            for twin in twins
        ]
        assert counted[0] == counted[1]
        assert all("trainer" in twin.app.state.keys.uses._noted for twin in twins)
        assert any("201" in str(one) or "2xx" in str(one) for one in counted[0])

    together(twins, act)


def test_a_body_that_does_not_come_is_refused_in_time(tmp_path: Path) -> None:
    twin = Twin(tmp_path, direct=True)
    twin.app._appends._seconds_max = 0.05  # type: ignore[union-attr]

    async def act() -> None:
        async def receive() -> Any:
            await asyncio.sleep(60)

        answer: list[Any] = []

        async def send(message: Any) -> None:
            answer.append(message)

        started = asyncio.get_running_loop().time()
        await twin.app(usual(ONE).scope(twin.keys), receive, send)
        assert answer[0]["status"] == 408
        assert asyncio.get_running_loop().time() - started < 5

    together([twin], act)
    twin.engine.dispose()
