"""The frame of the pages: who sees them, what guards them, and how errors are told."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine

from service.clock import now
from service.errors import UnavailableError
from service.operations.overview import Boards
from service.storage.engine import transaction
from service.storage.tables import installation
from service.web.dashboard.assets import assets, static_url
from service.web.dashboard.rendering import GUARDS, templates
from tests.service.browsing import HTML, WRONG, browser, make_key, sign_in, signed_in
from tests.service.office import key_of_each
from tests.service.samples import dataset, setup
from tests.service.sse import until

Serve = Callable[..., AbstractContextManager[str]]
INLINE: Final = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:")
LOADED: Final = re.compile(r'(?:src|href|action)="([^"]*)"')


def test_every_page_is_guarded_and_loads_nothing_from_elsewhere(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    setup(api)
    found = [api.get(path) for path in ("/", "/nothing-here/")]
    found.append(api.get("/nothing", headers=HTML))
    make_key(engine, "first")
    with serve() as address, browser(address) as client:
        found += [client.get("/sign-in"), sign_in(client, WRONG)]
    for answer in found:
        if answer.headers["content-type"].startswith("application/problem"):
            continue
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'")
        assert {name: answer.headers[name] for name in GUARDS} == GUARDS
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert not INLINE.search(answer.text)
        for where in LOADED.findall(answer.text):
            assert where.startswith(("/", "#")), where
        assert len(answer.content) < 150_000
        assert answer.text.count("<h1") == 1
        assert 'lang="en"' in answer.text


def test_files_are_kept_for_good_under_their_hash(api: httpx.Client) -> None:
    answer = api.get(static_url("dpledger.css"))
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert answer.content == assets()["dpledger.css"].body
    plain = api.get(static_url("dpledger.css"), headers={"accept-encoding": "identity"})
    assert plain.content == answer.content
    other = api.get("/static/dpledger.css", params={"v": "older"})
    assert other.headers["cache-control"] == "no-cache"
    again = api.get("/static/dpledger.css", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "/etc/passwd", "", "vendor", "."]
)
def test_nothing_but_the_files_is_sent(api: httpx.Client, address: str, path: str) -> None:
    answer = api.send(httpx.Request("GET", f"{address}/static/{path}"))
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_every_file_has_a_type_and_every_picture_a_hash() -> None:
    assert {"dpledger.css", "theme.js", "refresh.js", "icon.svg"} <= assets().keys()
    assert static_url("icon.svg").startswith("/static/icon.svg?v=")


def test_a_limited_key_sees_its_datasets_alone(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    for name in ("letters", "zebras"):
        assert api.post("/v1/datasets", json=dataset(name)).status_code == 201
    key = make_key(engine, "ada", datasets=frozenset({"letters"}))
    with serve() as address, signed_in(address, key) as client:
        page = client.get("/").text
        assert "letters" in page
        assert "zebras" not in page
        assert client.get("/datasets/zebras").status_code == 404
        for path in ("/theorems", "/theorems/gaussian-renyi", "/docs/theory"):  # of no dataset
            assert client.get(path).status_code == 200


def test_pages_count_against_the_rate_of_a_key(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada", requests_per_second=0.001)
    with serve() as address, signed_in(address, key) as client:
        answer = client.get("/")
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 1
        assert "share its rate" in answer.text
        assert sign_in(client, key).status_code == 429


def test_errors_are_pages_for_who_looks_and_problems_for_others(api: httpx.Client) -> None:
    page, problem = api.get("/nothing", headers=HTML), api.get("/nothing")
    assert (page.status_code, problem.status_code) == (404, 404)
    assert "Not found" in page.text
    assert problem.json()["type"] == "/problems/not-found"
    assert api.get("/v1/nothing", headers=HTML).json()["type"] == "/problems/not-found"
    wrong = api.post("/", headers=HTML)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET")
    assert "<h1>" in wrong.text


def test_an_unknown_address_keeps_the_navigation(engine: Engine, serve: Serve) -> None:
    key = make_key(engine, "ada")
    with serve() as address:
        with signed_in(address, key) as client:
            answer = client.get("/nothing")
            assert answer.status_code == 404
            assert 'aria-label="Main"' in answer.text
            assert "ada" in answer.text
        with browser(address) as client:
            assert 'aria-label="Main"' not in client.get("/nothing").text


def test_a_database_that_does_not_answer_is_told_in_words(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_given: object) -> None:
        raise UnavailableError("The database is busy.")

    monkeypatch.setattr(Boards, "look", fail)
    answer = api.get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "Nothing was lost" in answer.text


def test_a_defect_is_told_with_its_id(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_given: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(Boards, "look", fail)
    answer = api.get("/")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"] in answer.text
    assert "secret" not in answer.text
    assert {name: answer.headers[name] for name in GUARDS} == GUARDS


def test_a_suspended_ledger_says_so_on_every_page(api: httpx.Client, engine: Engine) -> None:
    said = '{"state":"suspended","reason":"<b>x</b>","lost":[],"signature":""}'
    with transaction(engine) as connection:
        connection.execute(installation.update().values(suspended=said, suspended_at=now()))
    until(lambda: "The ledger is suspended" in api.get("/").text)
    assert "<b>x</b>" not in api.get("/").text
    with transaction(engine) as connection:
        connection.execute(installation.update().values(suspended=None, suspended_at=None))
    until(lambda: "The ledger is suspended" not in api.get("/").text)


HOSTILE: Final = "\"><script>alert('x')</script><img src=x onerror=alert(1)>"


def test_what_was_sent_is_text_on_every_page(engine: Engine, serve: Serve) -> None:
    make_key(engine, "first")
    with serve() as address, browser(address) as client:
        answer = client.get("/sign-in", params={"next": f"/{HOSTILE}"})
        assert "<script>alert" not in answer.text
        assert "&lt;script&gt;alert" in answer.text
        wrong = sign_in(client, HOSTILE, next=f"/{HOSTILE}")
        assert "<script>alert" not in wrong.text
        missing = client.get(f"/nothing/{HOSTILE}")
        assert "<script>alert" not in missing.text


def test_macros_escape_what_they_are_given() -> None:
    ui: Any = templates().get_template("macros.html").module
    said = [
        ui.badge(HOSTILE, "bad", HOSTILE),
        ui.snippet(HOSTILE, HOSTILE),
        ui.meter(0.5, 0.1, HOSTILE),
        ui.csrf_field(HOSTILE),
        ui.status(HOSTILE),
        ui.run_state(HOSTILE),
        ui.pager({"previous": HOSTILE, "next": HOSTILE}),
        ui.bracket(1.0, 2.0, HOSTILE),
    ]
    for text in said:
        assert "<script>" not in text
        assert "<img" not in text


def test_pages_are_no_part_of_the_api_document(api: httpx.Client) -> None:
    paths = api.get("/v1/openapi.json").json()["paths"]
    assert not {"/", "/sign-in", "/sign-out"} & paths.keys()


def test_roles_differ_in_what_they_are(engine: Engine, serve: Serve) -> None:
    keys = key_of_each(engine, prefix="of-")
    with serve() as address:
        for scope, key in keys.items():
            with signed_in(address, key) as client:
                assert f"of-{scope} · {scope}" in client.get("/").text
