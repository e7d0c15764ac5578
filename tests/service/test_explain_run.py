"""What would fit in the own budget of a run, too."""

from pathlib import Path

import httpx

from service.guarantees import fit_suggestions
from tests.service.samples import FULL, dataset, event, run
from tests.service.test_explain import QUIET, charge, start


def test_a_named_run_has_its_own_budget_looked_at(api: httpx.Client) -> None:
    start(api)
    own = run("small", budget={"epsilon": 1.5, "delta": 1e-5})
    assert api.post("/v1/runs", json=own).status_code == 201
    assert charge(api, event(0, 1, mechanism=QUIET, sampling=FULL), name="small") == 201
    wanted = {"events": [event(0, 6, mechanism=QUIET, sampling=FULL)], "remedies": False}
    assert api.post("/v1/datasets/data/explain", json=wanted).json()["fits"]
    asked = api.post("/v1/datasets/data/explain", json=wanted | {"run": "small"}).json()
    assert [one["scope"] for one in asked["failing_scopes"]] == ["run:small"]
    fits = asked["fewer_steps"]["value"]
    assert charge(api, event(1, fits + 1, mechanism=QUIET, sampling=FULL), name="small") == 409
    assert charge(api, event(1, fits, mechanism=QUIET, sampling=FULL), name="small") == 201
    assert asked["more_noise"]["reason"] == asked["lower_rate"]["reason"]
    assert asked["more_noise"]["reason"] == fit_suggestions.REASON_UNASKED


def test_a_run_of_another_dataset_is_not_found(api: httpx.Client) -> None:
    start(api)
    assert api.post("/v1/datasets", json=dataset("other")).status_code == 201
    wanted = {"events": [event(0, 1, mechanism=QUIET, sampling=FULL)], "run": "run"}
    assert api.post("/v1/datasets/other/explain", json=wanted).status_code == 404
    assert api.post("/v1/datasets/data/explain", json=wanted | {"run": "none"}).status_code == 404


def test_the_researchers_guide_says_how_many_steps_fit_after_the_first_run(
    api: httpx.Client,
) -> None:
    cases = dataset("cases", dataset_size=455, budget={"epsilon": 2.0, "delta": 1e-4})
    assert api.post("/v1/datasets", json=cases).status_code == 201
    step = event(
        0,
        520,
        mechanism={"kind": "gaussian", "noise_multiplier": 3.0},
        sampling={"kind": "poisson", "sampling_probability": 0.1},
    )
    asked = {"events": [step], "remedies": True}
    fits = api.post("/v1/datasets/cases/explain", json=asked).json()["fewer_steps"]["value"]
    guide = Path("docs/guide/first-hour-researcher.md").read_text()
    assert f"logistic-2 has taken {fits - 120} steps" in guide
    assert f"stopped_at_budget\t{fits - 120}\t" in guide
