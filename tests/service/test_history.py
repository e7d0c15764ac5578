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


@pytest.mark.parametrize("path", ["/v1/runs/run/history?points=20", "/runs/run/history.json"])
@pytest.mark.parametrize("noise", [0.7, 3.0])
def test_a_history_holds_for_the_recorded_and_for_the_corrected_steps(
    api: httpx.Client, path: str, noise: float
) -> None:
    setup(api, delta=1e-5)
    assert append(api, event(0, 60), event(60, 40)).status_code == 201
    before = {one["steps"]: one for one in api.get(path).json()["points"]}
    mechanism = {"kind": "gaussian", "noise_multiplier": noise}
    really = event(30, 20, mechanism=mechanism) | {"reason": "the log says so"}
    assert api.post("/v1/runs/run/corrections", json=really).status_code == 201
    after = {one["steps"]: one for one in api.get(path).json()["points"]}
    whole = api.get("/v1/runs/run/guarantee").json()
    last = after[100]
    assert last["epsilon"] == pytest.approx(whole["epsilon"])
    assert last["epsilon_lower"] == pytest.approx(whole["epsilon_lower"])
    shared = sorted(before.keys() & after.keys())
    assert len(shared) >= 2
    for steps in shared:
        more = steps > 30 and noise < 1
        assert (after[steps]["epsilon"] > before[steps]["epsilon"]) is more
    # What follows is read with the correction, too.
    assert append(api, event(100, 20)).status_code == 201
    last = api.get(path).json()["points"][-1]
    assert (last["steps"], last["epsilon"]) == (
        120,
        pytest.approx(api.get("/v1/runs/run/guarantee").json()["epsilon"]),
    )


@pytest.mark.parametrize("path", ["/v1/runs/run/history?points=20", "/runs/run/history.json"])
def test_a_history_has_no_epsilon_from_a_corrected_step_without_a_bound(
    api: httpx.Client, path: str
) -> None:
    setup(api, delta=1e-5)
    assert append(api, event(0, 100)).status_code == 201
    really = event(50, 1, mechanism={"kind": "none"}) | {"reason": "the log says so"}
    assert api.post("/v1/runs/run/corrections", json=really).status_code == 201
    for one in api.get(path).json()["points"]:
        assert (one["epsilon"] is None) == (one["steps"] > 50)
