"""Problem documents: every refusal has a page, a status and an id; failures of our own too."""

import io
import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service import telemetry
from service.errors import InvalidRequestError, LedgerError, UnavailableError
from service.identity.keys import Role, create_key
from service.ledger import lookups
from service.schemas import field_errors
from service.schemas.field_errors import location_of
from service.storage.engine import transaction
from service.web import problems
from service.web.problems import PROBLEMS
from tests.conftest import AS_ADMIN
from tests.service.sockets import request

PAGES = Path(__file__).parents[2] / "docs" / "problems"


def refusals(error: type[LedgerError] = LedgerError) -> Iterator[type[LedgerError]]:
    for found in error.__subclasses__():
        yield found
        yield from refusals(found)


def test_every_problem_has_a_page_and_every_page_a_problem() -> None:
    assert {page.stem for page in PAGES.iterdir()} == set(PROBLEMS)
    assert {page.suffix for page in PAGES.iterdir()} == {".md"}


@pytest.mark.parametrize("slug", sorted(PROBLEMS))
def test_a_page_has_the_title_of_its_problem_and_says_what_to_do(slug: str) -> None:
    lines = (problems.problem_page(slug) or "").splitlines()
    assert lines[0] == f"# {PROBLEMS[slug][1]}"
    assert [line for line in lines if line.startswith("## ")] == [
        "## Why it happens",
        "## What to do",
    ]


def test_every_refusal_is_a_problem() -> None:
    assert len(set(refusals())) > 10
    for refusal in refusals():
        assert 400 <= PROBLEMS[refusal.slug][0] < 600, refusal
    assert {refusal.slug for refusal in refusals()} | {
        "internal-error",
        "method-not-allowed",
        "body-too-large",
        "request-timeout",
        "malformed-request",
    } == set(PROBLEMS)


def test_pages_are_served_without_a_key(
    engine: Engine, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    with transaction(engine) as connection:
        create_key(connection, name="some", scope=Role.VIEWER)
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as api:
        assert api.get("/v1/runs").status_code == 401
        for slug in PROBLEMS:
            answer = api.get(f"/problems/{slug}")
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
            assert answer.text == problems.problem_page(slug)
        assert api.get("/problems/unknown").json()["type"] == "/problems/not-found"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the service logs, as its own formatter writes it."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(telemetry.JsonFormatter())
    logger = logging.getLogger("dpledger")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield text
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_a_failure_of_our_own_is_a_problem_with_the_id_it_is_logged_under(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch, log: io.StringIO
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a secret of the inside")

    monkeypatch.setattr(lookups, "find_run", fail)
    answer = api.get("/v1/runs/run")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"] == "/problems/internal-error"
    assert "secret" not in answer.text
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    (failure,) = [line for line in lines if line["message"] == "unhandled"]
    assert failure["request_id"] == answer.headers["x-request-id"]
    assert "a secret of the inside" in failure["exception"]
    (request,) = [line for line in lines if line["message"] == "request"]
    assert (request["status"], request["path"]) == (500, "/v1/runs/run")


def test_answers_that_a_person_asks_for_end_their_line(api: httpx.Client) -> None:
    for path in ("/healthz", "/readyz", "/problems/not-found", "/v1/runs/none", "/none"):
        answer = api.get(path)
        assert answer.text.endswith("\n"), path
        assert not answer.text.endswith("\n\n"), path
        assert int(answer.headers["content-length"]) == len(answer.content)
    assert api.get("/healthz").json() == {"status": "alive"}
    assert api.get("/healthz").headers["content-type"] == "application/json"


def test_every_request_has_an_id_of_its_own(api: httpx.Client) -> None:
    answers = [api.get("/healthz"), api.get("/v1/runs/unknown"), api.get("/healthz")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == 3


def test_a_database_that_does_not_answer_asks_for_another_attempt(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UnavailableError("Send it again.")

    monkeypatch.setattr(lookups, "find_run", fail)
    answer = api.get("/v1/runs/run")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"] == "/problems/unavailable"


def test_a_wrong_method_is_told_the_right_ones(api: httpx.Client) -> None:
    assert api.delete("/v1/datasets/data").headers["allow"] == "GET, PATCH"
    answer = api.get("/v1/runs/run:finish")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (("body", "events", 3, "steps"), "body.events[3].steps"),
        (("body", "events", 0, "mechanism", "gaussian", "noise_multiplier"),
         "body.events[0].mechanism.noise_multiplier"),
        (("line 2", "sampling", "poisson"), "line 2.sampling"),
        (("body", "a\x1b[2J\ud800\n"), "body.a?[2J??"),
        (("body", "x" * 5000), "body." + "x" * 195),
        ((), ""),
    ],
)  # fmt: skip
def test_a_location_is_where_the_sender_finds_the_fault(
    parts: tuple[str | int, ...], text: str
) -> None:
    assert location_of(parts) == text


def test_an_answer_names_a_bounded_number_of_faults(api: httpx.Client) -> None:
    answer = api.post("/v1/runs", json={f"surplus{i}": 1 for i in range(10_000)})
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == field_errors.ERRORS_MAX


def test_a_client_that_leaves_before_it_has_said_what_to_record_is_no_failure(
    serve: Callable[..., AbstractContextManager[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with serve(new=True) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            headers = [b"Content-Type: application/json", b"Content-Length: 1000"]
            connection.sendall(request("POST", "/v1/runs/run/events", headers, b"{"))
        assert httpx.get(f"{address}/healthz").status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("location", "whole"),
    [
        ("events[3].steps", "body.events[3].steps"),
        ("release", "body.release"),
        ("body.delta", "body.delta"),
        ("body", "body"),
        ("bodyguard", "body.bodyguard"),
        ("query.delta", "query.delta"),
        ("queries[0]", "body.queries[0]"),
        ("path.run", "path.run"),
        ("header.last-event-id", "header.last-event-id"),
        ("line 4.steps", "line 4.steps"),
    ],
)
def test_a_place_begins_with_the_part_of_the_request(location: str, whole: str) -> None:
    error = InvalidRequestError(location, "must be 5")
    answer = problems.problem_answer(error)
    told = json.loads(bytes(answer.body))
    assert told["errors"] == [{"location": whole, "message": "must be 5"}]
    assert told["detail"] == f"{whole}: must be 5"
