"""Every route of the OpenAPI document with every kind of key: allowed and denied as documented."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import Engine

from service.app import openapi_document
from service.clock import now
from service.identity.authentication import Admin, KeyRing, Viewer
from service.identity.keys import FREE, Role, Terms, create_key, revoke_key
from service.storage.engine import transaction
from service.storage.tables import api_keys
from service.transparency.signing import Signer
from service.web import problems
from tests.conftest import AS_ADMIN
from tests.service.samples import AUDIT, SAMPLING, Json, dataset, event, run
from tests.service.test_keys import WRITES, bearer

Serve = Callable[..., AbstractContextManager[str]]
DOCUMENT: Final = openapi_document()
API_GUIDE: Final = Path(__file__).parents[2] / "docs" / "api" / "README.md"
# What the paths name: of the dataset that a limited key may see, of another one, and of none.
SEEN: Final = {
    "dataset": "letters",
    "run": "letters-run",
    "reservation": "letters-lease",
    "change_request": "letters-asked",
    "incident": "incident-0-1",
}  # until `fill` knows it
HIDDEN: Final = {
    "dataset": "zebras",
    "run": "zebras-run",
    "reservation": "zebras-lease",
    "change_request": "zebras-asked",
    "incident": "incident-0-2",
}
NONE: Final = {
    "dataset": "unused",
    "run": "unused-run",
    "reservation": "unused-lease",
    "change_request": "unused-asked",
    "incident": "incident-99999-1",
}
SCHEMA: Final = "/v1/openapi.json"  # documentation, which does not document itself
_IDENTITY: Final = hashlib.sha256(b'{"kind":"identity"}').hexdigest()
OTHER: Final = {
    "bound": "gaussian-renyi",
    "slug": "conflict",
    "audit": "1",
    "key": "spare",
    "digest": f"sha256:{_IDENTITY}",
}
# Whatever else names a dataset, a run or a reservation, and so is asked `caller.require_dataset`.
NAMED_ELSEWHERE: Final = {
    ("post /v1/runs", "dataset"),
    ("get /v1/runs", "dataset"),
    ("get /v1/requests", "dataset"),
    ("get /v1/incidents", "dataset"),
    ("post /v1/datasets/{dataset}/explain", "run"),  # of that dataset, or not found
    ("post /v1/keys", "datasets"),  # an admin's, who reaches all of them
    ("post /v1/datasets", "parents"),
}
# What each scope may call, in words of the guide: the needed scopes of the calls.
MAY: Final = {
    Role.VIEWER: {Role.VIEWER},
    Role.TRAINER: {Role.VIEWER, Role.TRAINER},
    Role.OWNER: {Role.VIEWER, Role.TRAINER, Role.OWNER},
    Role.APPROVER: {Role.VIEWER, Role.APPROVER},
    Role.ADMIN: set(Role),
}
REFUSED: Final = {401, 403, 404, 429, 500}  # says what a caller that may call is never told


@dataclass(frozen=True)
class Call:
    """An operation of the document."""

    method: str
    route: str
    scopes: tuple[Role, ...]  # of which it needs one; empty where it needs no key

    def may(self, role: Role) -> bool:
        """Whether a key of this scope may make the call."""
        return not self.scopes or any(needed in MAY[role] for needed in self.scopes)

    @property
    def nouns(self) -> set[str]:
        return set(re.findall(r"{(\w+)}", self.route))

    @property
    def of_dataset(self) -> bool:
        return bool(self.nouns & SEEN.keys()) or "dataset" in (self.body(SEEN) or {})

    def path(self, names: dict[str, str]) -> str:
        known = OTHER | names
        return re.sub(r"{(\w+)}", lambda found: known[found[1]], self.route)

    def body(self, names: dict[str, str]) -> Json | None:
        if self.method == "get":
            return None
        _, body = WRITES[self.route]
        if self.route == "/v1/datasets":  # as an owner may create one
            derived = {"parents": [names["dataset"]], "rows_per_parent_record": "at_most_one"}
            return body | derived
        return body | {"dataset": names["dataset"]} if "dataset" in body else body


def scopes_of(operation: Json) -> tuple[Role, ...]:
    """The alternatives; each of them names one scope."""
    needed = [one["key"] for one in operation["security"]]
    assert all(len(scopes) == 1 for scopes in needed)
    return tuple(Role(scope) for (scope,) in needed)


def calls() -> Iterator[Call]:
    for route, operations in DOCUMENT["paths"].items():
        for method, operation in operations.items():
            yield Call(method, route, scopes_of(operation))


def fill(api: httpx.Client, names: dict[str, str], headers: dict[str, str]) -> None:
    """A dataset with something of everything that may be named."""
    path, budget = f"/v1/runs/{names['run']}", {"epsilon": 8.0, "delta": 1e-5}
    ahead = {"name": names["reservation"], "event": event(0, 1), "ttl_seconds": 600}
    too_much = {"events": [event(0, 10**6, sampling={"kind": "full"})]}  # an incident
    for where, body in {
        "/v1/datasets": dataset(names["dataset"], budget=budget),
        "/v1/runs": run(names["run"], dataset=names["dataset"]),
        f"{path}/reservations": ahead,
        f"{path}/events": too_much,
        f"{path}/findings": SAMPLING,
        f"{path}/audits": AUDIT,
    }.items():
        answer = api.post(where, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
    asked = {"reason": "x", "budget": budget | {"epsilon": 9.0}}
    with pytest.MonkeyPatch.context() as patch:  # the name of a request is random
        drawn = SimpleNamespace(token_hex=lambda _: names["change_request"])
        patch.setattr("service.ledger.change_requests.records.secrets", drawn)
        where = f"/v1/datasets/{names['dataset']}/requests"
        assert api.post(where, json=asked, headers=headers).status_code == 201
    happened = api.get(f"/v1/datasets/{names['dataset']}/incidents", headers=headers).json()
    names["incident"] = happened["incidents"][0]["id"]


@dataclass(frozen=True)
class House:
    """A service with two datasets and a key of every kind."""

    api: httpx.Client
    keys: dict[str, str | None]

    def ask(self, call: Call, key: str, names: dict[str, str] = SEEN) -> httpx.Response:
        secret = self.keys[key]
        headers = bearer(secret) if secret else {}
        request = self.api.build_request(
            call.method, call.path(names), json=call.body(names), headers=headers
        )
        answer = self.api.send(request, stream=True)
        if answer.headers["content-type"].startswith("text/event-stream"):
            answer.close()  # it has begun, and never ends
        else:
            answer.read()
        return answer


def make(engine: Engine) -> dict[str, str | None]:
    """A key of every kind, and none."""
    limited = {
        "here": SEEN, "elsewhere": HIDDEN, "viewer-elsewhere": HIDDEN, "owner": SEEN,
        "owner-elsewhere": HIDDEN, "approver-here": SEEN, "approver-elsewhere": HIDDEN,
    }  # fmt: skip
    scopes = {scope.value: scope for scope in Role} | {
        "here": Role.TRAINER, "elsewhere": Role.TRAINER, "viewer-elsewhere": Role.VIEWER,
        "owner-elsewhere": Role.OWNER, "approver-here": Role.APPROVER,
        "approver-elsewhere": Role.APPROVER,
        "expired": Role.ADMIN, "revoked": Role.ADMIN, "spare": Role.VIEWER,
    }  # fmt: skip
    keys: dict[str, str | None] = {"none": None, "wrong": "dpl_" + "x" * 43}
    with transaction(engine) as connection:
        for name, scope in scopes.items():
            terms = FREE
            if name in limited:
                terms = Terms(datasets=frozenset({limited[name]["dataset"], "new"}))
            keys[name] = create_key(connection, name=name, scope=scope, terms=terms)
        past = now() - timedelta(seconds=1)
        connection.execute(
            api_keys.update().where(api_keys.c.name == "expired").values(expires_at=past)
        )
        revoke_key(connection, "revoked")
    return keys


@pytest.fixture
def house(engine: Engine, serve: Serve, tmp_path: Path) -> Iterator[House]:
    keys, signing_key = make(engine), tmp_path / "signing_key"
    Signer.create(signing_key)
    with (
        serve(signing_key_file=signing_key, viewer_requests_per_second=1e6) as address,
        httpx.Client(base_url=address, timeout=30, headers=AS_ADMIN) as api,
    ):
        for names in (SEEN, HIDDEN):
            fill(api, names, bearer(str(keys["admin"])))
        yield House(api, keys)


def refusal(answer: httpx.Response) -> tuple[int, Json, str]:
    return answer.status_code, answer.json(), answer.headers["content-type"]


def allowed(answer: httpx.Response) -> bool:
    return answer.status_code not in REFUSED


def test_every_route_answers_the_scopes_it_names_and_no_others(house: House) -> None:
    offered = list(calls())
    assert len(offered) >= 38
    for call in offered:
        for key in ("none", "wrong", "expired", "revoked"):
            answer = house.ask(call, key)
            assert allowed(answer) == (not call.scopes), (call, key, answer.text)
            assert not call.scopes or answer.json()["type"] == "/problems/unauthorized"
        for scope in Role:
            answer = house.ask(call, scope)
            enough = call.may(scope)
            assert allowed(answer) == enough, (call, scope, answer.text)
            assert enough or answer.json()["type"] == "/problems/forbidden"


def test_a_limited_key_does_in_its_dataset_what_its_scope_may(house: House) -> None:
    for call in calls():
        for key, scope in (("here", Role.TRAINER), ("approver-here", Role.APPROVER)):
            answer = house.ask(call, key)
            assert allowed(answer) == call.may(scope), (call, answer.text)
            if not call.may(scope):
                assert refusal(answer) == refusal(house.ask(call, scope))


def test_to_a_limited_key_another_dataset_is_a_name_that_was_never_used(house: House) -> None:
    found = 0
    for call in calls():
        if not call.of_dataset:
            continue
        for key, unlimited in (
            ("elsewhere", "trainer"),
            ("viewer-elsewhere", "viewer"),
            # An owner without named datasets would be an admin in all that an owner may do.
            ("owner-elsewhere", "admin" if call.may(Role.OWNER) else "owner"),
            ("approver-elsewhere", "approver"),
        ):
            answer = refusal(house.ask(call, key))
            # Neither what is there nor what is not says more than an unlimited key is told.
            assert answer == refusal(house.ask(call, key, NONE)), call
            told = refusal(house.ask(call, unlimited, NONE))
            assert answer == told or told[0] == 422, call  # where the message alone is wrong
            found += answer == told
            assert answer[0] in (403, 404), call
            assert answer[0] == 404 or not call.may(Role.VIEWER), call
    assert found >= 80


def test_nothing_that_a_limited_key_is_answered_names_what_is_hidden(house: House) -> None:
    for call in calls():
        text = house.ask(call, "here").text if "stream" not in call.route else ""
        assert "zebras" not in text, call
        if not call.of_dataset and text:
            assert "letters" not in house.ask(call, "elsewhere").text, call


def test_the_documents_say_which_scope_each_route_needs() -> None:
    told = dict(documented(API_GUIDE.read_text(encoding="utf-8")))
    served = {
        f"{call.method.upper()} {call.route}": " or ".join(call.scopes) or "none"
        for call in calls()
    }
    assert told == served | {f"GET {SCHEMA}": "none", "GET /docs": "none"}


def test_the_document_itself_needs_no_key_and_says_nothing_of_any_ledger(house: House) -> None:
    answer = house.api.get(SCHEMA)
    assert (answer.status_code, answer.json()) == (200, DOCUMENT)


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Call and scope of every line of the guide's table; an ellipsis is the path before it."""
    path = ""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("|")][1:-1]
        found = re.findall(r"`([A-Z]+) (\S+)`", cells[0]) if len(cells) == 3 else []
        scopes = cells[1].split(", ") if found else []
        for number, (method, where) in enumerate(found):
            path = where if where != "\u2026" else path
            yield f"{method} {path}", scopes[min(number, len(scopes) - 1)]


