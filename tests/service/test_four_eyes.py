"""Four eyes: what lets more be spent waits for another person, and nothing else does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from pydantic import ValidationError
from sqlalchemy import Engine

from service.settings import Settings
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer
from tests.conftest import AS_ADMIN
from tests.service.office import (
    APPROVALS,
    MORE,
    Office,
    make_keys,
    require_whole,
    working,
)  # fmt: skip
from tests.service.samples import BUDGET, FULL, GAUSSIAN, Json, append, dataset, event, run
from tests.service.test_keys import Serve


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    return make_keys(engine)


@pytest.fixture
def office(serve: Serve, secrets: dict[str, str]) -> Iterator[Office]:
    """A service on which every admin may change everything alone."""
    with working(serve, secrets) as found:
        yield found


@pytest.fixture
def strict(serve: Serve, secrets: dict[str, str]) -> Iterator[Office]:
    """A service on which two persons agree to what lets more be spent."""
    with working(serve, secrets, approvals=APPROVALS) as found:
        yield found


# ---- four eyes


def test_a_higher_limit_waits_and_a_lower_one_does_not(strict: Office) -> None:
    strict.changes("ann", budget={"epsilon": 2.0, "delta": 1e-5}, status=200)
    asked = strict.changes("ann", budget=MORE, status=202)
    assert (asked["state"], asked["person"], asked["revision"]) == ("pending", "ann", 2)
    assert strict.limit() == 2.0
    strict.decides("ann-laptop", "approve", asked, status=409)
    strict.decides("bob", "approve", asked)
    assert strict.limit() == 5.0


def test_an_answer_that_waits_says_where(strict: Office) -> None:
    headers = {"if-match": '"1"'}
    body = {"reason": "x", "budget": MORE}
    answer = strict["ann"].patch("/v1/datasets/data", json=body, headers=headers)
    assert answer.headers["location"] == f"/v1/requests/{answer.json()['id']}"
    assert "etag" not in answer.headers
    stale = strict["ann"].patch("/v1/datasets/data", json=body, headers={"if-match": '"7"'})
    assert stale.status_code == 412
    assert strict["ann"].patch("/v1/datasets/data", json=body).status_code == 428


ENVELOPE: Final = {
    "epsilon": 3.0, "delta": 1e-5, "filter": "envelope",
    "envelope": [{"mechanism": GAUSSIAN, "sampling": FULL, "steps": 1}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"budget": {"epsilon": 3.0, "delta": 1e-4}}, "limit"),
        ({"budget": {"epsilon": 3.0, "delta": 1e-5, "orders": [3.0]}}, "limit"),
        ({"budget": ENVELOPE | {"epsilon": 8.0}}, "envelope"),
        ({"accept": ["published", "declared", "derived"]}, "limit"),
    ],
)
def test_whatever_lets_more_be_spent_waits(strict: Office, change: Json, kind: str) -> None:
    asked = strict.changes("ann", **change, status=202)
    assert asked["kind"] == kind
    assert strict["vic"].get("/v1/datasets/data").json()["revision"] == 1
    strict.decides("bob", "approve", asked)
    assert strict["vic"].get("/v1/datasets/data").json()["revision"] == 2


def test_a_freeze_is_made_at_once_and_its_end_waits(strict: Office) -> None:
    strict.changes("ann", frozen=True, status=200)
    asked = strict.changes("ann", frozen=False, status=202)
    assert strict["vic"].get("/v1/datasets/data").json()["frozen"]
    strict.decides("bob", "approve", asked)
    assert not strict["vic"].get("/v1/datasets/data").json()["frozen"]


LEASE: Final = {"name": "lease", "event": event(0, 5, sampling=FULL), "ttl_seconds": 600}


def reserve(office: Office, first_step: int = 0) -> None:
    mild = LEASE | {"event": event(first_step, 5)}
    assert office["dana"].post("/v1/runs/run/reservations", json=mild).status_code == 201


def test_a_freeze_with_a_void_freezes_at_once_and_voids_later(strict: Office) -> None:
    reserve(strict)
    asked = strict.changes("ann", frozen=True, void_reservations=True, status=202)
    found = strict["vic"].get("/v1/datasets/data").json()
    assert (found["frozen"], found["reserved"] > 0, asked["kind"]) == (True, True, "void")
    strict.decides("bob", "approve", asked)
    found = strict["vic"].get("/v1/datasets/data").json()
    assert (found["frozen"], found["reserved"]) == (True, 0)


def test_one_reservation_is_voided_by_two(strict: Office, engine: Engine) -> None:
    reserve(strict)
    path = "/v1/reservations/lease"
    answer = strict["ann"].post(f"{path}:void", json={"reason": "gone"})
    assert (answer.status_code, answer.json()["target"]) == (202, "lease")
    assert strict["vic"].get(path).json()["state"] == "pending"
    strict.decides("ann", "approve", answer.json(), status=409)
    strict.decides("bob", "approve", answer.json())
    assert strict["vic"].get(path).json()["state"] == "voided"
    again = strict["ann"].post(f"{path}:void", json={"reason": "gone"})
    assert again.status_code == 200  # it holds nothing any more
    assert append(strict["dana"], event(0, 2)).status_code == 201  # the writer has seen it
    require_whole(engine)


def correction(noise: float, **given: Any) -> Json:
    mechanism = GAUSSIAN | {"noise_multiplier": noise}
    return event(0, 5, mechanism=mechanism) | {"reason": "the log of the job"} | given


def test_a_correction_that_may_lower_epsilon_waits(strict: Office, engine: Engine) -> None:
    append(strict["dana"], event(0, 10))
    path = "/v1/runs/run/corrections"
    answer = strict["ann"].post(path, json=correction(4.0))
    assert (answer.status_code, answer.json()["kind"]) == (202, "correction")
    assert strict["vic"].get(path).json()["corrections"] == []
    strict.decides("ann-laptop", "approve", answer.json(), status=409)
    strict.decides("bob", "approve", answer.json())
    (found,) = strict["vic"].get(path).json()["corrections"]
    assert (found["corrected_by"], found["mechanism"]["noise_multiplier"]) == ("bob", 4.0)
    assert append(strict["dana"], event(10, 2)).status_code == 201  # the writer has seen it
    require_whole(engine)


@pytest.mark.parametrize(
    "sent",
    [
        correction(0.5),
        correction(1.1, sampling=FULL),
        correction(1.1, mechanism={"kind": "none"}),
    ],
)
def test_a_correction_that_only_raises_epsilon_is_made_at_once(strict: Office, sent: Json) -> None:
    append(strict["dana"], event(0, 10))
    answer = strict["ann"].post("/v1/runs/run/corrections", json=sent)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize(
    ("recorded", "sent"),
    [
        # The sampling is larger but the noise, too; and passes begin elsewhere.
        (event(0, 10), correction(1.2, sampling=FULL)),
        (
            event(0, 10, sampling={"kind": "balls_and_bins", "steps_per_pass": 10}),
            correction(1.1, sampling={"kind": "balls_and_bins", "steps_per_pass": 5}),
        ),
    ],
)
def test_a_correction_that_may_go_either_way_waits(
    strict: Office, recorded: Json, sent: Json
) -> None:
    append(strict["dana"], recorded)
    answer = strict["ann"].post("/v1/runs/run/corrections", json=sent)
    assert answer.status_code == 202, answer.text


def test_a_correction_that_moves_a_pass_waits_whatever_covers_it(
    strict: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    balls = {"kind": "balls_and_bins", "steps_per_pass": 10}
    append(strict["dana"], event(0, 10, sampling=balls))
    monkeypatch.setattr("service.ledger.change_requests.four_eyes.covers", lambda *_: True)
    path = "/v1/runs/run/corrections"
    same = strict["ann"].post(path, json=correction(1.0, sampling=balls))
    assert same.status_code == 201, same.text
    other = strict["ann"].post(path, json=correction(1.0, sampling=FULL, first_step=5))
    assert other.status_code == 202, other.text


def test_an_approved_correction_raises_the_alerts_of_the_settings(
    serve: Serve, secrets: dict[str, str]
) -> None:
    marks = tuple(mark / 1000 for mark in range(1, 1000, 7))
    with working(serve, secrets, approvals=APPROVALS, budget_thresholds=marks) as office:
        append(office["dana"], event(0, 10))
        before = told(office)
        sampling = {"kind": "poisson", "sampling_probability": 0.0099}
        sent = correction(0.8, sampling=sampling)  # which may go either way
        asked = office["ann"].post("/v1/runs/run/corrections", json=sent)
        assert asked.status_code == 202
        office.decides("bob", "approve", asked.json())
        passed = [one["detail"]["fraction"] for one in told(office)[len(before) :]]
        assert passed
        assert not {0.5, 0.8, 0.95} & set(passed)


def test_a_certificate_names_who_asked_for_a_change_and_who_approved_it(
    serve: Serve, secrets: dict[str, str], tmp_path: Path
) -> None:
    Signer.create(tmp_path / "signing_key")
    given = {"approvals": APPROVALS, "signing_key_file": tmp_path / "signing_key"}
    with working(serve, secrets, **given) as office:
        office["dana"].post("/v1/runs", json=run("other"))
        for name in ("run", "other"):
            append(office["dana"], event(0, 10), run=name)
        assert approved_in(office, "runs/run") == [None]  # as in a certificate from before
        reserve(office, first_step=10)
        void = office["ann"].post("/v1/reservations/lease:void", json={"reason": "gone"}).json()
        path = "/v1/runs/run/corrections"
        mended = office["ann"].post(path, json=correction(4.0)).json()
        first = correction(4.0, first_step=5)
        office.decides("bob", "reject", office["ann"].post(path, json=first).json())
        assert office["ann"].post(path, json=correction(0.5, first_step=5)).status_code == 201
        for asked in (mended, void):
            office.decides("bob", "approve", asked)
        names = {"requested_by": "ann", "approved_by": "bob"}
        void_of = {"kind": "void", "reservation": "lease", "reason": "gone"}
        correction_of = {"kind": "correction", "reservation": None, "reason": "the log of the job"}
        steps = {"branch": "main", "first_step": 0, "steps": 5}
        (found,) = approved_in(office, "runs/run")
        assert found is not None
        assert [one.pop("approved_at")[:2] for one in found] == ["20", "20"]
        assert found == [
            names | void_of | dict.fromkeys(steps),
            names | correction_of | steps,
        ]
        run_first, run_other = approved_in(office, "datasets/data")
        assert (len(run_first or []), run_other) == (2, None)
        page = office["vic"].get("/v1/runs/run/certificate?format=html").text
        assert "Approved changes" in page
        assert "<td>bob</td><td>ann</td>" in page


def approved_in(office: Office, path: str) -> list[list[Json] | None]:
    """Of each run in a certificate that verifies, what a second person approved."""
    answer = office["vic"].get(f"/v1/{path}/certificate")
    assert answer.status_code == 200, answer.text
    verify_bytes(answer.content)
    (home,) = answer.json()["certificate"]["facts"]["homes"]
    return [one.get("approved_changes") for one in home["runs"]]


def told(office: Office) -> list[Json]:
    """Every passed threshold of the dataset."""
    found = office["vic"].get("/v1/datasets/data/incidents").json()["incidents"]
    return [one for one in found if one["kind"] == "threshold"]


def test_without_the_setting_one_admin_is_enough(office: Office) -> None:
    office.changes("ann", budget=MORE, status=200)
    reserve(office)
    answer = office["ann"].post("/v1/reservations/lease:void", json={"reason": "gone"})
    assert answer.status_code == 200
    append(office["dana"], event(0, 10))
    assert office["ann"].post("/v1/runs/run/corrections", json=correction(4.0)).status_code == 201


def test_the_setting_names_what_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPLEDGER_APPROVALS", "limits, voids")
    assert Settings().approvals == ("limits", "voids")
    monkeypatch.setenv("DPLEDGER_APPROVALS", "")
    assert Settings().approvals == ()
    monkeypatch.setenv("DPLEDGER_APPROVALS", "limits,keys")
    with pytest.raises(ValidationError, match="approvals"):
        Settings()


def test_the_start_token_changes_nothing_that_needs_two(serve: Serve) -> None:
    with (
        serve(approvals=("limits",)) as address,
        httpx.Client(base_url=address, headers=AS_ADMIN) as api,
    ):
        api.post("/v1/datasets", json=dataset(budget=BUDGET))
        body = {"reason": "x", "budget": MORE}
        answer = api.patch("/v1/datasets/data", json=body, headers={"if-match": '"1"'})
        assert (answer.status_code, answer.json()["type"]) == (409, "/problems/another-person")
        body = {"reason": "x", "budget": {"epsilon": 1.0, "delta": 1e-5}}
        answer = api.patch("/v1/datasets/data", json=body, headers={"if-match": '"1"'})
        assert answer.status_code == 200
