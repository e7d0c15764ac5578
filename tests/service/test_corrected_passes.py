"""Passes that were corrected, and what is reserved beside them: one depends on the other."""

import json
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from service.transparency.certificates.issue import CertificateInputs, issue
from service.transparency.certificates.verify import verify_bytes
from tests.service.certifying import signer_of
from tests.service.samples import FULL, POISSON, Json, append, event, setup

CYCLIC: Json = {"kind": "cyclic", "batch_size": 20_000, "steps_per_pass": 3}
BUDGET: Json = {"epsilon": 500.0, "delta": 1e-5}


def noise(multiplier: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": multiplier}


def corrected(api: httpx.Client, *, position: int, really: Json, ahead: Json) -> None:
    """A pass that has come so far was something else, and further steps are reserved."""
    setup(api, dataset_given={"neighboring_relation": "replace_special", "budget": BUDGET})
    passes = event(0, 9, mechanism=noise(5.0), sampling=CYCLIC)
    begun = event(9, position, mechanism=noise(5.0), sampling=CYCLIC)
    assert append(api, passes, begun).status_code == 201
    lease = {"name": "lease", "event": ahead, "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    told = {"first_step": 9, "steps": position, "reason": "it was not so"} | really
    assert api.post("/v1/runs/run/corrections", json=told).status_code == 201


CASES = [
    pytest.param(noise(50.0), CYCLIC, 2.0, 1, id="more noise, then less"),
    pytest.param(noise(50.0), CYCLIC, 2.0, 2, id="less noise, into the next pass"),
    pytest.param(noise(2.0), CYCLIC, 4.0, 1, id="less noise, then more"),
    pytest.param(noise(5.0), POISSON, 5.0, 2, id="no pass at all"),
    pytest.param(noise(50.0), CYCLIC | {"steps_per_pass": 2}, 5.0, 7, id="another pass"),
    pytest.param(noise(50.0), CYCLIC, 5.0, 4, id="several passes"),
]


@pytest.mark.parametrize("position", [1, 2])
@pytest.mark.parametrize(("mechanism", "sampling", "multiplier", "steps"), CASES)
def test_what_is_reserved_costs_no_more_once_it_ran(
    api: httpx.Client,
    position: int,
    mechanism: Json,
    sampling: Json,
    multiplier: float,
    steps: int,
) -> None:
    ahead = event(9 + position, steps, mechanism=noise(multiplier), sampling=CYCLIC)
    really = {"mechanism": mechanism, "sampling": sampling}
    corrected(api, position=position, really=really, ahead=ahead)
    before = api.get("/v1/datasets/data/guarantee")
    assert before.status_code == 200, before.text
    assert append(api, ahead).status_code == 201
    after = api.get("/v1/datasets/data/guarantee").json()
    assert after["epsilon"] == after["without_reservations"]["epsilon"]
    assert after["corrected_epsilon"] <= before.json()["corrected_epsilon"] * (1 + 1e-6)
    assert after["epsilon"] <= before.json()["epsilon"] * (1 + 1e-6)


@pytest.mark.parametrize("with_corrections", [False, True])
def test_a_certificate_says_of_them_what_the_service_answers(
    api: httpx.Client, engine: Engine, tmp_path: Path, with_corrections: bool
) -> None:
    ahead = event(10, 1, mechanism=noise(2.0), sampling=CYCLIC)
    if with_corrections:
        really = {"mechanism": noise(50.0), "sampling": CYCLIC}
        corrected(api, position=1, really=really, ahead=ahead)
    else:
        setup(api, dataset_given={"neighboring_relation": "replace_special", "budget": BUDGET})
        begun = event(0, 10, mechanism=noise(5.0), sampling=CYCLIC)
        assert append(api, begun).status_code == 201
        lease = {"name": "lease", "event": ahead, "ttl_seconds": 600}
        assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    raw = issue(
        engine, signer_of(tmp_path), CertificateInputs(kind="dataset", name="data"), by="test"
    )
    (said,) = (
        one
        for one in json.loads(raw)["certificate"]["statements"]
        if one["reservations"] and one["accountant"] == "best" and one["delta"] == 1e-5
    )
    verify_bytes(raw)
    answered = api.get("/v1/datasets/data/guarantee").json()
    assert answered["epsilon"] > answered["without_reservations"]["epsilon"]
    assert said["epsilon"] == answered["epsilon"]
    assert said["corrected_epsilon"] == answered["corrected_epsilon"]


def test_what_is_no_longer_reserved_is_no_pass_beside_a_correction(api: httpx.Client) -> None:
    setup(api, dataset_given={"neighboring_relation": "replace_special", "budget": BUDGET})
    once = {"kind": "shuffle", "batch_size": 20_000, "reshuffle": "once", "steps_per_pass": 3}
    assert append(api, event(0, 3, mechanism=noise(5.0), sampling=FULL)).status_code == 201
    for first_step, name in ((3, "first"), (5, "second")):
        ahead = event(first_step, 2, mechanism=noise(float(first_step)), sampling=once)
        lease = {"name": name, "event": ahead, "ttl_seconds": 600}
        assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    told = event(0, 1, mechanism=noise(4.0), sampling=FULL) | {"reason": "mistaken"}
    assert api.post("/v1/runs/run/corrections", json=told).status_code == 201
    both = api.get("/v1/datasets/data/guarantee").json()
    released = api.post("/v1/reservations/second:release", json={"last_step": 4})
    assert released.status_code == 200
    first = api.get("/v1/datasets/data/guarantee")
    assert first.status_code == 200, first.text
    assert first.json()["without_reservations"]["epsilon"] < first.json()["epsilon"]
    assert first.json()["epsilon"] < both["epsilon"]


def test_what_really_went_in_passes_attains_what_it_would_had_it_been_recorded_so(
    api: httpx.Client,
) -> None:
    setup(api, dataset_given={"neighboring_relation": "replace_special"}, delta=1e-5)
    assert append(api, event(0, 10, mechanism=noise(5.0), sampling=FULL)).status_code == 201
    body = {"first_step": 0, "steps": 10, "mechanism": noise(5.0), "sampling": CYCLIC}
    told = body | {"reason": "the loader went through the data in order"}
    assert api.post("/v1/runs/run/corrections", json=told).status_code == 201
    setup(
        api, dataset_given={"name": "so", "neighboring_relation": "replace_special"},
        dataset="so", name="honest", delta=1e-5,
    )  # fmt: skip
    assert append(api, body, run="honest").status_code == 201
    found = api.get("/v1/runs/run/guarantee").json()
    honest = api.get("/v1/runs/honest/guarantee").json()
    assert found["corrected_epsilon"] == honest["epsilon"] < found["epsilon"]
    assert found["epsilon_lower"] == honest["epsilon_lower"] > 0
