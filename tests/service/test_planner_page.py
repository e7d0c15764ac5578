"""The planner: quick and certified, with scripts and without, and code that runs as it stands."""

import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.events import NeighboringRelation
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.work_limit import limit_work
from service.formatting import up
from service.identity.keys import Role
from service.web.dashboard.forms.planner_form import PlannerForm, planner_form
from service.web.dashboard.forms.planner_schemes import SCHEMES
from service.web.dashboard.pages.planning.planner_answers import (
    QUICK_TRIES,
    certified_answer,
    quick_answer,
    quick_bound,
)
from service.web.dashboard.snippets import client_snippet
from tests.service.browsing import make_key, signed_in
from tests.service.samples import Json, dataset
from tests.service.test_dashboard import INLINE, Serve

PAGE_BYTES_MAX = 150_000
EVERY_SCHEME = pytest.mark.parametrize("scheme", SCHEMES)
CONSTANTS: dict[str, Any] = {"dataset_size": 1000, "batch_size": 50, "length": 40, "unit": "steps"}
SMALL = {"dataset_size": "1000", "batch_size": "50", "length": "40", "unit": "steps"}


def ask(api: httpx.Client, path: str, **given: str) -> Json:
    answer = api.get(f"/planner/{path}.json", params=given)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


@EVERY_SCHEME
def test_the_quick_answer_is_an_upper_bound_and_says_by_whom(scheme: str) -> None:
    for relation in NeighboringRelation:
        given = SMALL | {"sampling": scheme, "neighboring_relation": relation, "derived": "1"}
        quick, certified = quick_answer(planner_form(given)), certified_answer(planner_form(given))
        assert (quick["quick"], certified["quick"]) == (True, False)
        assert (quick["epsilon"] is None) == (certified["epsilon"] is None)
        if certified["epsilon"] is None:
            assert quick["reason"] == certified["reason"] != ""
            continue
        assert quick["accountant_name"] in ("Rényi", "Gaussian DP", "privacy loss distribution")
        assert quick["epsilon"] >= certified["epsilon"] * (1 - 1e-9)
        assert quick["epsilon"] >= (certified["epsilon_lower"] or 0)
        assert certified["epsilon_text"] == up(certified["epsilon"])


@pytest.mark.parametrize("derived", [False, True])
def test_the_quick_answer_keeps_to_what_is_accepted(derived: bool) -> None:
    accept = DEFAULT_ACCEPT | ({Status.DERIVED} if derived else set())
    for scheme in SCHEMES:
        form = PlannerForm(sampling=scheme, derived=derived, **CONSTANTS)
        found = quick_bound(form)
        assert found is None or found.status in accept


@EVERY_SCHEME
@pytest.mark.parametrize("relation", NeighboringRelation)
def test_a_quick_answer_takes_little_work(scheme: str, relation: str) -> None:
    """A slider that is dragged asks for one after another."""
    form = PlannerForm(
        sampling=scheme, neighboring_relation=relation, last_batch="used", derived=True,
        noise_multiplier=1.23,
    )  # fmt: skip
    with limit_work(math.inf) as work:
        quick_bound(form)
    tries = QUICK_TRIES if scheme == "with_replacement" else QUICK_TRIES[:-1]
    assert work.spent <= 1.2 * sum(points for _, points in tries)


def test_a_quick_answer_about_fresh_draws_is_no_huge_number() -> None:
    for scheme in ("with_replacement", "non_uniform", "truncated_poisson"):
        for relation in NeighboringRelation:
            form = PlannerForm(
                sampling=scheme, neighboring_relation=relation, derived=True, noise_multiplier=1.23
            )
            found = quick_bound(form)
            assert found is None or found.epsilon < 40


