"""Change requests: asked for by one person, decided by another, and applied once."""

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, text

from service import clock
from service.identity.authentication import KEY_REFRESH_SECONDS
from service.identity.keys import Role, Terms, create_key, rotate_key
from service.ledger.change_requests import records
from service.ledger.change_requests.messages import EXPIRY_DAYS
from service.storage.engine import snapshot, transaction
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from tests.conftest import AS_ADMIN, without_triggers
from tests.service.office import (
    APPROVALS,
    MORE,
    WHY,
    Office,
    acts,
    make_keys,
    opened,
    require_whole,
    working,
)  # fmt: skip
from tests.service.receiver import receiving, sending
from tests.service.samples import BUDGET, append, dataset, event
from tests.service.sse import until
from tests.service.test_keys import Serve


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    return make_keys(engine)


@pytest.fixture
def office(serve: Serve, secrets: dict[str, str]) -> Iterator[Office]:
    """A service on which every admin may change everything alone."""
    with working(serve, secrets) as found:
        yield found


def test_a_researcher_asks_and_an_officer_approves(office: Office, engine: Engine) -> None:
    asked = office.asks("dana")
    assert (asked["state"], asked["kind"], asked["by"], asked["person"]) == (
        "pending", "limit", "dana", "dana",
    )  # fmt: skip
    assert (asked["dataset"], asked["revision"], asked["decision"]) == ("data", 1, None)
    assert asked["change"]["budget"] == MORE
    assert office.limit() == 3.0
    done = office.decides("ann", "approve", asked)
    assert done["state"] == "approved"
    assert done["decision"] | {"decided_at": ""} == {
        "decision": "approved", "by": "ann", "person": "ann", "reason": WHY["reason"],
        "decided_at": "",
    }  # fmt: skip
    assert office.limit() == 5.0
    latest = office["vic"].get("/v1/datasets/data/settings").json()["settings"][-1]
    assert (latest["changed_by"], latest["requested_by"]) == ("ann", "dana")
    assert latest["reason"] == "a larger model"
    first, second = acts(engine, "change_request", "change_decision")
    assert (first.by, second.by, second.content["requested_by_person"]) == ("dana", "ann", "dana")
    assert acts(engine, "settings")[-1].content["requested_by"] == "dana"
    require_whole(engine)


@pytest.mark.parametrize(
    ("who", "verb", "done"),
    [("ann", "approve", "Approved"), ("ann", "reject", "Rejected"), ("dana", "withdraw", "With")],
)
def test_a_decision_handles_the_incident_of_its_request_and_of_no_other(
    office: Office, engine: Engine, who: str, verb: str, done: str
) -> None:
    asked, other = office.asks("dana"), office.asks("dana", reason="the same again")
    found = office["ann"].get("/v1/incidents?kind=change_request&state=open").json()["incidents"]
    assert {one["detail"]["request"] for one in found} == {asked["id"], other["id"]}
    office.decides(who, verb, asked)
    found = office["ann"].get("/v1/incidents?kind=change_request&state=open").json()["incidents"]
    assert [one["detail"]["request"] for one in found] == [other["id"]]
    found = office["ann"].get("/v1/incidents?state=acknowledged").json()["incidents"]
    [note] = found[0]["notes"]
    assert found[0]["detail"]["request"] == asked["id"]
    assert (note["action"], note["by"]) == ("acknowledge", who)
    assert note["text"].startswith(done)
    assert note["text"].endswith(f": {WHY['reason']}")
    require_whole(engine)


def test_a_new_request_is_told_to_webhooks_once(
    office: Office, engine: Engine, tmp_path: Path
) -> None:
    given = {"webhook_kinds": ("change_request",)}
    with receiving() as receiver, sending(engine, tmp_path, receiver.url, **given) as dispatcher:
        asked = office.asks("dana")
        assert office.asks("dana", status=200) == asked  # sent again
        assert office.asks("dana", BUDGET, status=422)  # is none
        until(lambda: dispatcher.delivered == 1)
        office.decides("ann", "approve", asked)  # settings_changed is not of that kind
        time.sleep(0.2)
    ((_, body),) = receiver.sent
    (listed, later) = office["vic"].get("/v1/datasets/data/incidents").json()["incidents"]
    assert json.loads(body) == listed
    assert later["kind"] == "settings_changed"
    assert (listed["kind"], listed["run"]) == ("change_request", None)
    assert listed["detail"] == {
        "dataset": "data", "request": asked["id"], "change": "limit", "target": None,
        "reason": "a larger model",
    }  # fmt: skip


