"""What an answer may cost: more is refused by name or told more loosely, and no fact is lost."""

import json
import sys
import time

import httpx
import pytest

from service import effort
from service.effort import Effort
from service.errors import TooExpensiveError
from tests.service.samples import append, event, setup

LAPLACE = {"kind": "laplace", "noise_multiplier": 5.0}
TRUNCATED = {"kind": "truncated_poisson", "sampling_probability": 0.01, "max_batch_size": 700}
NDJSON = {"content-type": "application/x-ndjson"}


def noisy(number: int, least: float = 1.0) -> list[dict[str, object]]:
    return [
        event(i, 1, mechanism={"kind": "gaussian", "noise_multiplier": least + i / 1000})
        for i in range(number)
    ]


def lines(found: list[dict[str, object]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in found)


def endless() -> None:
    while True:
        int("1")
        _step()


def _step() -> None:
    pass


def test_work_is_stopped_once_it_took_too_long() -> None:
    start = time.thread_time()
    with pytest.raises(TooExpensiveError), Effort(0.05).limited():
        endless()
    assert time.thread_time() - start < 1
    assert sys.getprofile() is None


def test_work_in_time_is_left_alone_and_what_it_took_is_counted() -> None:
    some = Effort(10.0)
    with some.limited():
        sum(range(200_000))
    assert 9.0 < some.left < 10.0
    assert sys.getprofile() is None


def test_parts_of_an_answer_share_its_time() -> None:
    some = Effort(0.1)
    for part in (0.5, 1.0):
        with pytest.raises(TooExpensiveError), some.limited(part):
            endless()
    assert some.left < 0.02
    with pytest.raises(TooExpensiveError), some.limited():
        endless()


def test_a_limit_inside_another_does_not_extend_it() -> None:
    start = time.thread_time()
    with pytest.raises(TooExpensiveError), Effort(0.05).limited(), Effort(60.0).limited():
        endless()
    assert time.thread_time() - start < 1


def test_what_takes_too_long_is_refused_by_name(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5, dataset_given={"budget": {"epsilon": 8.0, "delta": 1e-5}})
    assert append(api, *noisy(300)).status_code == 201
    monkeypatch.setattr(effort, "SECONDS_MAX", 0.0)
    answer = api.get("/v1/datasets/data/explain")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/too-expensive")
    plan = {
        "neighboring_relation": "add_or_remove_one",
        "events": [{"steps": 1, "mechanism": LAPLACE, "sampling": {"kind": "full"}}] * 40,
        "delta": 1e-5,
    }
    answer = api.post("/v1/plan", json=plan)
    assert answer.json()["type"] == "/problems/too-expensive"
