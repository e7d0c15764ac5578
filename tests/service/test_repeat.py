"""However the same steps arrive, the answer has the same bits and the document the same bytes."""

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.service.samples import GAUSSIAN, WRITER, Json, append, dataset, event, run, setup

SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 6000,
    "reshuffle": "each_pass",
    "steps_per_pass": 10,
}
LESS_NOISE: Json = {"kind": "gaussian", "noise_multiplier": 0.9}
# One run-length history: segments of equal steps, some of them in the middle of passes.
HISTORY: list[Json] = [
    {"steps": 37, "mechanism": GAUSSIAN, "sampling": SHUFFLE},
    {"steps": 5, "mechanism": LESS_NOISE, "sampling": SHUFFLE},
    {"steps": 20, "mechanism": GAUSSIAN, "sampling": SHUFFLE},
    {"steps": 41, "mechanism": GAUSSIAN, "sampling": {"kind": "fixed_size", "batch_size": 60}},
    {
        "steps": 23,
        "mechanism": GAUSSIAN,
        "sampling": {"kind": "poisson", "expected_batch_size": 60},
    },
    {
        "steps": 11,
        "mechanism": LESS_NOISE,
        "sampling": {"kind": "cyclic", "batch_size": 20000, "steps_per_pass": 3},
    },
]


def placed() -> list[Json]:
    found, first_step = [], 0
    for segment in HISTORY:
        found.append({"first_step": first_step, **segment})
        first_step += segment["steps"]
    return found


def single_steps() -> list[Json]:
    return [
        {**segment, "first_step": segment["first_step"] + offset, "steps": 1}
        for segment in placed()
        for offset in range(segment["steps"])
    ]


def as_segments(api: httpx.Client) -> None:
    assert append(api, *placed()).status_code == 201


def one_by_one(api: httpx.Client) -> None:
    for step in single_steps():
        assert append(api, step).status_code == 201


def in_random_batches_twice(api: httpx.Client) -> None:
    steps, source = single_steps(), random.Random(7)
    while steps:
        size = source.randint(1, 25)
        batch, steps = steps[:size], steps[size:]
        assert append(api, *batch).status_code == 201
        assert append(api, *batch).status_code == 200


def with_overlaps(api: httpx.Client) -> None:
    steps, source, reached = single_steps(), random.Random(8), 0
    while reached < len(steps):
        start = max(0, reached - source.randint(0, 9))
        end = min(len(steps), reached + source.randint(1, 30))
        assert append(api, *steps[start:end]).status_code == 201
        reached = end


def over_ndjson(api: httpx.Client) -> None:
    body = "\n".join(json.dumps(step) for step in single_steps())
    for status in (201, 200):
        answer = api.post(
            "/v1/runs/run/events",
            content=body,
            headers={"content-type": "application/x-ndjson"},
        )
        assert answer.status_code == status, answer.text


def by_charges(api: httpx.Client) -> None:
    for segment in placed():
        assert append(api, segment, mode="charge").status_code == 201


WAYS: list[Callable[[httpx.Client], None]] = [
    as_segments,
    one_by_one,
    in_random_batches_twice,
    with_overlaps,
    over_ndjson,
    by_charges,
]
_SEEN: dict[str, tuple[Any, bytes]] = {}


@pytest.mark.parametrize("send", WAYS)
def test_every_way_of_sending_gives_the_same_bits(
    api: httpx.Client, send: Callable[[httpx.Client], None]
) -> None:
    setup(api, delta=1e-5, dataset_given={"neighboring_relation": "replace_one"})
    send(api)
    guarantee = api.get("/v1/runs/run/guarantee").json()
    guarantee.pop("sequence")  # counts entries, which depend on the batching
    document = api.get("/v1/runs/run/ledger").content
    assert guarantee["steps"] == sum(segment["steps"] for segment in HISTORY)
    # The first way seen, on either database, is what all others must equal.
    expected = _SEEN.setdefault("first", (guarantee, document))
    assert guarantee == expected[0]
    assert document == expected[1]


def test_a_rerun_of_the_script_is_refused_and_as_a_branch_it_adds(api: httpx.Client) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 100))
    once = api.get("/v1/runs/run/guarantee").json()
    again = api.post("/v1/runs", json=run(writer="writer-of-a-second-process", delta=1e-5))
    assert again.status_code == 409
    assert again.json()["type"] == "/problems/run-exists"
    branch = {
        "name": "rerun",
        "writer": "writer-of-a-second-process",
        "from_step": 0,
        "order": "fresh",
    }
    assert api.post("/v1/runs/run/branches", json=branch).status_code == 201
    assert append(api, event(0, 100), branch="rerun").json()["accepted"] == 100
    twice = api.get("/v1/runs/run/guarantee").json()
    assert twice["steps"] == 200
    assert twice["epsilon"] > once["epsilon"]
    api.post("/v1/runs", json=run("whole", delta=1e-5, writer=WRITER))
    append(api, event(0, 200), run="whole")
    assert api.get("/v1/runs/whole/guarantee").json()["epsilon"] == twice["epsilon"]


def test_a_lost_reply_changes_nothing_when_the_request_is_sent_again(api: httpx.Client) -> None:
    for status in (201, 200):
        assert api.post("/v1/datasets", json=dataset()).status_code == status
        assert api.post("/v1/runs", json=run()).status_code == status
        assert append(api, event(0, 7)).status_code == status
