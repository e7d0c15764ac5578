"""What is wrong with a form is said in its own words: no place in a message, no schema's phrase."""

import random
import re
from collections.abc import Iterator
from html import unescape

import httpx
import pytest
from sqlalchemy import Engine

from service.errors import InvalidRequestError
from service.identity.keys import Role
from service.web.dashboard.forms.budget_form import faults_of
from service.web.dashboard.forms.shown_form import fault_text, faults_by_field, plain_words
from tests.service.browsing import csrf_of, make_key, signed_in
from tests.service.samples import BUDGET, FULL, GAUSSIAN, Json, append, dataset, event, run, setup
from tests.service.test_dataset_page import words
from tests.service.test_incident_notes import inbox
from tests.service.test_keys import Serve, bearer

LEAK = re.compile(
    r"\b(body|query|path)[.:\[]|\bbudget\.\w|\w\[\d+\]|(String|Input|List) should|Field required"
    r"|must lie in [\[(]|must match|[a-z]_[a-z]+:"
)
ALERT = re.compile(r'<p[^>]*role="alert"[^>]*>(.*?)</p>', re.S)
LONG = "x" * 201
NUMBERS = ["", "x", "0", "-1", "1e-9", "1e9", "nan", "inf", "2", "1.5", "9" * 30]
TEXTS = ["", " ", LONG, "UPPER", "\u0301", "a,b", "ok"]
FIELDS: dict[str, dict[str, list[str]]] = {  # of each form: what is typed into each field
    "/datasets/data/limit": {"epsilon": NUMBERS, "delta": NUMBERS, "reason": TEXTS},
    "/datasets/held/limit": {"epsilon": NUMBERS, "delta": NUMBERS, "reason": TEXTS},
    "/datasets/items/limit": {"epsilon": NUMBERS, "delta": NUMBERS, "reason": TEXTS},
    "/datasets/data/admission": {"reason": TEXTS},
    "/datasets/data/accept": {"reason": TEXTS, "accept_derived": ["yes"]},
    "/new-dataset": {
        "name": TEXTS, "size": NUMBERS, "unit": TEXTS, "relation": TEXTS, "epsilon": NUMBERS,
        "delta": NUMBERS, "holds": ["any", "envelope"], "noise": NUMBERS, "batch": NUMBERS,
        "steps": NUMBERS, "parents": [*TEXTS, "data", "held, items"], "most": NUMBERS,
        "rows": ["", "several", "at_most_one", "x"], "do": ["preview"],
    },
    "/runs/run/correct": {
        "branch": [*TEXTS, "main"], "first": NUMBERS, "steps": NUMBERS, "noise": NUMBERS,
        "sampling": ["", "poisson", "shuffle", "cyclic", "fixed_size", "x"], "rate": NUMBERS,
        "batch": NUMBERS, "pass": NUMBERS, "reason": TEXTS, "do": ["preview"],
    },
    "/runs/run/finish": {"state": ["active", "x"], "reason": TEXTS},
    "/reservations/lease/void": {"reason": ["", LONG, "\u0301"]},
    "/keys": {
        "name": TEXTS, "scope": ["", "x", "owner", "admin"], "person": TEXTS, "days": NUMBERS,
        "datasets": [*TEXTS, "a, B, _"], "rate": NUMBERS,
    },
    "/keys/trainer/rotate": {"grace": NUMBERS, "days": NUMBERS},
    "/keys/officer/revoke": {"reason": TEXTS, "confirm": TEXTS},
    "INCIDENT": {
        "action": ["", "x", "comment", "assign"], "text": ["", LONG], "assignee": ["", LONG, "x"],
    },
    "REQUEST": {"reason": ["", LONG, "\u0301"]},
}  # fmt: skip


@pytest.fixture
def office(engine: Engine, serve: Serve) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    """An officer's browser, and where the forms of an incident and of a request are."""
    admin = make_key(engine, "officer", Role.ADMIN)
    trainer = make_key(engine, "trainer", Role.TRAINER)
    with serve() as address, signed_in(address, admin) as browser:
        with httpx.Client(base_url=address, headers=bearer(admin), timeout=60) as api:
            setup(api, dataset_given={"budget": BUDGET})
            items = {"mechanism": GAUSSIAN, "sampling": FULL, "steps": 10}
            envelope = {"epsilon": 1e3, "delta": 1e-5, "filter": "envelope", "envelope": [items]}
            fixed = BUDGET | {"filter": "gaussian_dp"}
            for name, budget in (("items", envelope), ("held", fixed)):
                made = api.post("/v1/datasets", json=dataset(name, budget=budget))
                assert made.status_code == 201, made.text
            assert api.post("/v1/runs", json=run("other", dataset="held")).is_success
            quiet = {"mechanism": {"kind": "gaussian", "noise_multiplier": 40.0}, "sampling": FULL}
            assert append(api, event(0, 2, **quiet), run="other").is_success
            assert append(api, event(0, 1, **quiet)).is_success
            assert append(api, event(1, 10**6), mode="charge").status_code == 409
            lease = {"name": "lease", "event": event(1, 1, **quiet), "ttl_seconds": 3600}
            assert api.post("/v1/runs/run/reservations", json=lease).is_success
            asked: Json = {"reason": "more", "budget": {"epsilon": 9.0, "delta": 1e-5}}
            own = bearer(trainer)
            wish = api.post("/v1/datasets/data/requests", json=asked, headers=own).json()
            incident = next(one for one in inbox(api) if one["kind"] == "refusal")
        places = {
            "INCIDENT": f"/incidents/{incident['id']}/notes",
            "REQUEST": f"/requests/{wish['id']}/reject",
        }
        yield browser, places