def test_the_api_answers_the_same(api: httpx.Client) -> None:
    found = ask(api, "answer")
    event = {"steps": 4688, "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1}}
    event["sampling"] = {"kind": "poisson", "expected_batch_size": 256.0}
    body = {"neighboring_relation": "add_or_remove_one", "delta": 1e-5, "dataset_size": 60000}
    told = api.post("/v1/plan", json=body | {"events": [event]}).json()
    assert (found["epsilon"], found["epsilon_lower"]) == (told["epsilon"], told["epsilon_lower"])
    assert (found["steps"], found["bound"]) == (4688, "poisson-gaussian")


def test_noise_and_steps_are_found_on_the_safe_side(api: httpx.Client) -> None:
    noise = ask(api, "answer", find="noise_multiplier", epsilon="2")
    assert noise["solved"]["parameter"] == "noise_multiplier"
    assert float(noise["solved"]["value_text"]) >= noise["solved"]["value"]  # rounded up
    assert noise["epsilon"] <= 2
    again = ask(api, "answer", **dict(httpx.QueryParams(noise["query"])))
    assert again["epsilon"] == noise["epsilon"]  # the address keeps all digits
    assert repr(noise["solved"]["value"]) in noise["snippet"]
    steps = ask(api, "answer", find="steps", epsilon="2")
    assert steps["epsilon"] <= 2
    assert f"range({steps['solved']['value']})" in steps["snippet"]
    more = {"unit": "steps", "length": str(steps["solved"]["value"] + 1)}
    assert ask(api, "answer", **more)["epsilon"] > 2
    assert ask(api, "quick", find="steps")["epsilon"] is None  # it is not known yet


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({"batch_size": "0", "delta": "x"}, {"batch_size", "delta"}),
        ({"noise_multiplier": "nan"}, {"noise_multiplier"}),
        ({"dataset_size": "1.5"}, {"dataset_size"}),
        ({"sampling": "guess"}, {"sampling"}),
        ({"batch_size": "70000"}, {"sampling.expected_batch_size"}),
        ({"dataset": "../x"}, {"dataset"}),
    ],
)
def test_what_is_at_fault_is_named(
    api: httpx.Client, given: dict[str, str], places: set[str]
) -> None:
    answer = api.get("/planner/quick.json", params=given)
    assert answer.status_code == 422
    told = {one["location"] for one in answer.json()["errors"]}
    assert {place.rpartition(".")[2] for place in told} == {
        place.rpartition(".")[2] for place in places
    }
    page = api.get("/planner/answer", params=given)
    assert page.status_code == 200
    assert page.text.count('aria-invalid="true"') <= len(places)
    assert re.search(r'data-fault="\w+">[^<]', page.text)


def test_without_scripts_the_page_has_the_certified_answer(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(budget={"epsilon": 3.0, "delta": 1e-5}))
    given = {"batch_size": "512", "dataset": "data"}
    found = ask(api, "answer", **given)
    page = api.get("/planner/answer", params=given)
    assert len(page.content) < PAGE_BYTES_MAX
    assert not INLINE.search(page.text)
    assert f'data-out="epsilon_text">{found["epsilon_text"]}<' in page.text
    assert f'data-out="epsilon_lower_text">{found["epsilon_lower_text"]}<' in page.text
    assert "It fits in" in page.text
    for scheme in SCHEMES.values():
        assert scheme.title in page.text
    quick = api.get("/planner", params=given)
    assert "Quick upper bound by the privacy loss distribution accountant" in quick.text


def test_an_address_keeps_every_setting() -> None:
    form = PlannerForm(
        noise_multiplier=0.1 + 0.2, batch_size=7, dataset_size=99, length=3.5, unit="steps",
        sampling="random_allocation", mechanism="laplace", neighboring_relation="replace_one",
        delta=1e-300, derived=True, find="steps", epsilon=0.7, max_batch_size=9, participations=3,
        max_weight=0.125, dataset="data", bands=12, min_separation=34, trials="geometric",
        mean_trials=5.5,
    )  # fmt: skip
    assert planner_form(dict(httpx.QueryParams(form.query()))) == form
    assert PlannerForm().query() == ""


def test_schemes_stand_side_by_side_the_best_first(api: httpx.Client) -> None:
    rows = ask(api, "schemes", derived="1", **SMALL)["schemes"]
    assert {row["slug"] for row in rows} == set(SCHEMES)
    finite = [row["epsilon"] for row in rows if row["epsilon"] is not None]
    assert finite == sorted(finite)
    assert len(finite) >= 8
    assert all(row["reason"] for row in rows[len(finite) :])
    assert all(0 < row["share"] <= 1 for row in rows[: len(finite)])
    page = api.get("/planner/answer", params={"derived": "1", **SMALL}).text  # without scripts
    section = page[page.index('id="schemes-title"') : page.index('id="code-title"')]
    assert section.count("quick, ") == len(finite)


