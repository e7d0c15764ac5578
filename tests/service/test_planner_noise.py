"""The planner's correlated noise and private selections, beside what the API answers."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dpledger_client
import httpx
import pytest
from dpledger_client import Client

from service.formatting import up
from service.web.dashboard.forms.planner_form import PlannerForm
from service.web.dashboard.pages.planning.planner_answers import certified_answer
from service.web.dashboard.pages.planning.planner_budget import budget_answer
from service.web.dashboard.snippets import client_snippet
from tests.service.correlated import keep, square_root
from tests.service.samples import Json, dataset
from tests.service.test_planner_page import ask

SMALL: dict[str, Any] = {
    "dataset_size": 1000, "batch_size": 50, "length": 60, "unit": "steps", "derived": True,
    "noise_multiplier": 4.0,
}  # fmt: skip
POISSON: dict[str, Any] = {"mechanism": "banded", "bands": 6}
IN_ORDER: dict[str, Any] = POISSON | {"sampling": "cyclic", "last_batch": "dropped"}
TREE: dict[str, Any] = {"mechanism": "tree", "sampling": "cyclic", "last_batch": "used"}
PASSES = {
    "poisson": POISSON, "order": IN_ORDER, "apart": IN_ORDER | {"min_separation": 4}, "tree": TREE,
    "identity": {"mechanism": "identity"},
}  # fmt: skip


def given(**settings: Any) -> dict[str, str]:
    return PlannerForm(**SMALL | settings).texts()


def planned(api: httpx.Client, *events: Json, relation: str = "add_or_remove_one") -> Json:
    body = {
        "neighboring_relation": relation, "dataset_size": 1000, "delta": 1e-5,
        "accept": ["published", "declared", "derived"], "events": events,
    }  # fmt: skip
    answer = api.post("/v1/plan", json=body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "replace_special"])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_costs_what_the_api_says(api: httpx.Client, name: str, relation: str) -> None:
    settings = PASSES[name] | {"neighboring_relation": relation}
    kind = settings["mechanism"]
    digest = (
        keep(api, kind="toeplitz", coefficients=square_root(6))
        if kind == "banded"
        else keep(api, kind=kind)
    )
    placement = "by_record" if relation == "add_or_remove_one" else "by_slot"
    sampling: Json = {"steps_per_pass": 60, "placement": placement}
    if settings.get("sampling") == "cyclic":
        apart = settings.get("min_separation", 20)
        sampling |= {"kind": "min_separation", "min_separation": apart}
    else:
        groups = 6 if kind == "banded" else 1
        sampling |= {
            "kind": "cyclic_poisson", "cycle_length": groups,
            "sampling_probability": 0.05 * groups,
        }  # fmt: skip
    mechanism = {"kind": "matrix_gaussian", "noise_multiplier": 4.0, "strategy": digest}
    theirs = planned(
        api, {"mechanism": mechanism, "sampling": sampling, "steps": 60}, relation=relation
    )
    found = ask(api, "answer", **given(**settings))
    assert found["epsilon"] == pytest.approx(theirs["epsilon"], rel=1e-12)
    assert found["bound"] == theirs["bound"] in ("correlated-gaussian", "cyclic-poisson")
    quick = ask(api, "quick", **given(**settings))
    assert quick["epsilon"] >= found["epsilon"] * (1 - 1e-9)
    assert found["words"][0].startswith("The 60 steps are one pass of correlated noise")


def test_noise_of_a_pass_is_found(api: httpx.Client) -> None:
    found = ask(api, "answer", **given(**POISSON, find="noise_multiplier", epsilon=1.0))
    assert 0.999 < found["epsilon"] <= 1
    again = ask(api, "answer", **dict(httpx.QueryParams(found["query"])))
    assert again["epsilon"] == found["epsilon"]


@pytest.mark.parametrize("law", ["logarithmic", "geometric", "poisson"])
def test_a_selection_is_told_with_what_recording_costs(api: httpx.Client, law: str) -> None:
    shape = {"logarithmic": 0.0, "geometric": 1.0}.get(law)
    repetitions: Json = {"kind": "poisson", "mean": 10.0}
    if shape is not None:
        repetitions = {"kind": "truncated_negative_binomial", "shape": shape, "mean": 10.0}
    base = {
        "mechanism": {"kind": "gaussian", "noise_multiplier": 4.0},
        "sampling": {"kind": "poisson", "expected_batch_size": 50.0}, "steps": 60,
    }  # fmt: skip
    event = {
        "mechanism": {"kind": "selection", "repetitions": repetitions, "base": base},
        "sampling": {"kind": "full"}, "steps": 1,
    }  # fmt: skip
    theirs = planned(api, event)
    found = ask(api, "answer", **given(trials=law))
    assert found["epsilon"] == theirs["epsilon"]
    selected, apart = found["words"]
    assert f"costs ε ≤ {up(theirs['epsilon'])} " in selected
    assert f"ε ≤ {up(theirs['composed']['epsilon'])}, " in apart
    more = theirs["composed"]["epsilon"] > theirs["epsilon"]
    assert apart.startswith(f"Recording each of 10 trials costs {'more' if more else 'less'}: ")


def test_words_say_which_costs_more() -> None:
    costs = {}
    for mean in (2.0, 100.0):
        form = PlannerForm(
            **SMALL | {"noise_multiplier": 1.0, "trials": "geometric"}, mean_trials=mean
        )
        costs[mean] = certified_answer(form)["words"][1].split(":")[0]
    assert costs[2.0].endswith("costs less")
    assert costs[100.0].endswith("costs more")


@pytest.mark.parametrize(
    ("settings", "place", "why"),
    [
        ({"mechanism": "tree"}, "mechanism", "does not serve this sampling"),
        (POISSON | {"sampling": "shuffle", "last_batch": "used"}, "sampling", "must be Poisson or"),
        (POISSON | {"find": "steps"}, "find", "cannot be found"),
        (POISSON | {"trials": "geometric"}, "trials", "no base of a selection"),
        ({"trials": "geometric", "find": "noise_multiplier"}, "find", "known of a selection"),
        (POISSON | {"length": 100_001.0}, "length", "at most 100,000 steps"),
        (TREE | {"length": 2000.0, "min_separation": 1}, "mechanism", "too much work"),
        (
            {"sampling": "cyclic", "mechanism": "identity", "batch_size": 70},
            "last_batch",
            "steps of a pass",
        ),
    ],
)
def test_what_does_not_fit_together_is_named(
    api: httpx.Client, settings: dict[str, Any], place: str, why: str
) -> None:
    answer = api.get("/planner/answer.json", params=given(**settings))
    assert answer.status_code == 422, answer.text
    told = {one["location"].rpartition(".")[2]: one["message"] for one in answer.json()["errors"]}
    assert why in told[place]
    page = api.get("/planner/answer", params=given(**settings))
    assert page.status_code == 200
    assert why in page.text


@pytest.mark.parametrize("name", PASSES)
def test_the_code_of_a_pass_runs_as_it_stands(
    api: httpx.Client, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = PlannerForm(
        **SMALL | PASSES[name] | {"dataset": "data", "neighboring_relation": "replace_special"}
    )
    monkeypatch.setenv("DPLEDGER_URL", str(api.base_url))
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path))
    told: dict[str, Any] = {}
    with ExitStack() as clients:

        def client() -> dpledger_client.Client:
            return clients.enter_context(Client())

        monkeypatch.setattr(dpledger_client, "Client", client)
        exec(budget_answer(form)["budget_snippet"], told)  # noqa: S102 (it is promised to run)
        exec(client_snippet(form), told)  # noqa: S102
    told["run"]._transport.close()
    (event,) = api.get("/v1/runs/my-run-1/ledger").json()["events"]
    assert event["steps"] == 60
    found = api.get("/v1/runs/my-run-1/guarantee", params={"delta": 1e-5}).json()
    assert found["epsilon"] == pytest.approx(certified_answer(form)["epsilon"], rel=1e-9)


@pytest.mark.parametrize("law", ["geometric", "poisson"])
def test_the_code_of_a_sweep_runs_as_it_stands(
    api: httpx.Client, law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = PlannerForm(
        **SMALL | {"trials": law, "dataset": "data", "length": 5, "mean_trials": 2.0}
    )
    budget = {"epsilon": 1e3, "delta": 1e-5}
    made = api.post(
        "/v1/datasets", json=dataset(dataset_size=1000, budget=budget, accept=form.accept())
    )
    assert made.status_code == 201, made.text
    monkeypatch.setenv("DPLEDGER_URL", str(api.base_url))
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path))
    told: dict[str, Any] = {}
    exec(client_snippet(form), told)  # noqa: S102 (it is promised to run)
    told["run"]._transport.close()
    (event,) = api.get("/v1/runs/my-sweep-1/ledger").json()["events"]
    assert (event["steps"], event["mechanism"]["base"]["steps"]) == (1, 5)


def test_without_scripts_the_page_has_the_words(api: httpx.Client) -> None:
    for settings in (POISSON, {"trials": "geometric"}):
        page = api.get("/planner/answer", params=given(**settings)).text
        for sentence in certified_answer(PlannerForm(**SMALL | settings))["words"]:
            assert f"<p>{sentence}</p>" in page
        section = page[page.index("data-choices") :]
        assert "<td" not in section  # ways to choose batches do not stand beside it
    assert "data-words hidden" in api.get("/planner/answer", params=given()).text


def test_a_pass_becomes_no_budget_by_a_button(api: httpx.Client) -> None:
    budget = {"epsilon": 100.0, "delta": 1e-5}
    api.post("/v1/datasets", json=dataset(dataset_size=1000, budget=budget))
    assert ask(api, "fits", **given(dataset="data"))["can_become_budget"]
    assert not ask(api, "fits", **given(dataset="data", **POISSON))["can_become_budget"]