def typed(rng: random.Random, fields: dict[str, list[str]]) -> dict[str, str]:
    return {name: rng.choice(texts) for name, texts in fields.items()}


@pytest.mark.parametrize("form", FIELDS)
def test_no_form_tells_a_place_in_a_message(
    office: tuple[httpx.Client, dict[str, str]], form: str
) -> None:
    browser, places = office
    path, rng, csrf = places.get(form, form), random.Random(form), csrf_of(browser)
    told: set[str] = set()
    for _ in range(40):
        given = typed(rng, FIELDS[form])
        answer = browser.post(path, data=given | {"csrf": csrf, "revision": "1"})
        assert answer.status_code in (200, 303, 403, 404, 409, 412, 422), (given, answer.text)
        found = {unescape(re.sub(r"<[^>]+>", "", one)) for one in ALERT.findall(answer.text)}
        leaks = {one for one in found if LEAK.search(one)}
        assert not leaks, (given, leaks)
        # A form that is refused is shown again, not a page of errors.
        if answer.status_code == 422:
            assert found, given
            assert "/problems/invalid-request" not in answer.text, given
        told |= found
    assert told


@pytest.mark.parametrize("name", ["data", "items", "held"])
def test_a_limit_out_of_range_is_told_at_its_field_with_the_range(
    office: tuple[httpx.Client, dict[str, str]], name: str
) -> None:
    browser, _ = office
    given = {"epsilon": "0", "delta": "2", "reason": "", "csrf": csrf_of(browser), "revision": "0"}
    text = browser.post(f"/datasets/{name}/limit", data=given).text
    for field, message in (
        ("epsilon", "must lie between 1e-6 and 1e6"),
        ("delta", "must be more than 0 and less than 1"),
        ("reason", "must not be empty"),
    ):
        found = re.search(rf'id="limit-{field}-hint" role="alert">([^<]*)<', text)
        assert found, field
        assert unescape(found[1]) == message
    assert "The limit was not changed" in words(text)


def test_a_limit_below_what_an_envelope_costs_is_told_at_its_field(
    office: tuple[httpx.Client, dict[str, str]],
) -> None:
    browser, _ = office
    revision = re.search(r'name="revision" value="(\d+)"', browser.get("/datasets/items").text)
    assert revision
    given = {"epsilon": "0.01", "delta": "1e-5", "reason": "x", "csrf": csrf_of(browser)}
    answer = browser.post("/datasets/items/limit", data=given | {"revision": revision[1]})
    assert answer.status_code == 409
    found = re.search(r'id="limit-epsilon-hint" role="alert">([^<]*)<', answer.text)
    assert found
    assert "than what the items of the envelope cost together" in found[1]


@pytest.mark.parametrize(
    ("schema", "person"),
    [
        ("must lie in [1e-06, 1e+06]", "must lie between 1e-6 and 1e6"),
        ("must lie in (0, 1]", "must be more than 0 and at most 1"),
        ("must lie in [0, 12)", "must be at least 0 and less than 12"),
        ("must match [a-z0-9][a-z0-9._-]{0,62}", "must have small letters, digits, . _ and - "
         "alone, begin with a letter or a digit, and have at most 63 of them"),
        ("must be a number, such as 3 or 1e-5", "must be a number, such as 3 or 1e-5"),
    ],
)  # fmt: skip
def test_a_fault_is_said_as_a_person_says_it(schema: str, person: str) -> None:
    assert plain_words(schema) == person


def test_a_fault_stands_at_the_field_of_what_it_is_a_part_of() -> None:
    error = InvalidRequestError.of({
        "body.budget.filter": "one", "body.datasets[3]": "two", "body.other_thing": "three",
    })  # fmt: skip
    places = {"body.budget": "epsilon", "body.datasets": "names"}
    assert faults_by_field(error, places) == {
        "epsilon": "one", "names": "two", "form": "other thing: three",
    }  # fmt: skip
    assert fault_text(InvalidRequestError("body", "nothing would change")) == "nothing would change"
    assert faults_of(InvalidRequestError("body.budget", "is fixed")) == {"epsilon": "is fixed"}
