"""The plan of the planner becomes the budget of a dataset: by a form of the page, and as code."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.identity.keys import Role
from service.web.dashboard.forms.planner_form import PlannerForm, planner_form
from service.web.dashboard.pages.planning.planner_budget import budget_answer
from tests.service.browsing import csrf_of, make_key, signed_in
from tests.service.samples import BUDGET, Json, append, dataset, event, run
from tests.service.test_dashboard import Serve

# Its 400 steps are certified at 2.9861; the default filter holds 266 of them.
PLAN = {
    "noise_multiplier": "1.626",
    "batch_size": "3000",
    "dataset_size": "60000",
    "length": "20",
    "dataset": "data",
}


@pytest.fixture
def officer(serve: Serve, engine: Engine) -> Iterator[httpx.Client]:
    """A browser with an admin's key; a dataset has a budget and no answers."""
    key = make_key(engine, "officer", Role.ADMIN)
    with serve() as address, signed_in(address, key) as browser:
        browser.headers["authorization"] = f"Bearer {key}"
        made = dataset("data", budget=BUDGET)
        assert browser.post("/v1/datasets", json=made).status_code == 201
        yield browser


def shown(browser: httpx.Client, **given: str) -> str:
    answer = browser.get("/planner/answer", params=PLAN | given)
    assert answer.status_code == 200, answer.text
    return answer.text


def fields(page: str) -> dict[str, str]:
    """The hidden fields of the form, as a browser would send them."""
    form = page[page.index('action="/planner/budget"') :].partition("</form>")[0]
    found = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form))
    return {name: value.replace("&amp;", "&") for name, value in found.items()}


def send(browser: httpx.Client, sent: dict[str, str]) -> httpx.Response:
    return browser.post("/planner/budget", data=sent)


def is_offered(page: str) -> bool:
    form = re.search(r"<form[^>]*data-budget-form[^>]*>", page)
    return form is not None and "hidden" not in form[0]


def test_where_two_must_agree_the_button_makes_a_request(serve: Serve, engine: Engine) -> None:
    key = make_key(engine, "officer", Role.ADMIN)
    with serve(approvals=("envelopes",)) as address, signed_in(address, key) as browser:
        browser.headers["authorization"] = f"Bearer {key}"
        browser.post("/v1/datasets", json=dataset("data", budget=BUDGET))
        answer = send(browser, fields(shown(browser)))
        assert answer.headers["location"].startswith("/requests/")
        found = browser.get("/v1/datasets/data").json()
        assert (found["revision"], found["budget"]["filter"]["kind"]) == (1, "fixed_order_renyi")


def test_the_button_makes_the_plan_the_budget_and_it_runs_to_its_end(officer: httpx.Client) -> None:
    page = shown(officer)
    assert "It does not fit in " in page
    assert is_offered(page)
    answer = send(officer, fields(page))
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets/data#envelope")
    assert 'id="envelope"' in officer.get("/datasets/data").text
    found = officer.get("/v1/datasets/data").json()
    assert (found["budget"]["epsilon"], found["budget"]["delta"]) == (3.0, 1e-5)
    [item] = found["budget"]["items"]
    assert (item["allowed"], item["sampling"]["sampling_probability"]) == (400, 0.05)
    page = shown(officer)
    assert "It fits in " in page
    assert officer.post("/v1/runs", json=run("run")).status_code == 201
    steps = event(0, 400, mechanism=item["mechanism"], sampling=item["sampling"])
    assert append(officer, steps, mode="charge").status_code == 201
    further = event(400, 1, mechanism=item["mechanism"], sampling=item["sampling"])
    assert append(officer, further, mode="charge").status_code == 409
    assert not is_offered(shown(officer))  # answers were seen


def test_what_does_not_fit_is_told_on_the_page(officer: httpx.Client) -> None:
    sent = fields(shown(officer, length="60"))
    answer = send(officer, sent)
    assert answer.status_code == 409
    assert "The budget was not changed." in answer.text
    assert 'value="60"' in answer.text  # with the settings as they were sent
    assert officer.get("/v1/datasets/data").json()["revision"] == 1


