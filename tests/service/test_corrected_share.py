"""What corrections added to what is spent: a part of its own in who spent what."""

import httpx
import pytest

from service.formatting import percent_up
from tests.service.samples import BUDGET, FULL, Json, append, event
from tests.service.test_explain import CYCLIC, explain, start


@pytest.mark.parametrize("sampling", [FULL, CYCLIC], ids=["by step", "by pass"])
def test_what_a_correction_adds_is_a_part_of_its_own_and_all_parts_are_the_whole(
    api: httpx.Client, sampling: Json
) -> None:
    start(api, budget=BUDGET | {"epsilon": 900.0})
    first, second = event(0, 100, sampling=sampling), event(100, 50, sampling=sampling)
    append(api, first, second)
    assert explain(api)["corrected"] == {"steps": 0, "share": 0.0}
    louder = {"kind": "gaussian", "noise_multiplier": 0.9}
    body = event(0, 60, mechanism=louder, sampling=sampling)
    made = api.post("/v1/runs/run/corrections", json=body | {"reason": "the log says so"})
    assert made.status_code == 201, made.text
    held = event(0, 10, sampling=sampling)
    del held["first_step"]
    body = {"name": "kept", "event": held, "ttl_seconds": 3600}
    assert api.post("/v1/runs/run/reservations", json=body).status_code == 201
    found = explain(api)
    assert found["corrected"]["steps"] == 60
    assert found["corrected"]["share"] > 0.01
    parts = [*found["runs"], found["corrected"], found["pending"], found["forfeited"]]
    assert sum(part["share"] for part in parts) == pytest.approx(1, abs=1e-9)
    text = api.get("/datasets/data").text
    assert "what corrections added" in text
    assert str(percent_up(found["corrected"]["share"])) in text
