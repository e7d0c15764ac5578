"""Histories of runs whose every step is another: gathered where they are many, up to the last."""

from itertools import pairwise

import httpx
import pytest

from service.guarantees import history as history_module
from tests.service.samples import POISSON, Json, append, event, setup


def history(api: httpx.Client, count: int = 1000) -> list[Json]:
    """That of a schedule in which noise grows with every step."""
    setup(api, delta=1e-5)
    noises = [{"kind": "gaussian", "noise_multiplier": 1 + i * 1e-4} for i in range(count)]
    steps = [event(i, 1, sampling=POISSON, mechanism=noise) for i, noise in enumerate(noises)]
    assert append(api, *steps).status_code == 201
    found: list[Json] = api.get("/v1/runs/run/history", params={"points": 1000}).json()["points"]
    return found


def test_a_schedule_of_a_thousand_noises_has_many_points(api: httpx.Client) -> None:
    found = history(api)
    whole = api.get("/v1/runs/run/guarantee").json()
    assert len(found) > 20
    assert all(before["epsilon"] < after["epsilon"] for before, after in pairwise(found))
    assert (found[-1]["steps"], found[-1]["sequence"]) == (1000, 1000)
    assert whole["epsilon_lower"] < found[-1]["epsilon"] <= whole["epsilon"] * 1.01
    # Gathered from above, the steps say nothing of what is lost at least.
    assert all(point["epsilon_lower"] is None for point in found)


@pytest.mark.parametrize("count", [400, 401])
def test_only_what_is_gathered_has_no_lower_end(api: httpx.Client, count: int) -> None:
    found = history(api, count)
    assert (found[-1]["epsilon_lower"] is None) == (count > 400)


@pytest.mark.parametrize("count", [400, 401])
def test_however_dear_its_steps_are_a_history_has_its_last(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(history_module, "HISTORY_POINTS", 0)
    monkeypatch.setattr(history_module, "GATHERED_POINTS", 0)
    found = history(api, count)
    assert found[-1]["steps"] == count
    assert found[-1]["epsilon"] >= api.get("/v1/runs/run/guarantee").json()["epsilon_lower"]


def test_where_its_steps_cannot_even_be_gathered_it_has_the_last_without_an_epsilon(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for points in ("HISTORY_POINTS", "GATHERED_POINTS", "READING_POINTS"):
        monkeypatch.setattr(history_module, points, 0)
    assert history(api, 401) == [
        {"steps": 401, "sequence": 401, "epsilon": None, "epsilon_lower": None}
    ]