def test_a_request_is_made_once_and_decided_once(office: Office) -> None:
    asked = office.asks("dana")
    assert office.asks("dana", status=200)["id"] == asked["id"]
    assert office.asks("eve")["id"] != asked["id"]
    office.decides("ann", "approve", asked)
    assert office.decides("ann", "approve", asked)["state"] == "approved"  # sent again
    assert "approved by ann" in office.decides("bob", "approve", asked, status=409)["detail"]
    assert "approved by ann" in office.decides("dana", "withdraw", asked, status=409)["detail"]
    settings = office["vic"].get("/v1/datasets/data/settings").json()["settings"]
    assert [one["epsilon"] for one in settings] == [3.0, 5.0]


@pytest.mark.parametrize("verb", ["approve", "reject"])
def test_the_same_person_decides_nothing_with_whatever_key(office: Office, verb: str) -> None:
    asked = office.asks("ann")
    for key in ("ann", "ann-laptop"):
        answer = office.decides(key, verb, asked, status=409)
        assert "another person must decide" in answer["detail"]
    assert office.state(asked) == "pending"
    assert office.limit() == 3.0
    assert office.decides("ann-laptop", "withdraw", asked)["state"] == "withdrawn"


def test_a_new_secret_keeps_the_person(office: Office, engine: Engine) -> None:
    asked = office.asks("ann")
    with transaction(engine) as connection:
        secret = rotate_key(connection, "ann-laptop")
    time.sleep(KEY_REFRESH_SECONDS + 0.1)
    office["ann-laptop"].headers["authorization"] = f"Bearer {secret}"
    office.decides("ann-laptop", "approve", asked, status=409)


def test_a_person_has_few_requests_that_wait(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.ledger.change_requests.records.OPEN_REQUESTS_MAX", 2)
    first = office.asks("dana", {"epsilon": 4.0, "delta": 1e-5})
    office.asks("dana", {"epsilon": 5.0, "delta": 1e-5})
    refused = office.asks("dana", {"epsilon": 6.0, "delta": 1e-5}, status=409)
    assert "2 requests that wait" in refused["detail"]
    office.asks("dana", {"epsilon": 5.0, "delta": 1e-5}, status=200)  # the same again
    office.asks("eve", {"epsilon": 6.0, "delta": 1e-5})  # another person
    office.decides("dana", "withdraw", first)
    office.asks("dana", {"epsilon": 6.0, "delta": 1e-5})


def test_only_who_asked_withdraws(office: Office) -> None:
    asked = office.asks("dana")
    office.decides("eve", "withdraw", asked, status=409)
    office.decides("ann", "withdraw", asked, status=409)
    assert office.decides("dana", "withdraw", asked)["decision"]["person"] == "dana"
    office.decides("ann", "approve", asked, status=409)
    assert office.limit() == 3.0


def test_a_rejected_request_changes_nothing(office: Office, engine: Engine) -> None:
    asked = office.asks("dana")
    assert office.decides("bob", "reject", asked)["state"] == "rejected"
    office.decides("ann", "approve", asked, status=409)
    assert office.limit() == 3.0
    require_whole(engine)


def test_a_request_on_a_revision_that_moved_is_not_applied(office: Office) -> None:
    asked, other = office.asks("dana"), office.asks("eve", {"epsilon": 4.0, "delta": 1e-5})
    office.decides("ann", "approve", other)
    assert office.state(asked) == "stale"
    answer = office.decides("ann", "approve", asked, status=412)
    assert "at revision 1 when this was asked for" in answer["detail"]
    assert office.limit() == 4.0
    assert office.decides("ann", "reject", asked)["state"] == "rejected"


def approved(office: Office, path: str, key: str) -> httpx.Response:
    return office[key].post(path, json=WHY)


def test_two_who_approve_at_once_apply_one_change(office: Office, engine: Engine) -> None:
    for turn in range(6):
        budget = {"epsilon": 4.0 + turn, "delta": 1e-5}
        asked = office.asks("dana", budget)
        approve = partial(approved, office, f"/v1/requests/{asked['id']}:approve")
        with ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(approve, ("ann", "bob", "cleo")))
        assert sorted(one.status_code for one in answers) == [200, 409, 409]
        assert office.limit() == budget["epsilon"]
    assert len(acts(engine, "change_decision")) == 6
    assert len(acts(engine, "settings")) == 7
    require_whole(engine)


