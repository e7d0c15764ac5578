"""The page that creates a dataset: what it previews, creates and refuses."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from html import unescape
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.identity.keys import Role
from service.operations.ordinary_trainings import ORDINARY_TRAININGS
from tests.service.browsing import csrf_of, make_key, signed_in
from tests.service.dumps import dump
from tests.service.samples import Json, dataset
from tests.service.test_dataset_page import words
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
LETTERS = {
    "name": "letters", "size": "60000", "unit": "patient", "relation": "add_or_remove_one",
    "epsilon": "1", "delta": "1e-5", "noise": "", "batch": "", "steps": "", "holds": "any",
    "parents": "", "rows": "", "most": "",
}  # fmt: skip
TRAINING = {"noise": "1.1", "batch": "60", "steps": "30000"}
ALERT = re.compile(r'id="new-(\w+)-hint" role="alert">([^<]*)<')


class Desk:
    """An admin's browser, and the API beside it."""

    def __init__(self, browser: httpx.Client, api: httpx.Client, reader: str) -> None:
        self.browser, self.api, self.reader = browser, api, reader
        self._csrf = csrf_of(browser)

    def send(self, do: str = "create", **given: str) -> httpx.Response:
        sent = LETTERS | given | {"do": do, "csrf": self._csrf}
        return self.browser.post("/new-dataset", data=sent)

    def stored(self, name: str = "letters") -> Any:
        return self.api.get(f"/v1/datasets/{name}").json()


@pytest.fixture
def desk(engine: Engine, serve: Serve) -> Iterator[Desk]:
    key = make_key(engine, "officer", Role.ADMIN)
    reader = make_key(engine, "reader", Role.VIEWER)
    with (
        serve() as address,
        signed_in(address, key) as browser,
        httpx.Client(base_url=address, headers=bearer(key)) as api,
    ):
        yield Desk(browser, api, reader)


def faults(answer: httpx.Response) -> dict[str, str]:
    return {name: unescape(text) for name, text in ALERT.findall(answer.text)}


def request(**more: Any) -> Json:
    limit = {"epsilon": 1.0, "delta": 1e-5}
    return dataset("api", dataset_size=60000, privacy_unit="patient", budget=limit) | more


def test_a_preview_says_what_creation_answers_and_creates_nothing(
    desk: Desk, engine: Engine
) -> None:
    before = dump(engine)
    answer = desk.send("preview")
    assert answer.status_code == 200
    assert dump(engine) == before
    created = desk.api.post("/v1/datasets", json=request()).json()
    for one in created["would_admit"]:
        assert f"{one['steps']:,}".replace(",", "") in answer.text.replace(",", "")
    assert len(created["would_admit"]) == len(ORDINARY_TRAININGS) == 3
    (order,) = created["budget"]["filter"]["orders"]
    assert f"Rényi order {order:g}" in answer.text


def test_a_training_chooses_the_filter_as_the_api_does(desk: Desk) -> None:
    event = {
        "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
        "sampling": {"kind": "poisson", "expected_batch_size": 60.0},
        "steps": 30000,
    }
    asked = desk.api.post("/v1/datasets", json=request(**{"for": {"events": [event]}})).json()
    assert desk.send(**TRAINING).status_code == 303
    stored = desk.stored()
    assert stored["budget"]["filter"] == asked["budget"]["filter"]
    assert stored["budget"]["epsilon"] == 1.0
    plain = desk.api.post("/v1/datasets", json=request() | {"name": "plain"}).json()
    assert plain["budget"]["filter"] != stored["budget"]["filter"]


def followed(desk: Desk, text: str, link: str) -> Any:
    """The certified answer of the planner behind a link that begins so."""
    found = re.search(rf'<a href="/planner\?([^"]*)">{link}', text)
    assert found
    return desk.browser.get(f"/planner/answer.json?{unescape(found[1])}").json()


