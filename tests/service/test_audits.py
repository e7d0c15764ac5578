"""Audits over HTTP: registered, ended once, compared with the certificate, and kept."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import snapshot
from service.storage.tables import findings
from service.transparency.audit_answers import stated_audits
from service.transparency.verification.ledger import verify
from tests.service.samples import AUDIT, BALLS, BUDGET, FULL, Json, append, event, setup
from tests.service.test_hidden_runs import SMALL, hiding, planned

URL = "/v1/runs/run/audits"


def registered(api: httpx.Client, **given: Any) -> Json:
    answer = api.post(URL, json=AUDIT | given)
    assert answer.status_code == 201, answer.text
    body: Json = answer.json()
    return body


def ended(api: httpx.Client, number: int, correct: int) -> Json:
    answer = api.post(f"{URL}/{number}:result", json={"correct": correct})
    assert answer.status_code == 201, answer.text
    body: Json = answer.json()
    return body


def alarms(api: httpx.Client) -> list[Json]:
    body: list[Json] = api.get("/v1/datasets/data/incidents").json()["incidents"]
    return [one for one in body if one["kind"] == "audit_contradicts"]


@pytest.fixture
def trained(api: httpx.Client) -> Json:
    """A run of a small epsilon: .2 or so."""
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100)).raise_for_status()
    found: Json = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).json()
    return found


def test_a_first_audit_says_what_its_counts_say(api: httpx.Client, trained: Json) -> None:
    plan = registered(api)
    assert (plan["number"], plan["state"], plan["correct"]) == (1, "registered", None)
    assert plan["level"] == pytest.approx(0.05 * 6 / 3.141592653589793**2, rel=1e-12)
    assert plan["epsilon_at_least"] is plan["sharper"] is plan["compared"] is None
    found = ended(api, 1, 51)
    assert (found["state"], found["epsilon_at_least"]) == ("ended", 0)
    assert found["compared"] == {
        "reason": None, "epsilon": trained["epsilon"], "delta": 1e-5,
        "sequence": trained["sequence"], "p_value": found["compared"]["p_value"],
        "contradicts": False,
    }  # fmt: skip
    assert found["compared"]["p_value"] > 0.4
    assert alarms(api) == []
    assert api.get(f"{URL}/1").json() == found
    assert api.get(URL).json() == {"audits": [found]}


def test_counts_that_an_epsilon_does_not_allow_raise_an_incident(
    api: httpx.Client, engine: Engine, trained: Json
) -> None:
    registered(api)
    found = ended(api, 1, 95)
    # At level .0304: the values of level .05 are in tests/accounting/test_one_run_audit.py.
    assert trained["epsilon"] < 2 < found["epsilon_at_least"] < found["sharper"]["epsilon_at_least"]
    assert found["compared"]["contradicts"] is True
    assert found["compared"]["p_value"] < 1e-3
    (told,) = alarms(api)
    assert told["run"] == "run"
    assert told["detail"]["audit"] == 1
    assert told["detail"]["epsilon"] == trained["epsilon"]
    assert told["detail"]["epsilon_at_least"] == found["sharper"]["epsilon_at_least"]
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.broken == []
    assert report.checked["incidents"] == 1


def test_an_audit_that_was_not_registered_alarms_nobody(api: httpx.Client, trained: Json) -> None:
    found = registered(api, correct=100, delta=0.0)
    assert (found["state"], found["correct"]) == ("estimate", 100)
    assert found["epsilon_at_least"] == pytest.approx(3.492965, abs=1e-6)
    assert found["compared"]["contradicts"] is False
    assert "not registered" in found["compared"]["reason"]
    assert alarms(api) == []


def test_later_audits_have_smaller_levels_and_one_significance(
    api: httpx.Client, trained: Json
) -> None:
    levels = [registered(api)["level"] for _ in range(3)]
    assert levels[1] == pytest.approx(levels[0] / 4, rel=1e-12)
    assert levels[2] == pytest.approx(levels[0] / 9, rel=1e-12)
    answer = api.post(URL, json=AUDIT | {"significance": 0.1})
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert answer.json()["errors"] == [
        {"location": "body.significance", "message": "must be 0.05, as of the run's first audit"}
    ]
    assert len(api.get(URL).json()["audits"]) == 3


def test_a_request_that_is_sent_again_counts_once(
    api: httpx.Client, engine: Engine, trained: Json
) -> None:
    first = registered(api, name="nightly")
    again = api.post(URL, json=AUDIT | {"name": "nightly"})
    assert (again.status_code, again.json()) == (200, first)
    other = api.post(URL, json=AUDIT | {"name": "nightly", "guesses": 99})
    assert other.status_code == 409
    found = ended(api, 1, 60)
    again = api.post(f"{URL}/1:result", json={"correct": 60})
    assert (again.status_code, again.json()) == (200, found)
    assert api.post(f"{URL}/1:result", json={"correct": 61}).status_code == 409
    with snapshot(engine) as connection:
        assert len(connection.execute(select(findings.c.id)).all()) == 2


@pytest.mark.parametrize(
    ("relation", "out", "sampling", "reason"),
    [
        ("add_or_remove_one", "absent", FULL, None),
        ("add_or_remove_one", "absent", BALLS, None),
        ("add_or_remove_one", "null", BALLS, "only these samplings"),
        ("add_or_remove_one", "replaced", BALLS, None),
        ("add_or_remove_one", "absent", {"kind": "fixed_size", "batch_size": 600}, "only these"),
        ("replace_special", "null", {"kind": "fixed_size", "batch_size": 600}, None),
        ("replace_special", "absent", FULL, "null record"),
        ("replace_one", "replaced", {"kind": "fixed_size", "batch_size": 600}, None),
        ("replace_one", "null", FULL, "another record"),
    ],
)
def test_a_claim_is_compared_where_it_is_about_the_coin_of_a_canary(
    api: httpx.Client, relation: str, out: str, sampling: Json, reason: str | None
) -> None:
    setup(api, dataset_given={"neighboring_relation": relation})
    quiet = {"kind": "gaussian", "noise_multiplier": 20.0}
    append(api, event(0, 100, mechanism=quiet, sampling=sampling)).raise_for_status()
    registered(api, out=out)
    found = ended(api, 1, 100)
    if reason is None:
        assert found["compared"]["reason"] is None
        assert found["compared"]["contradicts"] is True
    else:
        assert reason in found["compared"]["reason"]
        assert found["compared"]["epsilon"] is None
    assert len(alarms(api)) == (reason is None)
    assert found["epsilon_at_least"] > 2


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"canary_unit": "person"}, "one record"),
        ({"delta": 0.0}, "delta 0"),
    ],
)
def test_other_units_and_delta_zero_are_not_compared(
    api: httpx.Client, trained: Json, given: Json, reason: str
) -> None:
    registered(api, **given)
    assert reason in ended(api, 1, 100)["compared"]["reason"]
    assert alarms(api) == []


def test_a_replaced_canary_is_removed_and_added(api: httpx.Client, trained: Json) -> None:
    registered(api, name="absent")
    registered(api, name="replaced", out="replaced")
    absent, replaced = (ended(api, number, 70)["compared"] for number in (1, 2))
    assert replaced["p_value"] > absent["p_value"]
    assert replaced["epsilon"] == absent["epsilon"]


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"canaries": 0}, "body.canaries"),
        ({"canaries": 10**6 + 1}, "body.canaries"),
        ({"guesses": 1001}, "body.guesses"),
        ({"correct": 101}, "body.correct"),
        ({"delta": 1.0}, "body.delta"),
        ({"significance": 0.0}, "body.significance"),
        ({"out": "gone"}, "body.out"),
        ({"method": "two_runs"}, "body.method"),
        ({"epsilon": 3.5}, "body.epsilon"),
        ({"synthetic": 1}, "body.synthetic"),
    ],
)
def test_what_is_out_of_range_is_named(
    api: httpx.Client, engine: Engine, trained: Json, given: Json, location: str
) -> None:
    answer = api.post(URL, json=AUDIT | given)
    assert answer.status_code == 422
    assert [one["location"] for one in answer.json()["errors"]] == [location]
    with snapshot(engine) as connection:
        assert connection.execute(select(findings.c.id)).all() == []


def test_more_right_guesses_than_guesses_are_refused(api: httpx.Client, trained: Json) -> None:
    registered(api)
    answer = api.post(f"{URL}/1:result", json={"correct": 101})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"location": "body.correct", "message": "must lie in [0, 100]"}
    ]
    assert api.post(f"{URL}/2:result", json={"correct": 1}).status_code == 404
    assert api.get(f"{URL}/2").status_code == 404
    assert api.get("/v1/runs/other/audits").status_code == 404


def test_an_audit_with_real_records_is_outside_the_guarantee(
    api: httpx.Client, trained: Json
) -> None:
    registered(api, synthetic=False)
    registered(api)
    ended(api, 1, 60)
    ended(api, 2, 60)
    wanted = [{"kind": "audit", "branch": "main", "verdict": "published"}]
    assert api.get("/v1/runs/run").json()["outside_guarantee"] == wanted
    guarantee = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).json()
    assert guarantee["outside_guarantee"] == wanted
    assert guarantee["epsilon"] == trained["epsilon"]


def test_the_ledger_document_holds_audits_and_a_result_must_fit_one(
    api: httpx.Client, trained: Json
) -> None:
    registered(api)
    found = ended(api, 1, 95)
    document: Json = api.get("/v1/runs/run/ledger").json()
    (stated,) = stated_audits(LedgerDocument.model_validate(document))
    assert stated["epsilon_at_least"] == found["epsilon_at_least"]
    assert stated["sharper_epsilon_at_least"] == found["sharper"]["epsilon_at_least"]
    assert (stated["correct"], stated["contradicts"]) == (95, True)
    document["findings"][1]["number"] = 2
    with pytest.raises(Exception, match="fits no audit"):
        stated_audits(LedgerDocument.model_validate(document))
    assert api.get("/v1/runs/run/findings").json()["findings"] == []
    taken = api.post("/v1/runs/run/findings", json=document["findings"][0])
    assert taken.status_code == 422  # audits come in by their own requests


def test_the_run_page_shows_what_audits_found(api: httpx.Client, trained: Json) -> None:
    assert "Audits" not in api.get("/runs/run").text
    registered(api, name="nightly")
    registered(api)
    ended(api, 1, 95)
    page = api.get("/runs/run").text
    assert "95 of 100" in page
    assert "contradicts" in page
    assert "nightly" in page


def test_a_run_that_hides_iterates_is_compared_by_its_last_one(api: httpx.Client) -> None:
    setup(api, dataset_given=SMALL, **hiding())
    append(api, planned()).raise_for_status()
    for number, (view, compared) in enumerate((("every_step", False), ("last_iterate", True)), 1):
        registered(api, out="replaced", view=view)
        assert (ended(api, number, 50)["compared"]["reason"] is None) == compared