def test_two_requests_approved_at_once_do_not_both_apply(office: Office, engine: Engine) -> None:
    asked = [office.asks(key, {"epsilon": e, "delta": 1e-5}) for key, e in
             (("dana", 4.0), ("eve", 6.0))]  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda one: office[one[0]].post(f"/v1/requests/{one[1]['id']}:approve", json=WHY),
                zip(("ann", "bob"), asked, strict=True),
            )
        )
    assert sorted(one.status_code for one in answers) == [200, 412]
    assert len(acts(engine, "settings")) == 2
    require_whole(engine)


def later(monkeypatch: pytest.MonkeyPatch, **how_much: float) -> None:
    """Every module's clock goes on."""
    present = clock.now
    moment = present() + timedelta(**how_much)
    for name, module in list(sys.modules.items()):
        if name.startswith("service.") and getattr(module, "now", None) is present:
            monkeypatch.setattr(module, "now", lambda: moment)


def test_an_expired_request_is_not_approved(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, kept = office.asks("dana"), office.asks("eve")
    with monkeypatch.context() as patch:
        later(patch, days=EXPIRY_DAYS - 0.01)
        assert office.state(asked) == "pending"
    with monkeypatch.context() as patch:
        later(patch, days=EXPIRY_DAYS + 0.01)
        assert office.state(asked) == "expired"
        assert "expired at" in office.decides("ann", "approve", asked, status=409)["detail"]
        assert office.asks("dana")["id"] != asked["id"]
    assert office.limit() == 3.0
    assert office.decides("ann", "approve", kept)["state"] == "approved"


def test_a_request_outlives_a_restart(serve: Serve, secrets: dict[str, str]) -> None:
    with serve(approvals=APPROVALS) as address:
        office = opened(address, secrets)
        asked = office.changes("ann", budget=MORE, status=202)
        office.close()
    with serve(approvals=APPROVALS) as address:
        office = Office(address, secrets)
        office.decides("ann", "approve", asked, status=409)
        office.decides("bob", "approve", asked)
        assert office.limit() == 5.0
        office.close()


def test_what_cannot_be_applied_is_refused_when_it_is_asked_for(office: Office) -> None:
    append(office["dana"], event(0, 10))
    found = office.asks("dana", {"epsilon": 5.0, "delta": 1e-4}, status=422)
    assert "cannot change once answers were seen" in found["detail"]
    found = office.asks("dana", BUDGET, status=422)
    assert "the settings of data are already so: nothing would change" in found["detail"]
    assert office["vic"].get("/v1/requests").json()["requests"] == []


def test_what_cannot_be_applied_any_more_is_not_decided(office: Office) -> None:
    asked = office.asks("dana", {"epsilon": 5.0, "delta": 1e-4})
    append(office["dana"], event(0, 10))
    found = office.decides("ann", "approve", asked, status=422)
    assert "cannot change once answers were seen" in found["detail"]
    assert office.state(asked) == "pending"


def test_requests_are_listed_by_dataset_state_and_person(office: Office, engine: Engine) -> None:
    office["ann"].post("/v1/datasets", json=dataset("other", budget=BUDGET))
    first, second = office.asks("dana"), office.asks("eve")
    body = {"reason": "x", "budget": MORE}
    third = office["dana"].post("/v1/datasets/other/requests", json=body).json()
    office.decides("ann", "reject", first)

    def listed(key: str = "vic", **query: str) -> list[str]:
        answer = office[key].get("/v1/requests", params=query)
        return [one["id"] for one in answer.json()["requests"]]

    ids = [one["id"] for one in (first, second, third)]
    assert listed() == ids
    assert listed(state="pending") == ids[1:]
    assert listed(state="rejected", dataset="data") == ids[:1]
    assert listed(by="dana") == [ids[0], ids[2]]
    page = office["vic"].get("/v1/requests", params={"page_size": 2}).json()
    assert listed(page_token=page["next_page_token"]) == ids[2:]
    with transaction(engine) as connection:
        terms = Terms(datasets=frozenset({"other"}))
        secret = create_key(connection, name="one", scope=Role.TRAINER, terms=terms)
    limited = Office(office.address, {"one": secret})
    time.sleep(KEY_REFRESH_SECONDS + 0.1)
    assert [one["id"] for one in limited["one"].get("/v1/requests").json()["requests"]] == ids[2:]
    assert limited["one"].get(f"/v1/requests/{ids[0]}").status_code == 404
    assert limited["one"].get(f"/v1/requests/{ids[2]}").status_code == 200
    limited.close()


def test_the_start_token_approves_nothing(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset(budget=BUDGET))
    body = {"reason": "x", "budget": MORE}
    asked = api.post("/v1/datasets/data/requests", json=body).json()
    answer = api.post(f"/v1/requests/{asked['id']}:approve", json=WHY)
    assert (answer.status_code, "belongs to no person" in answer.text) == (409, True)


def test_what_the_start_token_asked_for_is_approved_by_no_person(
    serve: Serve, engine: Engine
) -> None:
    with serve() as address:
        with httpx.Client(base_url=address, headers=AS_ADMIN) as api:
            api.post("/v1/datasets", json=dataset(budget=BUDGET))
            body = {"reason": "x", "budget": MORE}
            asked = api.post("/v1/datasets/data/requests", json=body).json()
        office = Office(address, make_keys(engine))
        time.sleep(KEY_REFRESH_SECONDS + 0.1)
        answer = office.decides("ann", "approve", asked, status=409)
        assert "any person may have used it" in answer["detail"]
        assert office.decides("ann", "reject", asked)["state"] == "rejected"
        office.close()


def test_a_certificate_names_who_set_a_limit_and_who_asked_for_it(
    serve: Serve, secrets: dict[str, str], tmp_path: Path
) -> None:
    Signer.create(tmp_path / "signing_key")
    with working(serve, secrets, signing_key_file=tmp_path / "signing_key") as office:
        office.decides("ann", "approve", office.asks("dana"))
        answer = office["vic"].get("/v1/datasets/data/certificate")
        assert answer.status_code == 200, answer.text
        limits = answer.json()["certificate"]["facts"]["dataset"]["limits"]
        named = [(one["epsilon"], one["changed_by"], one["requested_by"]) for one in limits]
        assert named == [(3.0, "ann", None), (5.0, "ann", "dana")]


def test_a_row_that_the_log_does_not_tell_is_found_out(office: Office, engine: Engine) -> None:
    asked = office.asks("dana")
    office.decides("ann", "approve", asked)
    require_whole(engine)
    for statement in (
        "UPDATE change_requests SET person = 'zoe'",
        "UPDATE change_decisions SET person = 'zoe'",
        "UPDATE settings_changes SET requested_by = 'zoe' WHERE revision = 2",
        "UPDATE api_keys SET person = 'zoe' WHERE name = 'ann'",
    ):
        with engine.connect() as connection, connection.begin() as begun:
            with without_triggers(connection):
                connection.execute(text(statement))
            assert verify(connection).broken, statement
            begun.rollback()


def test_every_state_is_counted(office: Office, engine: Engine) -> None:
    office.asks("dana")
    with snapshot(engine) as connection:
        assert records.count_requests(connection, records.in_state("pending")) == 1
        assert records.count_requests(connection, records.in_state("stale")) == 0
