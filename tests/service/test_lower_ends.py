"""A lower end belongs to the delta that is told: at a larger one less is lost."""

from typing import Any

import httpx
import pytest

from accounting.gaussian import gaussian_epsilon
from tests.service.samples import FULL, append, event, setup

QUIET = {"kind": "gaussian", "noise_multiplier": 8.0}
LOUD = {"kind": "gaussian", "noise_multiplier": 2.0}
STEP = event(0, 1, mechanism=QUIET, sampling=FULL)
AHEAD = event(1, 16, mechanism=QUIET, sampling=FULL)


@pytest.fixture(params=["corrected", "reserved", "planned"])
def place(request: pytest.FixtureRequest, api: httpx.Client) -> str:
    """Of a step that ran, and of more that may have, or may yet."""
    plan: dict[str, Any] = {"plan": [STEP, AHEAD], "budget": {"epsilon": 50.0, "delta": 1e-5}}
    setup(api, **(plan if request.param == "planned" else {}))
    assert append(api, STEP).status_code == 201
    if request.param == "corrected":
        given: dict[str, Any] = {**STEP, "mechanism": LOUD, "reason": "the log says so"}
        assert api.post("/v1/runs/run/corrections", json=given).status_code == 201
    if request.param == "reserved":
        given = {"name": "ahead", "event": AHEAD, "ttl_seconds": 600}
        assert api.post("/v1/runs/run/reservations", json=given).status_code == 201
    return "/v1/runs/run" if request.param == "planned" else "/v1/datasets/data"


def test_where_an_epsilon_is_asked_for(api: httpx.Client, place: str) -> None:
    found = api.get(f"{place}/guarantee", params={"epsilon": 1.0}).json()
    assert found["delta"] > 1e-3  # of the step that ran it is 1e-17
    ends = [found["epsilon_lower"], *(one["epsilon_lower"] for one in found["alternatives"])]
    assert set(ends) <= {None}


def test_where_a_delta_is_asked_for(api: httpx.Client, place: str) -> None:
    found = api.get(f"{place}/guarantee", params={"delta": 1e-5}).json()
    ran = gaussian_epsilon(1e-5, mu=1 / 8)
    assert found["epsilon"] > 3 * ran
    assert found["epsilon_lower"] == pytest.approx(ran, rel=1e-9)
    assert found["epsilon_lower"] <= ran
