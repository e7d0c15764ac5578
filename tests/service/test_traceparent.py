"""The header `traceparent` is kept beside what a request records, and changes nothing else."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import copy_context
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, select

from service import trace_context
from service.storage.engine import snapshot
from service.storage.tables import acts, entries
from service.trace_context import TRACEPARENT_LENGTH
from service.transparency.verification.ledger import verify
from service.transparency.verification.report import Broken
from service.web.middleware import begin_request, read_traceparent
from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET, Json, dataset, event, run, setup

Serve = Callable[..., AbstractContextManager[str]]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{PARENT}-01"
INVALID = [
    "", "00", f"00-{TRACE}-{PARENT}", f"00-{TRACE}-{PARENT}-01-more", f"ff-{TRACE}-{PARENT}-01",
    f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{PARENT}-01",
    f"00-{TRACE[:-1]}g-{PARENT}-01", f"00_{TRACE}_{PARENT}_01", f"0-{TRACE}-{PARENT}-01",
    f"00-{TRACE}0-{PARENT}-01", f"00-{TRACE}-{PARENT}-1", f"{VALID}, {VALID}", VALID * 500,
    f"cc-{TRACE}-{PARENT}-01more", f"00-{TRACE}-{PARENT}-0\u0661", "'; DROP TABLE entries; --",
    f"00-{TRACE}-{PARENT}-0\x80", "<script>", f"{VALID}\x00",
]  # fmt: skip


def header(value: str | bytes) -> list[tuple[bytes, bytes]]:
    return [(b"traceparent", value if isinstance(value, bytes) else value.encode())]


@pytest.fixture
def api(serve: Serve) -> Iterator[httpx.Client]:
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as client:
        yield client


def kept(engine: Engine) -> list[tuple[int, str | None]]:
    """The traceparent of each entry, by its first step."""
    query = select(entries.c.first_step, entries.c.traceparent).order_by(entries.c.sequence)
    with snapshot(engine) as connection:
        return [(row.first_step, row.traceparent) for row in connection.execute(query)]


def broken(engine: Engine) -> list[Broken]:
    with snapshot(engine) as connection:
        return verify(connection).broken


def post(api: httpx.Client, first: int, trace: str | None, steps: int = 1) -> httpx.Response:
    sent = {} if trace is None else {"traceparent": trace}
    body: Json = {"events": [event(first, steps)]}
    return api.post("/v1/runs/run/events", json=body, headers=sent)


@pytest.mark.parametrize("value", INVALID)
def test_an_invalid_traceparent_is_ignored(value: str) -> None:
    assert read_traceparent(header(value)) is None


def test_a_request_does_not_have_the_trace_of_the_one_before() -> None:
    def traces() -> list[str | None]:
        found = []
        for sent in (header(VALID), [], header("unreadable")):
            begin_request(sent)
            found.append(trace_context.trace_id.get())
        return found

    assert copy_context().run(traces) == [TRACE, None, None]


def test_two_traceparents_are_none() -> None:
    assert read_traceparent(header(VALID) * 2) is None
    assert read_traceparent([]) is None
    assert read_traceparent([(b"tracestate", VALID.encode())]) is None


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (VALID, VALID),
        (f" {VALID}\t", VALID),
        (f"00-{TRACE}-{PARENT}-00", f"00-{TRACE}-{PARENT}-00"),
        (f"00-{TRACE}-{PARENT}-ff", VALID),
        (f"00-{TRACE}-{PARENT}-02", f"00-{TRACE}-{PARENT}-00"),
        (f"cc-{TRACE}-{PARENT}-01", VALID),
        (f"cc-{TRACE}-{PARENT}-01-what-the-future-will-be-like", VALID),
    ],
)
def test_a_valid_traceparent_is_read_in_the_form_of_version_00(value: str, found: str) -> None:
    assert read_traceparent(header(value)) == found
    assert len(found) == TRACEPARENT_LENGTH


@given(st.binary(max_size=80) | st.from_regex(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-..(-.*)?"))
def test_whatever_is_sent_what_is_kept_has_one_form(value: bytes) -> None:
    found = read_traceparent(header(value))
    assert found is None or read_traceparent(header(found)) == found
    assert found is None or len(found) == TRACEPARENT_LENGTH


def test_an_entry_keeps_the_trace_of_the_request_that_recorded_it(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    other = f"00-{'a' * 32}-{PARENT}-00"
    for first, trace in ((0, VALID), (1, None), (2, other), (3, "00-nothing")):
        assert post(api, first, trace).status_code == 201
    assert kept(engine) == [(0, VALID), (1, None), (2, other), (3, None)]
    # A retry records nothing, so the first trace stays; a longer one keeps its own for its rest.
    again = post(api, 0, other)
    assert (again.status_code, again.json()["duplicates"]) == (200, 1)
    assert post(api, 3, VALID, steps=2).json()["accepted"] == 1
    assert kept(engine)[4:] == [(4, VALID)]
    assert kept(engine)[0] == (0, VALID)
    assert broken(engine) == []


def test_a_reader_goes_from_an_entry_or_an_act_to_its_trace(
    api: httpx.Client, engine: Engine
) -> None:
    sent = {"traceparent": VALID}
    api.post("/v1/datasets", json=dataset(budget=BUDGET), headers=sent).raise_for_status()
    api.post("/v1/runs", json=run(delta=1e-5)).raise_for_status()
    post(api, 0, VALID).raise_for_status()
    told = api.get("/v1/datasets/data/acts").json()["acts"]
    assert [one["traceparent"] for one in told if one["kind"] == "dataset"] == [VALID]
    assert [one["traceparent"] for one in told if one["kind"] == "run"] == [None]
    assert [one["traceparent"] for one in told if one["kind"] == "appends"] == [VALID]
    log = "/v1/datasets/data/log/inclusion"
    proof = api.get(log, params={"sequence": 1}).json()
    assert (proof["traceparent"], proof["data"]["kind"]) == (VALID, "entry")
    assert "traceparent" not in proof["data"]
    assert api.get(log, params={"position": 0}).json()["traceparent"] == VALID
    with api.stream("GET", "/v1/datasets/data/stream", headers={"Last-Event-ID": "0"}) as stream:
        frame = next(line for line in stream.iter_lines() if '"first_step":0' in line)
    assert f'"traceparent":"{VALID}"' in frame
    assert f"<code>{TRACE}</code>" in api.get("/runs/run").text
    assert broken(engine) == []


def test_other_writes_keep_it_too_and_it_never_makes_two_requests_different(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    lease: Json = {"name": "lease", "event": event(0, 9), "ttl_seconds": 60}
    for trace, status in ((VALID, 201), (f"00-{'b' * 32}-{PARENT}-01", 200)):
        sent = {"traceparent": trace}
        answer = api.post("/v1/runs/run/reservations", json=lease, headers=sent)
        assert answer.status_code == status, answer.text
        assert api.post("/v1/datasets", json=dataset(budget=BUDGET), headers=sent).is_success
    with snapshot(engine) as connection:
        query = select(acts.c.kind, acts.c.traceparent).where(acts.c.traceparent.is_not(None))
        assert [tuple(row) for row in connection.execute(query)] == [("reservation", VALID)]


def test_requests_that_are_committed_together_keep_each_its_own(
    serve: Serve, engine: Engine
) -> None:
    count = 24

    async def together(address: str) -> None:
        async with httpx.AsyncClient(base_url=address, headers=AS_ADMIN, timeout=60) as api:

            async def one(number: int) -> httpx.Response:
                trace = {"traceparent": f"00-{number + 1:032x}-{PARENT}-01"} if number % 3 else {}
                body: Json = {"events": [event(0, number + 1)]}
                return await api.post(f"/v1/runs/run{number}/events", json=body, headers=trace)

            answers = await asyncio.gather(*map(one, range(count)))
            assert {answer.status_code for answer in answers} == {201}

    with serve() as address:
        with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
            api.post("/v1/datasets", json=dataset()).raise_for_status()
            for number in range(count):
                api.post("/v1/runs", json=run(f"run{number}")).raise_for_status()
        asyncio.run(together(address))
    query = select(entries.c.steps, entries.c.traceparent)
    with snapshot(engine) as connection:
        found: dict[int, Any] = {row.steps: row.traceparent for row in connection.execute(query)}
    for number in range(count):
        trace = f"00-{number + 1:032x}-{PARENT}-01" if number % 3 else None
        assert found[number + 1] == trace
    assert broken(engine) == []


def test_a_hostile_header_records_the_steps_and_no_trace(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    for first, value in enumerate(("x" * 8000, "'; DROP TABLE entries; --", VALID + ", " + VALID)):
        assert post(api, first, value).status_code == 201
    two = [*AS_ADMIN.items(), ("traceparent", VALID), ("traceparent", VALID)]
    answer = httpx.post(
        api.base_url.join("/v1/runs/run/events"), json={"events": [event(3, 1)]}, headers=two
    )
    assert answer.status_code == 201
    assert {trace for _, trace in kept(engine)} == {None}
