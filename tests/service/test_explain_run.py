"""What would fit in the own budget of a run, too."""

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
