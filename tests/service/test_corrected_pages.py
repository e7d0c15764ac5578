"""What pages say of a contradicted run, of corrections, and of what can be changed no more."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Engine

from tests.service.samples import GAUSSIAN, Json, append, dataset, event, run
from tests.service.test_listing import words
from tests.service.test_officer_pages import POISSON, Desk, at_desk

Serve = Callable[..., AbstractContextManager[str]]
SHUFFLE = {"kind": "shuffle", "batch_size": 250, "steps_per_pass": 240, "reshuffle": "each_pass"}
CONTRADICTED: Json = {
    "kind": "sampling", "from_step": 0, "status": "contradicted", "declared": POISSON,
    "recorded": SHUFFLE, "seen": {"batch_size": 250}, "reason": "The loader shuffles.",
}  # fmt: skip


@pytest.fixture
def desk(engine: Engine, serve: Serve) -> Iterator[Desk]:
    with at_desk(engine, serve) as found:
        yield found


def read(desk: Desk, path: str) -> str:
    answer = desk.browser.get(path)
    assert answer.status_code == 200, answer.text
    return words(answer.text)


def test_a_contradicted_run_says_what_its_steps_were_recorded_as(desk: Desk) -> None:
    assert desk.api.post("/v1/runs/run/findings", json=CONTRADICTED).is_success
    said = read(desk, "/runs/run")
    assert "The last steps were recorded as: Gaussian, noise multiplier 1.1" in said
    assert "Poisson, sampling probability 0.004" in said
    assert "may count too little until they are corrected" in said
    assert "whatever the next run does" in said
    drawn = "Shuffled anew each pass, batches of 250 records, 240 steps a pass"
    assert "declared as Poisson, sampling probability 0.004 , but in the code it is" in said
    assert f"it is {drawn} . The loader shuffles." in said
    assert f"Poisson, sampling probability 0.004 {drawn} The loader shuffles." in said  # the table
    assert "reshuffle" not in said
    assert "declared: Poisson · in the code: Shuffled" in read(desk, "/incidents")
    assert desk.correct("record", first="0", steps="499").status_code == 303
    assert "may count too little until they are corrected" in read(desk, "/runs/run")
    assert desk.correct("record", first="499", steps="1").status_code == 303
    said = read(desk, "/runs/run")
    assert "as 2 corrections of this run say, the larger of the two" in said
    assert "Every recorded step is corrected. What to do:" in said
    assert "opens the form" not in said


def test_a_recorded_correction_is_shown_with_all_its_numbers(desk: Desk) -> None:
    assert "Corrected steps count" not in read(desk, "/runs/run")
    answer = desk.correct("record")
    assert answer.headers["location"] == "/runs/run/correct#corrections"
    said = read(desk, "/runs/run/correct")
    assert "Really: Gaussian, noise multiplier 0.8 · Poisson, sampling probability 0.01." in said
    said = read(desk, "/runs/run")
    assert "Corrected steps count as the larger of both accounts." in said
    assert "As recorded: what corrections said is not drawn here." in said


@pytest.mark.parametrize("bounded", [True, False])
def test_who_spent_what_says_if_corrections_have_no_bound(desk: Desk, bounded: bool) -> None:
    really = {} if bounded else {"sampling": "shuffle", "batch": "250", "pass": "240"}
    assert desk.correct("record", **really).status_code == 303
    said = read(desk, "/datasets/data")
    assert ("what corrections added 300 no finite bound" in said) is not bounded
    assert ("so all rows with a finite share together" in said) is not bounded
    assert "they hold for the recorded and for the corrected steps" in said
    (told,) = desk.api.get("/v1/datasets/data/explain").json()["runs"]
    assert (told["epsilon"] is None) is not bounded


def test_an_overdraft_that_became_infinite_is_told_as_one(desk: Desk) -> None:
    assert append(desk.api, event(500, 900_000, sampling=POISSON)).is_success
    pages = ("/incidents?kind=overdraft", "/datasets/data")
    stop = "a higher limit does not change that, nor does another correction"
    assert not any(stop in read(desk, path) for path in pages)
    shuffled = {"sampling": "shuffle", "batch": "250", "pass": "240"}
    assert desk.correct("record", **shuffled).status_code == 303
    found = desk.api.get("/v1/incidents", params={"kind": "overdraft"}).json()["incidents"]
    assert [one["detail"]["spent"] is None for one in found] == [False]  # it is the one of before
    assert all(stop in read(desk, path) for path in pages)
    assert stop in desk.browser.get("/incidents.csv").text
    # Theorems of another status may bound the steps: then it is as finite as it was.
    assert "If another status of theorems bounds those steps, accept it there." in read(
        desk, pages[0]
    )


def test_runs_are_compared_as_they_were_corrected(desk: Desk) -> None:
    assert desk.api.post("/v1/runs", json=run("other")).status_code == 201
    assert append(desk.api, event(0, 500, sampling=POISSON), run="other").is_success
    said = read(desk, "/compare?runs=run,other")
    assert "as corrected" not in said
    assert "Holds for steps fixed in advance" in said
    assert desk.correct("record").status_code == 303
    said = read(desk, "/compare?runs=run,other")
    assert "0.8, 0.01 · 300 steps 1.1, 0.004 · 200 steps as corrected 1.1, 0.004" in said
    assert said.count("as corrected") == 1


def test_nothing_is_said_of_no_iterates_that_were_shown(desk: Desk) -> None:
    said = read(desk, "/runs/run")
    assert "Every iterate, the model after each step, counts as shown." in said
    assert "marked as shown" not in said
    assert desk.api.post("/v1/runs/run/releases", json={"step": 7}).is_success
    assert "counts as shown; 1 iterate is marked as shown." in read(desk, "/runs/run")


def test_a_reservation_that_holds_nothing_has_no_form(desk: Desk) -> None:
    lease = {"name": "lease", "event": event(500, 100, sampling=POISSON), "ttl_seconds": 3600}
    assert desk.api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    assert append(desk.api, event(500, 20, sampling=POISSON), mode="charge").is_success
    path = "/reservations/lease/void"
    assert "Of its 100 steps on branch main, 80 are not recorded." in read(desk, path)
    assert desk.send(path, reason="Its machine is gone.").status_code == 303
    said = read(desk, path)
    assert "nothing to void: of its 100 steps on branch main, 20 were recorded" in said
    assert "and it was voided: Its machine is gone." in said
    assert "Void the reservation" not in said


def test_an_incident_of_changed_settings_says_the_charged_share(desk: Desk) -> None:
    send = {"epsilon": "4", "delta": "1e-5", "reason": "more", "revision": "1"}
    assert desk.send("/datasets/data/limit", **send).status_code == 303
    found = desk.api.get("/v1/incidents", params={"kind": "settings_changed"}).json()["incidents"]
    share = desk.api.get("/v1/datasets/data").json()["budget"]["share"]
    assert found[-1]["detail"]["share"] == share
    assert "of the capacity · as an ε: charged" in read(desk, "/incidents?kind=settings_changed")


def test_the_form_of_an_envelope_in_use_says_that_it_cannot_be_changed(desk: Desk) -> None:
    item = {"name": "all", "steps": 500, "mechanism": GAUSSIAN, "sampling": POISSON}
    limit = {"epsilon": 9.0, "delta": 1e-5, "filter": "envelope", "envelope": [item]}
    given = dataset("sealed", budget=limit)
    assert desk.api.post("/v1/datasets", json=given).status_code == 201
    hint = "An envelope cannot be changed once answers were seen."
    assert hint not in read(desk, "/datasets/sealed")
    assert desk.api.post("/v1/runs", json=run("within", dataset="sealed")).status_code == 201
    used = append(desk.api, event(0, 5, sampling=POISSON), run="within", mode="charge")
    assert used.is_success, used.text
    said = read(desk, "/datasets/sealed")
    assert hint in said
    assert "all Gaussian, noise multiplier 1.1 Poisson, sampling probability 0.004 500 5 0" in said


def test_what_has_no_bound_has_none_without_amplification_either(desk: Desk) -> None:
    number = re.compile(r"Without amplification \d")
    assert number.search(read(desk, "/runs/run/guarantee"))
    pair = "/compare?runs=run,run2"
    assert desk.api.post("/v1/runs", json=run("run2")).status_code == 201
    shuffled = {"sampling": "shuffle", "batch": "250", "pass": "240"}
    assert desk.correct("record", **shuffled).status_code == 303
    assert "Without amplification — 0" in read(desk, pair)
    assert "Over the limit by no finite bound" in read(desk, "/datasets/data")
    assert not number.search(read(desk, "/runs/run/guarantee"))
