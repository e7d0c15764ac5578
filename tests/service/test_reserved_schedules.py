"""Several events reserved at once: held together, used one by one, returned once, never twice."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from service.ledger.reservations import OPEN_RESERVED_MAX
from service.storage.engine import transaction
from service.transparency.verification.ledger import verify
from tests.service.samples import BUDGET, FULL, Json, append, event, run, setup
from tests.service.test_reservations import budget, limited, next_step, room, step

__all__ = ["limited"]
NOISES = [20.0, 18.0, 16.0, 14.0]
ENVELOPE = {
    "filter": "envelope",
    "envelope": [
        {"mechanism": {"kind": "gaussian", "noise_multiplier": noise}, "sampling": FULL, "steps": 3}
        for noise in NOISES
    ],
}


def noise(value: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": value}


def ahead(*noises: float, steps: int = 1) -> list[Json]:
    return [{"mechanism": noise(one), "sampling": FULL, "steps": steps} for one in noises]


def reserve(
    api: httpx.Client, name: str, events: list[Json], *, run_name: str = "run", **given: Any
) -> httpx.Response:
    body = {"name": name, "events": events, "ttl_seconds": 600} | given
    return api.post(f"/v1/runs/{run_name}/reservations", json=body)


def release(api: httpx.Client, name: str, last_step: int) -> httpx.Response:
    return api.post(f"/v1/reservations/{name}:release", json={"last_step": last_step})


def take(api: httpx.Client, first: int, *noises: float, **given: Any) -> httpx.Response:
    events = [step(first + at, 1, mechanism=noise(one)) for at, one in enumerate(noises)]
    return append(api, *events, **given)


def expire(engine: Engine) -> None:
    with transaction(engine) as connection:
        connection.execute(
            text("UPDATE reservations SET expires_at = '2020-01-01 00:00:00.000000'")
        )


@pytest.fixture
def enveloped(api: httpx.Client) -> httpx.Client:
    setup(api, dataset_given={"budget": BUDGET | ENVELOPE})
    return api


def alone(api: httpx.Client, *noises: float) -> float:
    """What the steps cost that ran without any reservation, on a dataset of their own."""
    limit = {"budget": BUDGET | {"orders": [8.0]}}
    made = {
        "name": "alone", "dataset_size": 60000, "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "example", **limit,
    }  # fmt: skip
    assert api.post("/v1/datasets", json=made).is_success
    assert api.post("/v1/runs", json=run("other", dataset="alone")).is_success
    assert take(api, 0, *noises, run="other").is_success
    found: float = api.get("/v1/datasets/alone").json()["budget"]["spent"]
    return found


def test_all_events_are_held_and_each_step_uses_its_own(limited: httpx.Client) -> None:
    answer = reserve(limited, "lease", ahead(*NOISES))
    assert answer.status_code == 201, answer.text
    found = answer.json()
    assert (found["state"], found["first_step"], found["steps"]) == ("pending", 0, 4)
    assert [one["first_step"] for one in found["events"]] == [0, 1, 2, 3]
    assert [one["mechanism"]["noise_multiplier"] for one in found["events"]] == NOISES
    held = budget(limited)
    assert held["spent"] == 0
    for at, one in enumerate(NOISES):
        told = take(limited, at, one).json()
        assert (told["verdict"], told["budget"]["remaining"]) == ("within", held["remaining"])
        left = limited.get("/v1/reservations/lease").json()
        assert (left["recorded"], left["remaining"]) == (at + 1, 3 - at)
    after = budget(limited)
    assert (after["spent"], after["reserved"]) == (held["reserved"], 0)
    assert after["spent"] == alone(limited, *NOISES)
    assert limited.get("/v1/reservations/lease").json()["state"] == "recorded"


def test_a_release_returns_the_events_that_did_not_run(limited: httpx.Client) -> None:
    assert reserve(limited, "lease", ahead(*NOISES, steps=2)).status_code == 201
    assert take(limited, 0, 20.0, 20.0, 18.0).is_success
    assert release(limited, "lease", 1).status_code == 409  # more than that was recorded
    found = release(limited, "lease", 2).json()
    assert (found["state"], found["recorded"], found["remaining"]) == ("released", 3, 0)
    again = release(limited, "lease", 2)
    assert (again.status_code, again.json()) == (200, found)
    assert release(limited, "lease", 5).status_code == 409
    after = budget(limited)
    assert (after["reserved"], after["spent"]) == (0, alone(limited, 20.0, 20.0, 18.0))
    assert reserve(limited, "next", ahead(20.0)).json()["first_step"] == 3


def test_an_attested_step_that_is_not_told_yet_stays_held(limited: httpx.Client) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    assert release(limited, "lease", 1).json()["remaining"] == 2
    assert budget(limited)["reserved"] > 0
    assert take(limited, 0, *NOISES[:2]).json()["verdict"] == "within"
    after = budget(limited)
    assert (after["reserved"], after["spent"]) == (0, alone(limited, *NOISES[:2]))


def test_what_expired_is_spent_once(limited: httpx.Client, engine: Engine) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    held = budget(limited)
    take(limited, 0, 20.0)
    expire(engine)
    found = limited.get("/v1/reservations/lease").json()
    assert (found["state"], found["remaining"]) == ("forfeited", 3)
    lost = budget(limited)
    assert (lost["spent"], lost["reserved"]) == (held["reserved"], 0)
    take(limited, 1, 18.0)  # late, and told all the same
    assert budget(limited)["spent"] == held["reserved"]
    release(limited, "lease", 1)
    assert budget(limited)["spent"] == alone(limited, 20.0, 18.0)


@pytest.mark.parametrize("by", ["name", "dataset"])
def test_a_void_returns_all_that_did_not_run(limited: httpx.Client, by: str) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    take(limited, 0, *NOISES[:2])
    if by == "name":
        body = {"reason": "lost"}
        assert limited.post("/v1/reservations/lease:void", json=body).status_code == 200
    else:
        change = {"reason": "lost", "void_reservations": True}
        etag = limited.get("/v1/datasets/data").headers["etag"]
        answer = limited.patch("/v1/datasets/data", json=change, headers={"If-Match": etag})
        assert answer.status_code == 200, answer.text
    found = limited.get("/v1/reservations/lease").json()
    assert (found["state"], found["recorded"], found["remaining"]) == ("voided", 2, 0)
    assert found["reason"] == "lost"
    after = budget(limited)
    assert (after["reserved"], after["spent"]) == (0, alone(limited, *NOISES[:2]))
    again = limited.post("/v1/reservations/lease:void", json={"reason": "again"})
    assert (again.status_code, again.json()) == (200, found)
    assert release(limited, "lease", 1).status_code == 409


def test_a_refusal_holds_nothing_and_says_how_many_steps_fit(limited: httpx.Client) -> None:
    fits = room(limited)
    events = ahead(20.0, steps=fits - 1) + ahead(20.0, 20.0, 20.0)
    refused = reserve(limited, "lease", events)
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, fits)
    assert budget(limited)["reserved"] == 0
    assert limited.get("/v1/reservations/lease").status_code == 404
    assert reserve(limited, "lease", events[:2]).status_code == 201
    assert room(limited) == 0


def test_an_envelope_holds_them_item_by_item(enveloped: httpx.Client) -> None:
    enveloped.post("/v1/runs", json=run("other"))
    assert reserve(enveloped, "lease", ahead(*NOISES, steps=2)).status_code == 201
    items = budget(enveloped)["items"]
    assert [(one["used"], one["reserved"], one["remaining"]) for one in items] == [(0, 2, 1)] * 4
    refused = reserve(enveloped, "more", ahead(20.0, 14.0, steps=2), run_name="other")
    assert refused.status_code == 409
    assert reserve(enveloped, "rest", ahead(*NOISES), run_name="other").status_code == 201
    assert budget(enveloped)["remaining_steps"] == 0
    assert take(enveloped, 0, 20.0, 20.0, 18.0, mode="charge").json()["verdict"] == "within"
    release(enveloped, "lease", 2)
    items = budget(enveloped)["items"]
    found = [(one["used"], one["reserved"], one["remaining"]) for one in items]
    assert found == [(2, 1, 0), (1, 1, 1), (0, 1, 2), (0, 1, 2)]
    assert not budget(enveloped)["overdrawn"]


def test_the_own_budget_of_the_run_holds_them_too(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET}, budget=BUDGET | ENVELOPE)
    assert reserve(api, "lease", ahead(*NOISES, steps=3)).status_code == 201
    own = api.get("/v1/runs/run").json()["budget"]
    assert [one["reserved"] for one in own["items"]] == [3] * 4
    assert reserve(api, "more", ahead(20.0)).status_code == 409
    release(api, "lease", -1)
    own = api.get("/v1/runs/run").json()["budget"]
    assert [(one["reserved"], one["remaining"]) for one in own["items"]] == [(0, 3)] * 4


def test_the_same_request_again_finds_it_and_another_is_a_conflict(limited: httpx.Client) -> None:
    first = reserve(limited, "lease", ahead(*NOISES))
    held = budget(limited)
    again = reserve(limited, "lease", ahead(*NOISES))
    assert (again.status_code, again.json()) == (200, first.json())
    assert budget(limited) == held
    assert reserve(limited, "lease", ahead(*NOISES[:3])).status_code == 409
    other = {"name": "lease", "event": ahead(20.0)[0], "ttl_seconds": 600}
    assert limited.post("/v1/runs/run/reservations", json=other).status_code == 409


def test_they_follow_one_another(limited: httpx.Client) -> None:
    assert reserve(limited, "a", ahead(20.0, 18.0, steps=2)).json()["first_step"] == 0
    found = reserve(limited, "b", [*ahead(20.0), ahead(18.0)[0] | {"first_step": 5}]).json()
    assert [one["first_step"] for one in found["events"]] == [4, 5]
    wrong = reserve(limited, "c", [*ahead(20.0), ahead(18.0)[0] | {"first_step": 9}])
    assert (wrong.status_code, wrong.json()["expected_step"]) == (409, 7)


def test_steps_of_another_kind_cost_what_they_cost(limited: httpx.Client) -> None:
    reserve(limited, "lease", ahead(20.0, 20.0))
    held = budget(limited)
    assert take(limited, 0, 10.0).json()["verdict"] == "within"
    after = budget(limited)
    assert after["spent"] == alone(limited, 10.0)
    assert after["spent"] + after["reserved"] > held["reserved"]
    assert next_step(limited) == 1


def test_steps_after_a_release_are_one_incident(limited: httpx.Client, engine: Engine) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    release(limited, "lease", 0)
    take(limited, 0, *NOISES)
    with transaction(engine) as connection:
        found = connection.execute(text("SELECT kind, detail FROM incidents")).all()
    assert [one.kind for one in found] == ["recorded_after_release"]
    assert '"reservation":"lease"' in found[0].detail


def test_a_ledger_that_has_them_is_verified(limited: httpx.Client, engine: Engine) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    take(limited, 0, *NOISES[:2])
    reserve(limited, "more", ahead(*NOISES))
    release(limited, "more", 4)
    with engine.connect() as connection:
        report = verify(connection)
    assert report.total == 0
    assert report.checked["rows"] > 8


def test_lists_have_them_event_by_event(limited: httpx.Client) -> None:
    reserve(limited, "lease", ahead(*NOISES))
    found = limited.get("/v1/datasets/data/reservations").json()["reservations"]
    assert [(one["name"], one["first_step"], one["steps"]) for one in found] == [
        ("lease", at, 1) for at in range(4)
    ]
    assert all(one["epsilon_held"] > 0 for one in found)


def test_a_branch_holds_only_so_many_events(limited: httpx.Client) -> None:
    faint = ahead(*[1e4] * OPEN_RESERVED_MAX)
    assert reserve(limited, "all", faint).status_code == 201
    assert reserve(limited, "more", faint[:1]).status_code == 409
    assert take(limited, 0, *[1e4] * 10).is_success
    assert reserve(limited, "ten", faint[:11]).status_code == 409
    assert reserve(limited, "ten", faint[:10]).status_code == 201


@pytest.mark.parametrize(
    "given",
    [
        {"events": []},
        {"events": ahead(*[20.0] * 257)},
        {"events": ahead(20.0), "event": ahead(20.0)[0]},
        {"events": None},
        {"events": ahead(20.0, 18.0), "name": "x" * 60},
        {"events": ahead(20.0, 18.0), "name": "lease/1"},
    ],
)
def test_what_cannot_be_reserved_is_refused(limited: httpx.Client, given: Json) -> None:
    body = {"name": "x", "ttl_seconds": 60} | given
    assert limited.post("/v1/runs/run/reservations", json=body).status_code == 422
    assert budget(limited)["reserved"] == 0


def test_passes_are_reserved_in_any_order_of_events(api: httpx.Client) -> None:
    given = {"budget": {"epsilon": 8.0, "delta": 1e-5}, "neighboring_relation": "replace_special"}
    setup(api, dataset_given=given)
    cyclic = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass
    events: list[Json] = [
        {"mechanism": noise(value), "sampling": cyclic, "steps": steps}
        for value, steps in ((30.0, 5), (25.0, 5), (20.0, 12))
    ]
    assert reserve(api, "lease", events).status_code == 201
    held = budget(api)
    first = 0
    for one in events:
        sent = event(first, one["steps"], mechanism=one["mechanism"], sampling=cyclic)
        assert append(api, sent).json()["verdict"] == "within"
        first += one["steps"]
    after = budget(api)
    assert (after["reserved"], after["spent"]) == (0, held["reserved"])


def test_runs_that_race_for_items_get_each_of_them_once(enveloped: httpx.Client) -> None:
    names = [f"racer-{number}" for number in range(6)]
    for name in names:
        assert enveloped.post("/v1/runs", json=run(name)).is_success

    def race(name: str) -> int:
        """Reserve each item once, and again until nothing is left; so many were granted."""
        granted = 0
        for attempt in range(4):
            answer = reserve(enveloped, f"{name}-{attempt}", ahead(*NOISES), run_name=name)
            assert answer.status_code in (201, 409), answer.text
            granted += answer.status_code == 201
        return granted

    with ThreadPoolExecutor(len(names)) as pool:
        granted = dict(zip(names, pool.map(race, names), strict=True))
    assert sum(granted.values()) == 3
    items = budget(enveloped)["items"]
    assert [(one["reserved"], one["remaining"]) for one in items] == [(3, 0)] * 4
    for name, count in granted.items():
        for at in range(count):
            told = take(enveloped, 4 * at, *NOISES, run=name, mode="charge").json()
            assert told["verdict"] == "within"
    items = budget(enveloped)["items"]
    assert [(one["used"], one["reserved"]) for one in items] == [(3, 0)] * 4
