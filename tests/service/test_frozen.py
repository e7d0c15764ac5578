"""A lowered limit beside reservations: what steps are called, and how an officer stops them."""

import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service.storage.engine import snapshot
from service.transparency.signing import Signer
from service.transparency.verification.ledger import verify
from tests.service.browsing import browser, sign_in
from tests.service.certifying import signer_of, signing
from tests.service.samples import FULL, Json, append, dataset, event, run, setup

TOO_MANY = HTTPStatus.TOO_MANY_REQUESTS
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 30.0}
LIMIT: Json = {"epsilon": 5.0, "delta": 1e-5}
LEASE: Json = {
    "name": "lease",
    "event": {"steps": 500, "mechanism": QUIET, "sampling": FULL},
    "ttl_seconds": 90 * 24 * 3600,
}


def quiet(first_step: int, steps: int) -> Json:
    return event(first_step, steps, mechanism=QUIET, sampling=FULL)


def change(api: httpx.Client, name: str = "data", **given: Any) -> httpx.Response:
    revision = api.get(f"/v1/datasets/{name}").headers["ETag"]
    body = {"reason": "as decided"} | given
    return api.patch(f"/v1/datasets/{name}", json=body, headers={"If-Match": revision})


def charge(api: httpx.Client, first_step: int, steps: int) -> httpx.Response:
    return append(api, quiet(first_step, steps), mode="charge")


def listed(api: httpx.Client, name: str = "data", **asked: Any) -> list[Json]:
    answer = api.get(f"/v1/datasets/{name}/reservations", params=asked)
    answer.raise_for_status()
    found: list[Json] = answer.json()["reservations"]
    return found


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    """A key of this test."""
    return signer_of(tmp_path)


@pytest.fixture
def reserved(api: httpx.Client) -> float:
    """A reservation of 500 steps, 10 of them charged, and what those have spent."""
    setup(api, dataset_given={"budget": LIMIT}, delta=1e-5)
    assert api.post("/v1/runs/run/reservations", json=LEASE).status_code == 201
    assert charge(api, 0, 10).json()["verdict"] == "within"
    spent: float = api.get("/v1/datasets/data").json()["spent"]
    return spent


def verdicts(api: httpx.Client, engine: Engine) -> list[str]:
    with snapshot(engine) as connection:
        query = "SELECT verdict FROM entries ORDER BY sequence"
        found = [row.verdict for row in connection.exec_driver_sql(query)]
        assert verify(connection).broken == []
    return found


@pytest.mark.parametrize("mode", ["charge", "record"])
def test_steps_of_a_reservation_beyond_a_lowered_limit_are_reserved(
    api: httpx.Client, engine: Engine, reserved: float, mode: str
) -> None:
    change(api, budget={"epsilon": reserved * 0.999, "delta": 1e-5}).raise_for_status()
    assert api.get("/v1/datasets/data").json()["budget"]["overdrawn"]
    answer = append(api, quiet(10, 490), mode=mode)
    assert (answer.status_code, answer.json()["verdict"]) == (201, "reserved")
    assert append(api, quiet(10, 490), mode=mode).status_code == 200  # sent again
    assert charge(api, 500, 1).status_code == 409  # no reservation covers it
    assert append(api, quiet(500, 1)).json()["verdict"] == "overdraft"
    assert verdicts(api, engine) == ["within", "reserved", "overdraft"]


def test_a_limit_that_still_covers_all_that_is_reserved_leaves_steps_within(
    api: httpx.Client, reserved: float
) -> None:
    standing = api.get("/v1/datasets/data").json()
    held = standing["spent"] + standing["reserved"]
    change(api, budget={"epsilon": held * 1.3, "delta": 1e-5}).raise_for_status()
    assert charge(api, 10, 90).json()["verdict"] == "within"
    # Less than what is held, though more than what is spent: the rest would not fit any more.
    change(api, budget={"epsilon": held * 0.9, "delta": 1e-5}).raise_for_status()
    assert charge(api, 100, 90).json()["verdict"] == "reserved"


