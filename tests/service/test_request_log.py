"""Each line of the request log names the key or the person that asked, and the trace."""

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.identity.keys import Role, Terms, create_key
from service.storage.engine import transaction
from service.telemetry import JsonFormatter
from tests.service.browsing import signed_in
from tests.service.samples import dataset, event
from tests.service.single_sign_on.providers import identity_provider

Serve = Callable[..., AbstractContextManager[str]]
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


@contextmanager
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines of the request log, as the process writes them."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("dpledger.http")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    slow = Terms(requests_per_second=0.001)
    with transaction(engine) as connection:
        return {
            "officer": create_key(connection, name="officer", scope=Role.ADMIN),
            "ann": create_key(connection, name="ann", scope=Role.TRAINER),
            "slow": create_key(connection, name="slow", scope=Role.VIEWER, terms=slow),
        }


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_the_log_names_the_key_also_where_it_was_refused(
    serve: Serve, secrets: dict[str, str]
) -> None:
    asked: list[tuple[str | None, str, str]] = [
        ("officer", "POST", "/v1/datasets"),
        ("ann", "POST", "/v1/datasets"),
        ("ann", "GET", "/v1/nothing"),
        ("ann", "POST", "/v1/runs/gone/events"),
        (None, "GET", "/v1/datasets"),
        *[("slow", "GET", "/v1/datasets")] * 3,
    ]
    answers = []
    with serve(new=True) as address, httpx.Client(base_url=address) as api, lines() as told:
        for key, method, path in asked:
            body = dataset() if path.endswith("datasets") else {"events": [event(0, 1)]}
            secret = secrets[key] if key else "dpl_" + "x" * 43
            json_body = body if method == "POST" else None
            answers.append(api.request(method, path, json=json_body, headers=bearer(secret)))
        answers.append(api.get("/v1/datasets"))
    by_request = {line["request_id"]: line for line in told()}
    found = [by_request[answer.headers["x-request-id"]] for answer in answers]
    assert [line.get("key") for line in found] == [*(key for key, *_ in asked), None]
    assert [line["status"] for line in found] == [201, 403, 404, 404, 401, 200, 429, 429, 401]
    for secret in secrets.values():
        assert secret not in json.dumps(told())


def test_the_log_names_the_trace_where_a_request_has_one(
    serve: Serve, secrets: dict[str, str]
) -> None:
    with serve(new=True) as address, httpx.Client(base_url=address) as api, lines() as told:
        api.headers.update(bearer(secrets["officer"]))
        traced = api.get("/v1/datasets", headers=SENT).headers["x-request-id"]
        plain = api.get("/v1/datasets").headers["x-request-id"]
        invalid = api.get("/v1/datasets", headers={"traceparent": "00-x"}).headers["x-request-id"]
    by_request = {line["request_id"]: line for line in told()}
    assert by_request[traced]["trace_id"] == TRACE
    assert "trace_id" not in by_request[plain]
    assert "trace_id" not in by_request[invalid]


def test_the_log_names_who_signed_in_with_a_key(serve: Serve, secrets: dict[str, str]) -> None:
    with (
        serve(new=True) as address,
        signed_in(address, secrets["officer"]) as browser,
        lines() as told,
    ):
        identifier = browser.get("/datasets").headers["x-request-id"]
    (line,) = [line for line in told() if line["request_id"] == identifier]
    assert line["key"] == "officer"


def test_the_log_names_a_person_by_issuer_and_subject(serve: Serve, tmp_path: Path) -> None:
    with (
        identity_provider() as provider,
        serve(identity_file=provider.file(tmp_path), host="127.0.0.1") as address,
        lines() as told,
    ):
        token = provider.token(sub="dana", groups=["officers"])
        httpx.get(f"{address}/v1/datasets", headers=bearer(token)).raise_for_status()
    (line,) = told()
    assert line["key"] == f"{provider.issuer}#dana"
    assert token not in json.dumps(line)
