"""The entrance: sessions begun by a form, ended with their key, and forms of nobody else."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
from fastapi import Request
from sqlalchemy import Engine

from service.clock import now
from service.errors import ForbiddenError, LedgerError
from service.identity import sessions
from service.identity.keys import revoke_key, rotate_key
from service.storage.engine import transaction
from service.storage.tables import api_keys
from service.web.dashboard import viewer
from tests.service.browsing import WRONG, browser, csrf_of, make_key, sign_in, signed_in
from tests.service.sse import until

Serve = Callable[..., AbstractContextManager[str]]
HOST: Final = {"host": "ledger.example", "origin": "https://ledger.example"}


def test_who_is_not_signed_in_is_asked_to(engine: Engine, serve: Serve) -> None:
    make_key(engine, "first")
    with serve() as address, browser(address) as client:
        answer = client.get("/?a=1&b=2")
        assert (answer.status_code, answer.headers["location"]) == (
            303,
            "/sign-in?next=/%3Fa%3D1%26b%3D2",
        )
        assert client.get("/", headers={"cookie": "dpledger=" + "a" * 43}).status_code == 303
        part = client.get("/", headers={"hx-request": "true"})
        assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in")
        form = client.get(answer.headers["location"])
        assert 'name="next" value="/?a=1&amp;b=2"' in form.text


def test_a_session_is_begun_with_a_key_and_ended(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada")
    with serve() as address, browser(address) as client:
        wrong = sign_in(client, WRONG)
        assert wrong.status_code == 401
        assert "not in force" in wrong.text
        assert "set-cookie" not in wrong.headers
        assert WRONG not in wrong.text
        right = sign_in(client, f" {key}\n", next="/runs?state=active")
        assert (right.status_code, right.headers["location"]) == (303, "/runs?state=active")
        cookie = right.headers["set-cookie"].lower()
        assert cookie.startswith("dpledger=")
        assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/", "max-age"))
        assert "secure" not in cookie  # on this machine alone
        assert "ada · viewer" in client.get("/").text
        token = client.cookies["dpledger"]
        refused = client.post("/sign-out", data={"csrf": "0" * 64})
        assert refused.status_code == 403
        assert client.get("/").status_code == 200
        assert client.post("/sign-out", data={"csrf": csrf_of(client)}).status_code == 303
        assert "dpledger" not in client.cookies
        assert client.get("/", headers={"cookie": f"dpledger={token}"}).status_code == 303


def test_a_session_that_was_begun_again_is_another(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada")
    with serve() as address, signed_in(address, key) as client:
        before = client.cookies["dpledger"]
        assert sign_in(client, key).status_code == 303
        assert client.cookies["dpledger"] != before
        assert client.get("/", headers={"cookie": f"dpledger={before}"}).status_code == 303


def test_elsewhere_the_cookie_needs_tls(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada")
    with serve() as address, browser(address) as client:
        answer = client.post("/sign-in", data={"key": key}, headers=HOST)
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-dpledger=")
        assert "; Secure" in cookie
        token = cookie.partition(";")[0].partition("=")[2]
        for name, status in (("__Host-dpledger", 200), ("dpledger", 303)):
            sent = client.get("/", headers=HOST | {"cookie": f"{name}={token}"})
            assert sent.status_code == status
        open_to_all = client.post(
            "/sign-in", data={"key": key}, headers=HOST | {"origin": "http://ledger.example"}
        )
        assert open_to_all.status_code == 403
        assert "HTTPS" in open_to_all.text


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_no_other_site_signs_anybody_in(
    engine: Engine, serve: Serve, headers: dict[str, str]
) -> None:
    key = make_key(engine, "ada")
    with serve() as address, browser(address) as client:
        answer = client.post("/sign-in", data={"key": key}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


def asked(**headers: str) -> Request:
    """A form that was sent with a session's cookie."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": pairs})


TOKEN: Final = "t" * sessions.TOKEN_LENGTH
OWN: Final = {
    "host": "localhost:1",
    "origin": "http://localhost:1",
    "cookie": f"dpledger={TOKEN}",
    "x_csrf_token": sessions.csrf_token(TOKEN),
}


def test_an_own_form_is_taken() -> None:
    asyncio.run(viewer.require_own_form(asked(**OWN)))


@pytest.mark.parametrize(
    "change",
    [
        {"x_csrf_token": sessions.csrf_token("u" * sessions.TOKEN_LENGTH)},
        {"x_csrf_token": ""},
        {"x_csrf_token": "é"},
        {"cookie": f"dpledger={'u' * 43}"},
        {"origin": "http://localhost:2"},
        {"origin": "https://evil.example"},
        {"origin": "http://[::1"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_a_form_of_somebody_else_is_not(change: dict[str, str]) -> None:
    with pytest.raises((ForbiddenError, LedgerError)):
        asyncio.run(viewer.require_own_form(asked(**(OWN | change))))


def test_a_form_that_says_nothing_of_its_page_is_not() -> None:
    silent = {name: value for name, value in OWN.items() if name != "origin"}
    with pytest.raises(LedgerError, match="which page"):
        asyncio.run(viewer.require_own_form(asked(**silent)))


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"key=a&key=b", 400), (b"key=%ff", 400), (b"\xff=1", 400), (b"&".join([b"a=1"] * 200), 400)],
)
def test_a_form_is_read_strictly(api: httpx.Client, body: bytes, status: int) -> None:
    own = {"origin": str(api.base_url).rstrip("/"), "content-type": viewer.FORM}
    answer = api.post("/sign-in", content=body, headers=own)
    assert answer.status_code == status
    other = api.post("/sign-in", content=body, headers=own | {"content-type": "text/plain"})
    assert other.status_code == 415


@pytest.mark.parametrize(
    "path",
    ["//evil.example", "https://evil.example", "/\\evil.example", "evil", "/a\nb", "/sign-in",
     "/v1/runs", "/é", "", None, "/" + "a" * 2000, "\\/evil", "/\tevil"],
)  # fmt: skip
def test_nobody_is_led_elsewhere_by_signing_in(path: str | None) -> None:
    assert viewer.own_path(path) == "/"


def test_who_signs_in_comes_back() -> None:
    assert viewer.own_path("/runs/a?branch=main&x=%2F") == "/runs/a?branch=main&x=%2F"


def ends(engine: Engine, client: httpx.Client, change: Callable[[Any], object]) -> None:
    """What was changed ends a session, once the keys are read again."""
    assert client.get("/").status_code == 200
    with transaction(engine) as connection:
        change(connection)
    until(lambda: client.get("/").status_code == 303)


def expired(connection: Any) -> None:
    past = now() - timedelta(seconds=1)
    connection.execute(api_keys.update().values(expires_at=past))


@pytest.mark.parametrize(
    "change",
    [
        lambda connection: revoke_key(connection, "ada"),
        lambda connection: rotate_key(connection, "ada", grace_seconds=0),
        expired,
    ],
    ids=["revoked", "rotated", "expired"],
)
def test_a_session_ends_with_its_key(
    engine: Engine, serve: Serve, change: Callable[[Any], object]
) -> None:
    key = make_key(engine, "ada")
    with serve() as address, signed_in(address, key) as client:
        ends(engine, client, change)


def test_a_session_outlives_a_rotation_as_long_as_its_secret(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada")
    with serve() as address, signed_in(address, key) as client:
        with transaction(engine) as connection:
            other = rotate_key(connection, "ada", grace_seconds=3600)
        until(lambda: sign_in(client, other).status_code == 303)
        with signed_in(address, key) as before:
            assert before.get("/").status_code == 200
