"""A process that says who it is does not continue another process's branch."""

import json

import httpx
import pytest

from tests.service.samples import WRITER, append, event, run, setup

OTHER = "writer-of-the-tests-2"


def lines(api: httpx.Client, first_step: int, **query: str) -> httpx.Response:
    return api.post(
        "/v1/runs/run/events",
        content=json.dumps(event(first_step, 1)),
        params=query,
        headers={"content-type": "application/x-ndjson"},
    )


@pytest.mark.parametrize("mode", ["charge", "record"])
def test_another_writer_is_refused_and_records_nothing(api: httpx.Client, mode: str) -> None:
    setup(api)
    assert append(api, event(0, 2), writer=WRITER, mode=mode).status_code == 201
    for first in (0, 2):  # what is there already, and what would be new
        for sent in (
            append(api, event(first, 2), writer=OTHER, mode=mode),
            lines(api, first, writer=OTHER),
        ):
            assert (sent.status_code, sent.json()["type"]) == (409, "/problems/branch-exists")
            assert "has another writer" in sent.json()["detail"]
    assert api.get("/v1/runs/run").json()["next_step"] == 2
    assert lines(api, 2, writer=WRITER).status_code == 201
    assert append(api, event(3, 1), writer=WRITER).status_code == 201


def test_the_same_body_of_another_writer_is_not_mistaken_for_the_first(api: httpx.Client) -> None:
    setup(api)
    assert append(api, event(0, 1), writer=WRITER).status_code == 201
    assert append(api, event(1, 1), writer=OTHER).status_code == 409
    assert append(api, event(1, 1), writer=WRITER).status_code == 201
    assert append(api, event(2, 1)).status_code == 201  # says nothing, and is not compared


def test_each_branch_has_its_own_writer(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 1), writer=WRITER).raise_for_status()
    fork = {"name": "fork", "writer": OTHER, "from_step": 1}
    api.post("/v1/runs/run/branches", json=fork).raise_for_status()
    assert append(api, event(1, 1), branch="fork", writer=OTHER).status_code == 201
    assert append(api, event(2, 1), branch="fork", writer=WRITER).status_code == 409
    assert append(api, event(1, 1), writer=WRITER).status_code == 201


def test_a_writer_that_is_none_is_refused_by_name(api: httpx.Client) -> None:
    setup(api)
    for sent in (append(api, event(0, 1), writer="short"), lines(api, 0, writer="short")):
        assert sent.status_code == 422
        assert sent.json()["errors"][0]["location"].endswith("writer")
    assert api.post("/v1/runs", json=run("second")).status_code == 201
