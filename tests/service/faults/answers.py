"""What a caller sees while a fault lasts, and what must be true whenever something is answered."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import httpx

from benchmarks.fault_trainers import faults_of, guarantee_path, step
from tests.service.samples import dataset, run

ATTEMPTS: Final = 600
PAUSE_SECONDS: Final = 0.1


def require_unavailable(answer: httpx.Response) -> str:
    """The one answer to every fault; its words."""
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) >= 1
    problem = answer.json()
    assert problem["type"] == "/problems/unavailable"
    return str(problem["detail"])


def insisted(send: Callable[[], httpx.Response]) -> httpx.Response:
    """The first answer that is no 503: a busy machine keeps services waiting that wait little."""
    for _ in range(ATTEMPTS):
        answer = send()
        if answer.status_code != 503:
            return answer
        time.sleep(PAUSE_SECONDS)
    return answer


def begin(api: httpx.Client, steps: int, **settings: Any) -> None:
    """A run with so many steps, one by one, on a dataset of these settings."""
    for path, body in (("/v1/datasets", dataset(**settings)), ("/v1/runs", run())):
        answer = insisted(partial(api.post, path, json=body))
        assert answer.status_code in (200, 201), answer.text
    for number in range(steps):
        require_taken(api, number)


def record(api: httpx.Client, number: int) -> httpx.Response:
    """A step."""
    return api.post("/v1/runs/run/events", json={"events": [step(number)]})


def require_taken(api: httpx.Client, number: int) -> None:
    """A step is recorded, whatever became of attempts before."""
    answer = insisted(partial(record, api, number))
    assert answer.status_code in (200, 201), answer.text


def guarantee(api: httpx.Client) -> httpx.Response:
    """What the run guarantees, asked for."""
    return api.get(guarantee_path("run"))


def require_exactly(api: httpx.Client, steps: int) -> None:
    """The run has so many steps, and its epsilon is that of so many."""
    answer = insisted(partial(guarantee, api))
    assert answer.status_code == 200, answer.text
    assert answer.json()["steps"] == steps
    assert faults_of(answer.json(), least=steps) == []


def require_true_or_unavailable(api: httpx.Client, steps: int) -> bool:
    """Nothing wrong is answered; whether anything is."""
    answer = guarantee(api)
    if answer.status_code == 503:
        require_unavailable(answer)
        return False
    assert answer.status_code == 200, answer.text
    assert faults_of(answer.json(), least=steps) == []
    return True
