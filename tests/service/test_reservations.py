"""Reservations: admitted once, used by recording, returned by attestation, never by time."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.ledger.reservations import OPEN_RESERVED_MAX
from service.storage.engine import transaction
from tests.service.samples import BUDGET, FULL, Json, append, event, run, setup

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 10.0}


def step(first_step: int, steps: int, *, mechanism: Json = QUIET) -> Json:
    return event(first_step, steps, mechanism=mechanism, sampling=FULL)


def reserve(
    api: httpx.Client, name: str, steps: int, *, run_name: str = "run", **given: Any
) -> httpx.Response:
    ahead = {"mechanism": QUIET, "sampling": FULL, "steps": steps} | given.pop("event", {})
    body = {"name": name, "event": ahead, "ttl_seconds": 600} | given
    return api.post(f"/v1/runs/{run_name}/reservations", json=body)


def budget(api: httpx.Client) -> Any:
    return api.get("/v1/datasets/data").json()["budget"]


@pytest.fixture
def limited(api: httpx.Client) -> httpx.Client:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    return api


def room(api: httpx.Client) -> int:
    """How many steps a refusal says would still fit in a run that holds nothing."""
    api.post("/v1/runs", json=run("probe"))
    answer = append(api, step(0, 10**9), mode="charge", run="probe")
    assert answer.status_code == 409, answer.text
    found: int = answer.json()["admissible_steps"]
    return found


def next_step(api: httpx.Client, name: str = "run") -> int:
    found: int = api.get(f"/v1/runs/{name}").json()["next_step"]
    return found


def test_what_is_reserved_is_held_and_not_spent(limited: httpx.Client) -> None:
    answer = reserve(limited, "lease", 10)
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["state"], found["first_step"], found["remaining"]) == ("pending", 0, 10)
    state = budget(limited)
    assert state["spent"] == 0
    assert state["reserved"] > 0
    assert state["remaining"] == pytest.approx(3.0 - state["reserved"], abs=1e-9)


def test_reserved_and_then_recorded_leaves_what_recording_alone_would(
    limited: httpx.Client,
) -> None:
    limited.post("/v1/runs", json=run("other"))
    assert reserve(limited, "lease", 10).status_code == 201
    held = budget(limited)
    for first in range(0, 10, 5):
        assert append(limited, step(first, 5)).json()["verdict"] == "within"
    after = budget(limited)
    assert (after["spent"], after["reserved"]) == (held["reserved"], 0)
    assert after["remaining"] == held["remaining"]
    assert limited.get("/v1/reservations/lease").json()["state"] == "recorded"


def test_a_budget_that_is_reserved_whole_admits_its_own_steps_and_no_others(
    limited: httpx.Client,
) -> None:
    fits = room(limited)
    limited.post("/v1/runs", json=run("other"))
    assert reserve(limited, "all", fits).status_code == 201
    for refused in (
        reserve(limited, "more", 1),
        reserve(limited, "others", 1, run_name="other"),
        append(limited, step(0, 1), run="other", mode="charge"),
    ):
        assert refused.status_code == 409, refused.text
        problem = refused.json()
        assert problem["type"] == "/problems/budget-exhausted"
        (scope,) = problem["failing_scopes"]
        assert (scope["scope"], scope["spent"], problem["admissible_steps"]) == (
            "dataset:data",
            0,
            0,
        )
        assert scope["reserved"] > 0
    assert append(limited, step(0, fits), mode="charge").json()["verdict"] == "within"
    assert append(limited, step(fits, 1), mode="charge").status_code == 409
    assert append(limited, step(fits, 1)).json()["verdict"] == "overdraft"


def test_the_same_request_again_finds_its_reservation_and_another_is_a_conflict(
    limited: httpx.Client,
) -> None:
    assert reserve(limited, "lease", 10).status_code == 201
    held = budget(limited)
    again = reserve(limited, "lease", 10)
    assert (again.status_code, again.json()["steps"]) == (200, 10)
    assert budget(limited) == held
    other = reserve(limited, "lease", 11)
    assert (other.status_code, other.json()["type"]) == (409, "/problems/conflict")
    append(limited, step(0, 4))
    assert reserve(limited, "lease", 10).json()["remaining"] == 6


def test_reservations_of_a_branch_follow_one_another(limited: httpx.Client) -> None:
    assert reserve(limited, "a", 3).json()["first_step"] == 0
    assert reserve(limited, "b", 4).json()["first_step"] == 3
    wrong = reserve(limited, "c", 1, event={"first_step": 5})
    assert (wrong.status_code, wrong.json()["expected_step"]) == (409, 7)
    assert reserve(limited, "c", 1, event={"first_step": 7}).status_code == 201


def test_a_release_returns_the_rest_and_only_the_rest(limited: httpx.Client) -> None:
    before = room(limited)
    reserve(limited, "lease", 10)
    append(limited, step(0, 4))
    early = limited.post("/v1/reservations/lease:release", json={"last_step": 2})
    assert (early.status_code, early.json()["type"]) == (409, "/problems/conflict")
    answer = limited.post("/v1/reservations/lease:release", json={"last_step": 5})
    found = answer.json()
    assert (found["state"], found["recorded"], found["remaining"]) == ("released", 4, 2)
    assert room(limited) == before - 6  # two of them ran and are still to be told
    again = limited.post("/v1/reservations/lease:release", json={"last_step": 5})
    assert (again.status_code, again.json()) == (200, found)
    later = limited.post("/v1/reservations/lease:release", json={"last_step": 8})
    assert later.status_code == 409
    append(limited, step(4, 2))
    assert budget(limited)["reserved"] == 0
    assert room(limited) == before - 6


def test_one_that_never_began_is_released_before_its_first_step(limited: httpx.Client) -> None:
    before = room(limited)
    reserve(limited, "lease", 10)
    assert limited.post("/v1/reservations/lease:release", json={"last_step": -1}).status_code == 200
    assert room(limited) == before
    assert reserve(limited, "next", 1).json()["first_step"] == 0


def expire(engine: Engine, name: str) -> None:
    with transaction(engine) as connection:
        past = "2020-01-01 00:00:00.000000"
        connection.execute(
            text("UPDATE reservations SET expires_at = :past WHERE name = :name"),
            {"past": past, "name": name},
        )


def test_what_expires_is_spent_until_somebody_says_what_became_of_it(
    limited: httpx.Client, engine: Engine
) -> None:
    before = room(limited)
    reserve(limited, "lease", 10)
    held = budget(limited)
    expire(engine, "lease")
    assert limited.get("/v1/reservations/lease").json()["state"] == "forfeited"
    lost = budget(limited)
    assert (lost["spent"], lost["reserved"]) == (held["reserved"], 0)
    assert lost["remaining"] == held["remaining"]
    assert room(limited) == before - 10
    append(limited, step(0, 4))  # late, and told all the same
    assert room(limited) == before - 10
    assert limited.post("/v1/reservations/lease:release", json={"last_step": 3}).status_code == 200
    assert room(limited) == before - 4
    assert limited.get("/v1/reservations/lease").json()["state"] == "released"


def test_a_void_needs_a_reason_and_returns_what_is_held(
    limited: httpx.Client, engine: Engine
) -> None:
    before = room(limited)
    reserve(limited, "lease", 10)
    expire(engine, "lease")
    append(limited, step(0, 1))
    assert limited.post("/v1/reservations/lease:void", json={}).status_code == 422
    answer = limited.post("/v1/reservations/lease:void", json={"reason": "the node burnt down"})
    found = answer.json()
    assert (found["state"], found["remaining"], found["recorded"]) == ("voided", 0, 1)
    assert found["reason"] == "the node burnt down"
    assert room(limited) == before - 1
    assert limited.post("/v1/reservations/lease:release", json={"last_step": 3}).status_code == 409


@pytest.mark.parametrize("how", ["release", "void"])
def test_steps_that_were_said_not_to_run_are_kept_and_are_an_incident(
    limited: httpx.Client, engine: Engine, how: str
) -> None:
    reserve(limited, "lease", 10)
    body: Json = {"last_step": 1} if how == "release" else {"reason": "lost"}
    assert limited.post(f"/v1/reservations/lease:{how}", json=body).status_code == 200
    assert append(limited, step(0, 5)).status_code == 201
    with transaction(engine) as connection:
        found = connection.execute(text("SELECT kind, detail FROM incidents")).all()
    (incident,) = found
    assert incident.kind == "recorded_after_release"
    assert '"reservation":"lease"' in incident.detail
    assert next_step(limited) == 5


def test_other_steps_than_reserved_cost_what_they_cost(limited: httpx.Client) -> None:
    before = room(limited)
    reserve(limited, "lease", 8)
    # Four times the cost: two of them take what eight steps would, six of which are still held.
    assert append(limited, step(0, 2, mechanism=LOUD)).json()["verdict"] == "within"
    assert room(limited) == before - 14
    reserve(limited, "rest", room(limited))
    dear = append(limited, step(2, 1, mechanism=LOUD), mode="charge")
    assert dear.status_code == 409
    assert append(limited, step(2, 1, mechanism=LOUD)).json()["verdict"] == "overdraft"
    frozen = append(limited, step(3, 1), mode="charge")
    assert frozen.json()["verdict"] == "reserved"  # it was admitted before


@pytest.mark.parametrize(
    ("needed", "incidents"), [({}, 1), ({"needed_steps": 0}, 0), ({"needed_steps": 9}, 0)]
)
def test_only_a_refusal_of_steps_that_are_needed_is_an_incident(
    limited: httpx.Client, needed: Json, incidents: int
) -> None:
    answer = reserve(limited, "lease", 10**6, **needed)
    assert answer.json()["admissible_steps"] >= 9
    assert refusals(limited) == incidents
    more = answer.json()["admissible_steps"] + 1
    assert reserve(limited, "lease", more, needed_steps=more).status_code == 409
    assert refusals(limited) == incidents + 1
    # What is needed is no part of what is reserved: the same again is the same.
    assert reserve(limited, "lease", 9, needed_steps=9).status_code == 201
    assert reserve(limited, "lease", 9, needed_steps=0).status_code == 200


def refusals(api: httpx.Client) -> int:
    found = api.get("/v1/datasets/data/incidents").json()["incidents"]
    return sum(one["kind"] == "refusal" for one in found)


def test_passes_are_reserved_whole_and_recorded_in_any_pieces(api: httpx.Client) -> None:
    given = {"budget": {"epsilon": 8.0, "delta": 1e-5}, "neighboring_relation": "replace_special"}
    setup(api, dataset_given=given)
    cyclic = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass
    ahead = {"mechanism": LOUD, "sampling": cyclic}
    assert reserve(api, "lease", 25, event=ahead).status_code == 201
    held = budget(api)
    for first, steps in ((0, 1), (1, 12), (13, 7), (20, 5)):
        found = append(api, event(first, steps, mechanism=LOUD, sampling=cyclic)).json()
        assert found["verdict"] == "within"
        assert found["budget"]["remaining"] == pytest.approx(held["remaining"], rel=1e-12)
    after = budget(api)
    assert (after["reserved"], after["spent"]) == (0, held["reserved"])


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"ttl_seconds": 0}, "body.ttl_seconds"),
        ({"ttl_seconds": 1e9}, "body.ttl_seconds"),
        ({"name": "No"}, "body.name"),
        ({"event": {"steps": 0}}, "body.event.steps"),
    ],
)
def test_what_cannot_be_reserved_is_named(
    limited: httpx.Client, given: Json, location: str
) -> None:
    body = {"name": "x", "event": {"mechanism": QUIET, "sampling": FULL, "steps": 1}} | {
        "ttl_seconds": 60
    }
    body |= {k: v for k, v in given.items() if k != "event"}
    body["event"] |= given.get("event", {})
    answer = limited.post("/v1/runs/run/reservations", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == location


def test_nothing_is_reserved_where_nothing_may_run(limited: httpx.Client) -> None:
    assert reserve(limited, "x", 1, run_name="nobody").status_code == 404
    assert reserve(limited, "x", 1, branch="nowhere").status_code == 404
    noiseless = reserve(limited, "x", 1, event={"mechanism": {"kind": "none"}})
    assert (noiseless.status_code, noiseless.json()["type"]) == (422, "/problems/unsupported-event")
    limited.post("/v1/runs/run:finish", json={"state": "finished"})
    assert reserve(limited, "x", 1).json()["type"] == "/problems/run-finished"
    assert limited.get("/v1/reservations/x").status_code == 404
    assert limited.post("/v1/reservations/x:release", json={"last_step": 0}).status_code == 404


def test_after_all_is_returned_the_next_begins_where_recording_does(
    limited: httpx.Client,
) -> None:
    reserve(limited, "a", 10)
    reserve(limited, "b", 10)
    for name, last_step in (("b", 9), ("a", -1)):
        body = {"last_step": last_step}
        assert limited.post(f"/v1/reservations/{name}:release", json=body).status_code == 200
    assert reserve(limited, "c", 1).json()["first_step"] == 0


def test_a_runs_own_budget_counts_what_expired_as_spent(api: httpx.Client, engine: Engine) -> None:
    setup(api, budget=BUDGET)
    reserve(api, "lease", 10)
    held = api.get("/v1/runs/run").json()["budget"]
    assert (held["spent"], held["reserved"] > 0) == (0, True)
    expire(engine, "lease")
    lost = api.get("/v1/runs/run").json()["budget"]
    assert (lost["spent"], lost["reserved"]) == (held["reserved"], 0)


def test_a_branch_holds_only_so_many_reservations(limited: httpx.Client) -> None:
    faint = {"mechanism": {"kind": "gaussian", "noise_multiplier": 1e4}}
    for number in range(OPEN_RESERVED_MAX):
        assert reserve(limited, f"lease-{number}", 1, event=faint).status_code == 201
    refused = reserve(limited, "one-more", 1, event=faint)
    assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    append(limited, step(0, 1, mechanism=faint["mechanism"]))
    assert reserve(limited, "one-more", 1, event=faint).status_code == 201