def test_a_preview_says_how_much_of_the_training_fits(desk: Desk) -> None:
    fits = desk.send("preview", **TRAINING).text
    assert "All 30,000 steps fit" in fits
    assert "The limit admits no step" not in fits  # of trainings that it is not for
    assert "The limit admits no step" in desk.send("preview", epsilon="0.2").text
    few = desk.send("preview", **TRAINING | {"noise": "0.9", "steps": "900000"}).text
    found = re.search(r"<strong>([\d,]+) of its 900,000 steps fit", few)
    assert found
    assert "The planner finds" not in fits
    assert followed(desk, few, "the least ε")["solved"] is None
    louder = followed(desk, few, "the noise")["solved"]
    assert louder["parameter"] == "noise_multiplier"
    assert louder["value"] > 0.9
    whole = desk.send("preview", **TRAINING | {"noise": str(louder["value"]), "steps": "900000"})
    assert "all 900,000 steps" in whole.text
    shorter = followed(desk, few, "the steps")["solved"]
    assert (shorter["parameter"], shorter["value"] < 900_000) == ("steps", True)
    created = desk.send(**TRAINING | {"noise": "0.9", "steps": "900000"})
    assert created.status_code == 303
    sampling = {"kind": "poisson", "sampling_probability": 0.001}
    events = [{"mechanism": {"kind": "gaussian", "noise_multiplier": 0.9}, "sampling": sampling}]
    asked = {"events": [events[0] | {"steps": 10**9}]}
    told = desk.api.post("/v1/datasets/letters/explain", json=asked).json()
    assert f"{told['fewer_steps']['value']:,}" == found[1]
    assert (
        "None of its steps fits"
        in desk.send("preview", **TRAINING | {"noise": "0.02", "name": "loud"}).text
    )


def test_without_an_epsilon_there_is_no_limit(desk: Desk) -> None:
    assert "No limit." in desk.send("preview", epsilon="", delta="").text
    answer = desk.send(epsilon="", delta="")
    assert answer.headers["location"] == "/datasets/letters"
    assert desk.stored()["budget"] is None


def test_an_envelope_holds_exactly_the_training_at_its_own_cost(desk: Desk) -> None:
    assert desk.send(**TRAINING, holds="envelope", epsilon="").status_code == 303
    budget = desk.stored()["budget"]
    assert (budget["filter"]["kind"], budget["remaining_steps"]) == ("envelope", 30000)
    less = desk.send(**TRAINING, name="less", holds="envelope", epsilon=str(budget["epsilon"] / 2))
    assert faults(less) == {"epsilon": "is less than the planned training costs"}


def test_the_form_says_that_an_envelope_is_derived_before_it_creates_one(desk: Desk) -> None:
    assert "Its theorem is derived" in desk.browser.get("/new-dataset").text
    assert desk.send(**TRAINING, holds="envelope", epsilon="").status_code == 303
    least = str(desk.stored()["budget"]["epsilon"])
    given = TRAINING | {"name": "tight", "epsilon": least}  # any training that fits
    told = words(desk.send("preview", **given).text)
    assert "No other filter holds the whole training" in told
    assert "is derived : proved on our own pages" in told
    assert "accepts declared and published otherwise; to create it accepts the envelope" in told
    assert "To avoid that, choose a larger ε" in told
    assert desk.send(**given).status_code == 303
    made = desk.api.get("/v1/datasets/tight").json()
    assert (made["budget"]["filter"]["kind"], made["accept"]) == (
        "envelope", ["declared", "published"],
    )  # fmt: skip
    wide = words(desk.send("preview", **TRAINING | {"name": "wide"}, epsilon="8").text)
    assert "is derived :" not in wide


def test_a_child_charges_its_parents(desk: Desk) -> None:
    assert desk.send(name="all").status_code == 303
    given = {"parents": "all", "rows": "several", "most": "3", "unit": "visit"}
    assert desk.send(**given).status_code == 303
    stored = desk.stored()
    assert (stored["parents"], stored["rows_per_parent_record"]) == (["all"], {"at_most": 3})
    missing = desk.send(name="other", parents="all, nothing", rows="at_most_one")
    assert list(faults(missing)) == ["parents"]
    unsaid = desk.send(name="other", parents="all")
    assert faults(unsaid)["rows"].startswith("is needed with parents")