def test_the_reserved_steps_are_in_documents_and_certificates(
    api: httpx.Client, database_url: str, signer: Signer, reserved: float
) -> None:
    change(api, budget={"epsilon": reserved * 0.999, "delta": 1e-5}).raise_for_status()
    assert charge(api, 10, 20).json()["verdict"] == "reserved"
    assert charge(api, 30, 5).json()["verdict"] == "reserved"
    document = api.get("/v1/runs/run/ledger").json()
    assert document["reserved"] == [{"branch": "main", "first_step": 10, "steps": 25}]
    assert "overdrafts" not in document
    with signing(database_url, signer) as own:
        while (answer := own.get("/v1/runs/run/certificate")).status_code == TOO_MANY:
            time.sleep(0.2)
    said = answer.json()["certificate"]
    assert said["standing"][0]["steps_reserved_beyond_a_limit"] == 25


def test_open_reservations_are_listed(api: httpx.Client, reserved: float) -> None:
    (one,) = listed(api)
    assert (one["name"], one["run"], one["branch"]) == ("lease", "run", "main")
    assert (one["steps"], one["recorded"], one["remaining"]) == (500, 10, 490)
    assert (one["state"], one["by"]) == ("pending", api.get("/v1/runs/run").json()["by"])
    assert one["expires_at"] is not None
    standing = api.get("/v1/datasets/data").json()
    assert one["epsilon_held"] == pytest.approx(standing["reserved"], rel=1e-9)
    short = LEASE | {"name": "short", "event": LEASE["event"] | {"steps": 7}}
    api.post("/v1/runs/run/reservations", json=short).raise_for_status()
    assert [each["name"] for each in listed(api)] == ["lease", "short"]
    api.post("/v1/reservations/short:void", json={"reason": "x"}).raise_for_status()
    names = {
        state: [each["name"] for each in listed(api, state=state)]
        for state in ("open", "pending", "forfeited", "recorded", "released", "voided", "all")
    }
    assert names == {
        "open": ["lease"],
        "pending": ["lease"],
        "forfeited": [],
        "recorded": [],
        "released": [],
        "voided": ["short"],
        "all": ["lease", "short"],
    }
    for state in ("pending", "voided", "all"):
        assert all(state in (each["state"], "all") for each in listed(api, state=state))
    first = api.get(
        "/v1/datasets/data/reservations", params={"state": "all", "page_size": "1"}
    ).json()
    second = listed(api, state="all", page_token=first["next_page_token"])
    assert [each["name"] for each in (*first["reservations"], *second)] == ["lease", "short"]
    assert api.get("/v1/datasets/data/reservations", params={"state": "x"}).status_code == 422
    assert api.get("/v1/datasets/none/reservations").status_code == 404


def test_open_reservations_are_voided_with_the_change(
    api: httpx.Client, engine: Engine, reserved: float
) -> None:
    planned = run("planned", budget=LIMIT, plan=[LEASE["event"] | {"steps": 3}])
    api.post("/v1/runs", json=planned).raise_for_status()
    assert len(listed(api)) == 2
    before = api.get("/v1/datasets/data").json()
    assert change(api, void_reservations=True).status_code == 200
    after = api.get("/v1/datasets/data").json()
    assert (after["spent"], after["reserved"]) == (before["spent"], 0.0)
    assert (after["revision"], listed(api)) == (before["revision"] + 1, [])
    asked = {"kind": "reservation_end"}
    ended = api.get("/v1/datasets/data/acts", params=asked).json()["acts"]
    mine = api.get("/v1/runs/run").json()["by"]
    assert [(one["by"], one["content"]["state"], one["content"]["reason"]) for one in ended] == [
        (mine, "voided", "as decided")
    ] * 2
    change(api, budget={"epsilon": reserved * 0.999, "delta": 1e-5}).raise_for_status()
    assert charge(api, 10, 1).json()["type"] == "/problems/budget-exhausted"
    assert verdicts(api, engine) == ["within"]


