"""What an answer may cost: a question that costs more is refused by name, and a fact never is."""

import httpx
import pytest

from accounting.work_limit import spend
from service import work_limit
from service.errors import TooExpensiveError
from service.guarantees import fit_suggestions
from service.work_limit import bounded
from tests.service.samples import append, event, setup

LAPLACE = {"kind": "laplace", "noise_multiplier": 5.0}


def noisy(number: int, least: float = 1.0) -> list[dict[str, object]]:
    return [
        event(i, 1, mechanism={"kind": "gaussian", "noise_multiplier": least + i / 1000})
        for i in range(number)
    ]


def test_a_question_that_takes_too_much_work_is_refused_by_its_name() -> None:
    with bounded("The question"):
        spend(work_limit.POINTS_MAX)
    with pytest.raises(TooExpensiveError, match="The question would take"), bounded("The question"):
        spend(work_limit.POINTS_MAX + 1)


def test_what_takes_too_much_work_is_refused_and_facts_are_not(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5, dataset_given={"budget": {"epsilon": 8.0, "delta": 1e-5}})
    assert append(api, *noisy(3)).status_code == 201
    monkeypatch.setattr(work_limit, "POINTS_MAX", 0)
    answer = api.get("/v1/datasets/data/explain")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/too-expensive")
    assert answer.json()["detail"].startswith("The explanation would take")
    plan = {
        "neighboring_relation": "add_or_remove_one",
        "events": [{"steps": 1, "mechanism": LAPLACE, "sampling": {"kind": "full"}}] * 2,
        "delta": 1e-5,
    }
    answer = api.post("/v1/plan", json=plan)
    assert answer.json()["type"] == "/problems/too-expensive"
    for path in ("/v1/runs/run/guarantee", "/v1/datasets/data/guarantee"):
        assert api.get(path).status_code == 200


def test_all_remedies_together_take_no_more_than_one_answer_may(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 1.0, "delta": 1e-5}})
    drawn = {"kind": "fixed_size", "batch_size": 600}
    quiet = {"kind": "gaussian", "noise_multiplier": 20.0}
    wanted = {"events": [event(0, 10**6, mechanism=quiet, sampling=drawn)]}
    asked = api.post("/v1/datasets/data/explain", json=wanted).json()
    assert asked["lower_rate"]["reason"] is None
    monkeypatch.setattr(fit_suggestions, "SUGGESTION_POINTS_MAX", 3_000_000)
    asked = api.post("/v1/datasets/data/explain", json=wanted).json()
    assert asked["fewer_steps"]["value"] > 0
    assert asked["more_noise"]["reason"] == fit_suggestions.REASON_LONG
    assert asked["lower_rate"]["reason"] == fit_suggestions.REASON_LONG
    monkeypatch.setattr(fit_suggestions, "SUGGESTION_POINTS_MAX", 500)
    refused = api.post("/v1/datasets/data/explain", json=wanted)
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("Whether the steps fit would take more than")