@pytest.mark.parametrize(
    ("given", "places"),
    [
        ({"name": "Letters"}, {"name"}), ({"name": ""}, {"name"}), ({"size": "6e4"}, {"size"}),
        ({"size": "0"}, {"size"}), ({"unit": ""}, {"unit"}), ({"relation": "other"}, {"relation"}),
        ({"epsilon": "nan"}, {"epsilon"}), ({"epsilon": "-1"}, {"epsilon"}),
        ({"epsilon": "one"}, {"epsilon"}), ({"delta": "1"}, {"delta"}), ({"delta": ""}, {"delta"}),
        ({"noise": "1.1"}, {"batch", "steps"}),
        (TRAINING | {"noise": "x", "size": "many"}, {"noise", "size"}),
        (TRAINING | {"batch": "0"}, {"batch"}), (TRAINING | {"steps": "0.5e10"}, {"steps"}),
        (TRAINING | {"epsilon": ""}, {"epsilon"}), (TRAINING | {"relation": "x"}, {"relation"}),
        ({"holds": "envelope"}, {"noise"}), ({"parents": "A"}, {"parents", "rows"}),
        ({"rows": "exactly_one"}, {"rows"}), ({"rows": "some"}, {"rows"}),
        ({"rows": "several", "most": "x"}, {"most"}), (TRAINING | {"noise": "1e-9"}, {"noise"}),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_beside_its_field(
    desk: Desk, engine: Engine, given: dict[str, str], places: set[str]
) -> None:
    before = dump(engine)
    for do in ("preview", "create"):
        answer = desk.send(do, **given)
        assert answer.status_code == 422, answer.text
        assert set(faults(answer)) == places
        assert "No dataset was created" in answer.text
    assert dump(engine) == before


def test_a_name_that_is_taken_is_a_conflict_and_the_same_request_is_not(desk: Desk) -> None:
    assert desk.send().status_code == desk.send().status_code == 303
    other = desk.send(epsilon="2")
    assert (other.status_code, list(faults(other))) == (409, ["name"])
    assert desk.send("preview").status_code == 409


def test_only_an_admins_own_form_creates(desk: Desk) -> None:
    forged = desk.browser.post("/new-dataset", data=LETTERS | {"do": "create", "csrf": "00"})
    assert forged.status_code == 403
    with signed_in(str(desk.browser.base_url).rstrip("/"), desk.reader) as browser:
        assert browser.get("/new-dataset").status_code == 403
        sent = LETTERS | {"do": "create", "csrf": csrf_of(browser)}
        assert browser.post("/new-dataset", data=sent).status_code == 403
        assert "/new-dataset" not in browser.get("/datasets").text
    assert desk.stored()["status"] == 404


def test_the_planners_settings_fill_the_form_in_also_where_they_are_the_planners_own(
    desk: Desk,
) -> None:
    assert "4,688 steps of noise multiplier 1.1" in desk.browser.get("/new-dataset?plan=").text
    plan = "noise_multiplier=2&batch_size=600&dataset_size=9000&length=7&unit=steps"
    page = desk.browser.get("/new-dataset", params={"plan": plan})
    assert "7 steps of noise multiplier 2, batches of 600 records" in page.text
    assert 'value="9000"' in page.text
    assert desk.send(plan=plan, size="9000", holds="envelope", epsilon="").status_code == 303
    assert desk.stored()["budget"]["remaining_steps"] == 7


def test_datasets_new_is_the_form_unless_a_dataset_has_that_name(desk: Desk) -> None:
    assert desk.browser.get("/datasets/new").headers["location"] == "/new-dataset"
    assert desk.send(name="new").status_code == 303
    assert desk.browser.get("/datasets/new").status_code == 200


def test_a_planned_noise_that_is_usual_is_one_line_of_what_fits(desk: Desk) -> None:
    assert desk.send(**TRAINING | {"noise": "2", "steps": "100"}).status_code == 303
    said = words(desk.browser.get("/datasets/letters").text)
    assert re.findall(r"noise ([\d.]+) (\w+)", said[said.index("What would still fit") :]) == [
        ("2", "planned"), ("0.8", "little"), ("1.1", "usual"),
    ]  # fmt: skip