def test_a_stale_change_voids_nothing(api: httpx.Client, reserved: float) -> None:
    body = {"reason": "x", "void_reservations": True}
    answer = api.patch("/v1/datasets/data", json=body, headers={"If-Match": "7"})
    assert answer.status_code == 412
    assert [one["state"] for one in listed(api)] == ["pending"]


def test_lists_and_the_overview_say_what_is_frozen(
    api: httpx.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.operations.overview.SEEN_SECONDS", 0.0)
    api.post("/v1/datasets", json=dataset("data")).raise_for_status()
    api.post("/v1/datasets", json=dataset("other")).raise_for_status()
    with browser(address) as pages:
        assert sign_in(pages, START_TOKEN).status_code == 303
        for frozen in (True, False):
            change(api, frozen=frozen).raise_for_status()
            for path in ("/", "/datasets"):
                rows = re.findall(r"<tr>.*?</tr>", pages.get(path).text, re.DOTALL)
                told = {
                    name: ">frozen<" in row for row in rows for name in ("data", "other")
                    if f'href="/datasets/{name}"' in row
                }  # fmt: skip
                assert told == {"data": frozen, "other": False}


def test_a_frozen_dataset_admits_nothing_and_records_facts(
    api: httpx.Client, engine: Engine, reserved: float
) -> None:
    assert change(api, frozen=True).json()["frozen"] is True
    assert change(api, frozen=True).status_code == 422  # nothing would change
    refused = charge(api, 10, 5)  # though a reservation covers it
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/dataset-frozen")
    assert refused.json()["dataset"] == "data"
    more = LEASE | {"name": "more"}
    answer = api.post("/v1/runs/run/reservations", json=more)
    assert answer.json()["type"] == "/problems/dataset-frozen"
    planned = run("planned", budget=LIMIT, plan=[LEASE["event"] | {"steps": 3}])
    assert api.post("/v1/runs", json=planned).json()["type"] == "/problems/dataset-frozen"
    assert api.get("/v1/runs/planned").status_code == 404
    # What was done before is answered as before, and what ran is kept.
    assert charge(api, 0, 10).status_code == 200
    assert api.post("/v1/runs/run/reservations", json=LEASE).status_code == 200
    assert append(api, quiet(10, 5)).json()["verdict"] == "within"
    assert change(api, frozen=False).json()["frozen"] is False
    assert charge(api, 15, 5).status_code == 201
    told = [one["frozen"] for one in api.get("/v1/datasets/data/settings").json()["settings"]]
    assert told == [False, True, False]
    assert verdicts(api, engine) == ["within"] * 3


def test_a_frozen_parent_admits_nothing_below_it(api: httpx.Client) -> None:
    api.post("/v1/datasets", json=dataset("parent")).raise_for_status()
    made = dataset("data", parents=["parent"], rows_per_parent_record="exactly_one")
    api.post("/v1/datasets", json=made).raise_for_status()
    api.post("/v1/datasets", json=dataset("beside")).raise_for_status()
    api.post("/v1/runs", json=run()).raise_for_status()
    api.post("/v1/runs", json=run("free", dataset="beside")).raise_for_status()
    assert charge(api, 0, 1).status_code == 201
    change(api, "parent", frozen=True).raise_for_status()
    refused = charge(api, 1, 1)
    assert (refused.json()["type"], refused.json()["dataset"]) == (
        "/problems/dataset-frozen", "parent",
    )  # fmt: skip
    assert append(api, quiet(0, 1), mode="charge", run="free").status_code == 201
    change(api, "parent", frozen=False).raise_for_status()
    assert charge(api, 1, 1).status_code == 201