@pytest.mark.parametrize("broken", [{"reason": ""}, {"revision": "9"}, {"settings": "delta=none"}])
def test_a_form_at_fault_changes_nothing(officer: httpx.Client, broken: dict[str, str]) -> None:
    sent = fields(shown(officer)) | broken
    if "settings" in broken:
        sent["settings"] += "&dataset=data"
    answer = send(officer, sent)
    assert answer.status_code == 409
    assert "The budget was not changed." in answer.text
    assert officer.get("/v1/datasets/data").json()["revision"] == 1


def test_after_an_answer_it_is_refused(officer: httpx.Client) -> None:
    sent = fields(shown(officer))
    assert officer.post("/v1/runs", json=run("run")).status_code == 201
    quiet = {"kind": "gaussian", "noise_multiplier": 50.0}
    assert append(officer, event(0, 1, mechanism=quiet), mode="charge").status_code == 201
    assert send(officer, sent).status_code == 409
    assert officer.get("/v1/datasets/data").json()["budget"]["items"] is None


def test_a_dataset_without_a_limit_gets_that_of_the_plan(officer: httpx.Client) -> None:
    assert officer.post("/v1/datasets", json=dataset("free", budget=None)).status_code == 201
    sent = fields(shown(officer))
    sent["settings"] = sent["settings"].replace("dataset=data", "dataset=free")
    assert send(officer, sent).status_code == 303
    budget = officer.get("/v1/datasets/free").json()["budget"]
    assert budget["epsilon"] == 2.9861
    assert budget["remaining_steps"] == 400


@pytest.mark.parametrize("scope", [Role.VIEWER, Role.TRAINER])
def test_only_an_admin_sees_the_form_and_may_send_it(
    serve: Serve, engine: Engine, scope: Role
) -> None:
    admin, key = make_key(engine, "officer", Role.ADMIN), make_key(engine, "guest", scope)
    with serve() as address, signed_in(address, key) as browser:
        made = dataset("data", budget=BUDGET)
        bearer = {"authorization": f"Bearer {admin}"}
        assert browser.post("/v1/datasets", json=made, headers=bearer).status_code == 201
        page = shown(browser)
        assert "/planner/budget" not in page
        sent = {
            "csrf": csrf_of(browser),
            "settings": "dataset=data",
            "revision": "1",
            "reason": "x",
        }
        assert send(browser, sent).status_code == 403


def test_the_code_is_python_that_creates_the_dataset(officer: httpx.Client) -> None:
    found: Json = officer.get("/planner/budget.json", params=PLAN).json()
    made: dict[str, Any] = {}

    class Client:
        def create_dataset(self, name: str, **given: Any) -> None:
            made.update(name=name, **given)

    class Package:
        pass

    Package.Client = Client  # type: ignore[attr-defined]
    code = found["budget_snippet"].replace("import dpledger_client as dp\n", "")
    exec(code, {"dp": Package})  # noqa: S102 (it is our own)
    assert made["budget"]["filter"] == "envelope"
    made["name"] = "copied"
    answer = officer.post("/v1/datasets", json=made)
    assert answer.status_code == 201, answer.text
    assert answer.json()["budget"]["remaining_steps"] == 400


def test_noise_that_is_found_for_a_target_is_in_the_code() -> None:
    given = PLAN | {"find": "noise_multiplier", "epsilon": "3"}
    found = budget_answer(planner_form({k: v for k, v in given.items() if k != "dataset"}))
    assert found["budget_reason"] is None
    assert '"epsilon": 3.0' in found["budget_snippet"]


def test_a_plan_of_correlated_noise_is_no_budget_until_its_strategy_is_kept(
    officer: httpx.Client,
) -> None:
    sent = fields(shown(officer))
    sent["settings"] += "&mechanism=banded&derived=1"
    answer = send(officer, sent)
    assert answer.status_code == 409
    assert "needs a strategy that is kept" in answer.text
    assert "envelope" not in officer.get("/v1/datasets/data").json()["budget"]["filter"]


def test_a_plan_without_an_envelope_says_so() -> None:
    none = budget_answer(PlannerForm(sampling="shuffle", last_batch="used"))
    assert none["budget_snippet"] is None
    assert none["budget_reason"]


def test_code_that_creates_a_dataset_is_python_without_an_envelope_too(
    officer: httpx.Client,
) -> None:
    assert "/planner/budget" in officer.get("/planner").text
    assert officer.get("/planner/budget").headers["location"] == "/planner"