def test_whatever_names_a_dataset_is_known_to_whoever_limits_keys() -> None:
    named = set(SEEN) | {"datasets", "parents"}
    found = set()
    for call in calls():
        operation = DOCUMENT["paths"][call.route][call.method]
        assert call.nouns <= SEEN.keys() | OTHER.keys() or call.nouns & SEEN.keys(), call
        fields = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
        bodies = operation.get("requestBody", {"content": {}})["content"].values()
        fields |= {field for body in bodies for field in properties(body["schema"])}
        found |= {(f"{call.method} {call.route}", field) for field in fields & named}
    assert found == NAMED_ELSEWHERE


def properties(schema: Json) -> set[str]:
    """The fields that a message of this schema may have itself."""
    if "$ref" in schema:
        return properties(DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in schema.get(key, [])]
    return set(schema.get("properties", {})).union(*map(properties, parts))


def test_of_two_scopes_that_an_endpoint_depends_on_the_larger_is_needed(engine: Engine) -> None:
    app, keys = FastAPI(), make(engine)
    app.state.keys = KeyRing(engine)
    problems.install_problems(app)

    @app.post("/both")
    async def both(_first: Viewer, _second: Admin) -> str:
        return "answered"

    async def status(key: str) -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app)) as api:
            headers = bearer(str(keys[key]))
            return (await api.post("http://127.0.0.1/both", headers=headers)).status_code

    for key, expected in (("viewer", 403), ("trainer", 403), ("admin", 200), ("wrong", 401)):
        assert asyncio.run(status(key)) == expected, key