def test_what_does_not_fit_is_told_with_what_would(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(budget={"epsilon": 0.5, "delta": 1e-5}))
    fits = ask(api, "fits", dataset="data", noise_multiplier="20")
    assert (fits["fits"], fits["remedies"], fits["differs"]) == (True, [], [])
    told = ask(api, "fits", dataset="data", dataset_size="50000")
    assert not told["fits"]
    assert any("noise multiplier" in one for one in told["remedies"])
    assert told["differs"] == ["it has 60,000 records"]
    assert api.get("/planner/fits.json", params={"dataset": "none"}).status_code == 404


def test_a_key_plans_only_for_datasets_it_reaches(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    for name in ("ours", "theirs"):
        api.post("/v1/datasets", json=dataset(name, budget={"epsilon": 1.0, "delta": 1e-5}))
    key = make_key(engine, "ours-only", Role.VIEWER, datasets=frozenset({"ours"}))
    with serve() as address, signed_in(address, key) as client:
        page = client.get("/planner").text
        assert '<option value="ours">' in page
        assert "theirs" not in page
        assert client.get("/planner/fits.json", params={"dataset": "ours"}).status_code == 200
        assert client.get("/planner/fits.json", params={"dataset": "theirs"}).status_code == 404


def test_nobody_plans_without_signing_in(engine: Engine, serve: Serve) -> None:
    make_key(engine, "first")
    with serve() as address, httpx.Client(base_url=address) as client:
        assert client.get("/planner").status_code == 303
        assert client.get("/planner/answer.json").status_code == 401


@EVERY_SCHEME
def test_the_code_to_copy_runs_as_it_stands(
    api: httpx.Client, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = PlannerForm(sampling=scheme, dataset="data", dataset_size=1000, batch_size=50, length=3,
                unit="steps", neighboring_relation="replace_special", derived=True)  # fmt: skip
    accept: Json = {"accept": form.accept(), "neighboring_relation": "replace_special"}
    budget = {"epsilon": 1e6, "delta": 1e-5}
    made = api.post("/v1/datasets", json=dataset(dataset_size=1000, budget=budget, **accept))
    assert made.status_code == 201, made.text
    monkeypatch.setenv("DPLEDGER_URL", str(api.base_url))
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path))
    told: dict[str, Any] = {}
    exec(client_snippet(form), told)  # noqa: S102 (that it can be run is what is promised)
    told["run"]._transport.close()  # as the end of a process does
    run = api.get("/v1/runs/my-run-1").json()
    assert (run["steps"], run["state"]) == (3, "finished")
    (event,) = recorded(api)
    assert event["mechanism"] == {"kind": "gaussian", "noise_multiplier": 1.1}
    expected = form.sampling_message()
    if expected.pop("expected_batch_size", None):
        expected["sampling_probability"] = 0.05
    assert event["sampling"].items() >= expected.items()


def recorded(api: httpx.Client) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = api.get("/v1/runs/my-run-1/ledger").json()["events"]
    return events


def test_a_dataset_is_searched_by_its_name(api: httpx.Client) -> None:
    for name in ("letters", "zebras"):
        made = dataset(name, budget={"epsilon": 3.0, "delta": 1e-5})
        assert api.post("/v1/datasets", json=made).status_code == 201
    text = api.get("/planner", params={"dataset": "zebras"}).text
    (field,) = re.findall(r'<input id="dataset"[^>]*>', text)
    assert 'list="dataset-names"' in field
    assert 'value="zebras"' in field
    listed = text.split('<datalist id="dataset-names">')[1].split("</datalist>")[0]
    assert re.findall(r'<option value="([^"]+)">', listed) == ["letters", "zebras"]
    answered = api.get("/planner/answer", params={"dataset": "zebras"}).text  # without scripts
    assert 'href="/datasets/zebras"' in answered
