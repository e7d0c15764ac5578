"""The first key in the browser: it ends the start token at once, and does not expire by default."""

import re
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service.clock import now
from service.formatting import moment
from service.identity.keys import Role
from service.storage.engine import transaction
from service.storage.tables import api_keys
from tests.service.browsing import browser, csrf_of, make_key, sign_in, signed_in
from tests.service.test_dataset_page import words
from tests.service.test_keys import Serve, bearer

BANNER = "No API key exists yet"
SOON = "Every admin key expires, the last one on"


def blank(text: str, name: str) -> str:
    found = re.search(rf'id="key-{name}" name="{name}" value="([^"]*)"', text)
    assert found, text
    return found[1]


def test_the_start_token_is_gone_from_the_answer_and_from_every_later_page(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve() as address, browser(address) as client:
        assert client.get("/sign-in", params={"token": START_TOKEN}).status_code == 303
        shown = client.get("/keys").text
        assert BANNER in shown
        assert blank(shown, "days") == ""
        assert '<option value="admin" selected>' in shown
        # No later request reads the keys anew because of their age.
        monkeypatch.setattr("service.identity.authentication.KEY_REFRESH_SECONDS", 3600.0)
        given = {"name": "officer", "scope": "admin", "csrf": csrf_of(client)}
        answer = client.post("/keys", data=given)
        assert answer.status_code == 200
        assert BANNER not in answer.text
        assert blank(answer.text, "days") == "90"  # of the next key, a trainer's
        assert "start token" not in words(client.get("/sign-in").text).lower()
        secret = re.search(r"dpl_[A-Za-z0-9_-]{43}", answer.text)
        assert secret
        assert sign_in(client, secret[0]).status_code == 303
        page = client.get("/").text
        assert BANNER not in page
        assert SOON not in page  # it never expires


def test_a_key_that_the_api_changes_counts_at_once_in_that_process(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = bearer(make_key(engine, "officer", Role.ADMIN))
    with serve() as address, httpx.Client(base_url=address, headers=admin) as api:
        assert api.get("/v1/runs").status_code == 200
        monkeypatch.setattr("service.identity.authentication.KEY_REFRESH_SECONDS", 3600.0)
        made = api.post("/v1/keys", json={"name": "cluster", "scope": "trainer"}).json()["secret"]
        assert api.get("/v1/runs", headers=bearer(made)).status_code == 200
        body = {"grace_seconds": 0}
        new = api.post("/v1/keys/cluster:rotate", json=body).json()["secret"]
        assert api.get("/v1/runs", headers=bearer(made)).status_code == 401
        assert api.get("/v1/runs", headers=bearer(new)).status_code == 200
        assert api.post("/v1/keys/cluster:revoke", json={"reason": "gone"}).status_code == 200
        assert api.get("/v1/runs", headers=bearer(new)).status_code == 401


def test_admins_are_told_before_the_last_admin_key_expires(engine: Engine, serve: Serve) -> None:
    end = now() + timedelta(days=29)
    admin = make_key(engine, "officer", Role.ADMIN, expires_at=end)
    reader = make_key(engine, "reader")
    make_key(engine, "gone", Role.ADMIN)
    with transaction(engine) as connection:  # it has expired
        gone = api_keys.update().where(api_keys.c.name == "gone")
        connection.execute(gone.values(expires_at=now() - timedelta(days=1)))
    with serve() as address, signed_in(address, admin) as client:
        for path in ("/", "/keys", "/incidents"):
            assert f"{SOON} {moment(end)}" in words(client.get(path).text)
        with signed_in(address, reader) as other:
            assert SOON not in other.get("/").text
        with transaction(engine) as connection:
            late = api_keys.update().where(api_keys.c.name == "officer")
            connection.execute(late.values(expires_at=now() + timedelta(days=31)))
        assert SOON not in client.get("/").text
        with transaction(engine) as connection:
            connection.execute(late.values(expires_at=end))
        assert SOON in client.get("/").text
        make_key(engine, "second", Role.ADMIN)  # which never expires
        assert SOON not in client.get("/").text
