"""Settings that change: on the revision that was looked at, for a reason, and kept for good."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.filters import revision_share
from service.identity.keys import Role
from tests.conftest import AS_ADMIN
from tests.service.office import key_of_each
from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run, setup
from tests.service.test_reservations import reserve, room

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
URL = "/v1/datasets/data"
HIGHER: Json = {"epsilon": 4.0, "delta": 1e-5}


def step(first_step: int, steps: int) -> Json:
    return event(first_step, steps, mechanism=QUIET, sampling=FULL)


def change(api: httpx.Client, revision: object = 1, **body: Any) -> httpx.Response:
    headers = {} if revision is None else {"If-Match": f'"{revision}"'}
    return api.patch(URL, json={"reason": "second study"} | body, headers=headers)


def state(api: httpx.Client) -> Any:
    return api.get(URL).json()


def history(api: httpx.Client) -> list[Json]:
    found: list[Json] = api.get(f"{URL}/settings").json()["settings"]
    return found


def same_filter(one: Json, other: Json) -> bool:
    return all(
        one["filter"][name] == other["filter"][name] for name in ("kind", "orders", "weights")
    )


@pytest.fixture
def limited(api: httpx.Client) -> httpx.Client:
    setup(api, dataset_given={"budget": BUDGET | {"orders": [8.0]}})
    return api


@pytest.fixture
def used(limited: httpx.Client) -> httpx.Client:
    assert append(limited, step(0, 20)).status_code == 201
    return limited


def test_before_any_answer_another_limit_takes_the_first_ones_place(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert api.get(URL).headers["etag"] == '"1"'
    answer = change(api, budget={"epsilon": 0.5, "delta": 1e-6})
    assert (answer.status_code, answer.headers["etag"]) == (200, '"2"'), answer.text
    budget = answer.json()["budget"]
    assert (budget["epsilon"], budget["delta"], budget["revision"]) == (0.5, 1e-6, 0)
    assert budget["delta_share"] == 1
    api.post("/v1/datasets", json=dataset("same", budget={"epsilon": 0.5, "delta": 1e-6}))
    assert budget == api.get("/v1/datasets/same").json()["budget"]  # its order, too


def test_orders_that_were_asked_for_stay(api: httpx.Client) -> None:
    asked = {"filter": "union_of_orders", "orders": [3.0, 5.0]}
    given = {"budget": BUDGET | asked, "accept": ["published", "derived"]}
    setup(api, dataset_given=given)
    budget = change(api, budget=HIGHER).json()["budget"]
    assert (budget["filter"]["kind"], budget["filter"]["orders"]) == ("union_of_orders", [3.0, 5.0])


def test_after_answers_a_limit_is_the_next_revision_with_its_own_share_of_delta(
    used: httpx.Client,
) -> None:
    before = state(used)["budget"]
    answer = change(used, budget=HIGHER)
    after = answer.json()["budget"]
    assert (after["epsilon"], after["delta"], after["revision"]) == (4.0, 1e-5, 1)
    assert after["delta_share"] == revision_share(1) < before["delta_share"]
    assert same_filter(after, before)
    assert after["spent"] > before["spent"]  # the same steps, read at less of delta
    assert append(used, step(20, 1)).json()["budget"] == state(used)["budget"]  # the writer knows
    third = change(used, 2, budget=HIGHER | {"epsilon": 5.0}).json()["budget"]
    assert (third["revision"], third["delta_share"]) == (2, revision_share(2))


@pytest.mark.parametrize("seen", ["reservation", "descendant", "nothing"])
def test_what_is_reserved_or_was_seen_of_a_descendant_counts_as_an_answer(
    limited: httpx.Client, seen: str
) -> None:
    api = limited
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child).status_code == 201
    api.post("/v1/runs", json=run("below", dataset="child"))
    if seen == "reservation":
        assert reserve(api, "lease", 1).status_code == 201
    if seen == "descendant":
        assert append(api, step(0, 1), run="below").status_code == 201
    budget = change(api, budget=HIGHER).json()["budget"]
    assert budget["revision"] == (0 if seen == "nothing" else 1)


def test_a_budget_that_is_set_late_uses_the_filter_that_was_fixed_at_creation(
    api: httpx.Client,
) -> None:
    setup(api)
    append(api, step(0, 20))
    budget = change(api, budget={"epsilon": 0.5, "delta": 1e-7}).json()["budget"]
    api.post("/v1/datasets", json=dataset("usual", budget=BUDGET))
    usual = api.get("/v1/datasets/usual").json()["budget"]
    assert same_filter(budget, usual)
    assert (budget["revision"], budget["delta"]) == (1, 1e-7)
    assert budget["spent"] > 0


def test_delta_never_changes_once_answers_were_seen(used: httpx.Client) -> None:
    answer = change(used, budget={"epsilon": 4.0, "delta": 1e-4})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "body.budget.delta"
    assert (state(used)["revision"], state(used)["budget"]["delta"]) == (1, 1e-5)


@pytest.mark.parametrize("kind", ["gaussian_dp", "approximate_dp"])
def test_filters_that_rest_on_their_limit_are_not_revised(api: httpx.Client, kind: str) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"filter": kind}})
    assert change(api, budget=HIGHER).json()["budget"]["epsilon"] == 4.0
    pure = {"kind": "approximate_dp", "epsilon": 0.1, "delta": 0.0}
    mechanism = pure if kind == "approximate_dp" else QUIET
    append(api, event(0, 1, mechanism=mechanism, sampling=FULL))
    answer = change(api, 2, budget=BUDGET)
    assert answer.status_code == 422
    assert "cannot be revised" in answer.json()["detail"]
    assert state(api)["budget"]["epsilon"] == 4.0


def test_a_limit_below_what_is_spent_freezes_and_is_told(used: httpx.Client) -> None:
    answer = change(used, budget={"epsilon": 0.2, "delta": 1e-5}).json()
    assert answer["budget"]["overdrawn"]
    assert answer["remaining"] == 0
    refused = append(used, step(20, 1), mode="charge")
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, 0)
    kinds = [one["kind"] for one in used.get(f"{URL}/incidents").json()["incidents"]]
    assert kinds[:2] == ["settings_changed", "overdraft"]
    raised = change(used, 2, budget=HIGHER).json()["budget"]
    assert not raised["overdrawn"]
    assert append(used, step(20, 1), mode="charge").status_code == 201


def test_a_raised_limit_admits_more_and_no_more_than_it_says(used: httpx.Client) -> None:
    before = room(used)
    change(used, budget=HIGHER)
    more = room(used)
    assert more > before
    assert append(used, step(20, more), mode="charge").status_code == 201
    assert append(used, step(20 + more, 1), mode="charge").status_code == 409
    assert state(used)["spent"] <= 4.0


def test_every_change_is_kept_with_who_and_why(used: httpx.Client) -> None:
    change(used, budget=HIGHER)
    change(used, 2, reason="proofs of our own", accept=["published", "declared", "derived"])
    assert [one["revision"] for one in history(used)] == [1, 2, 3]
    first, second, third = history(used)
    assert (first["reason"], first["epsilon"], first["sequence"]) == ("creation", 3.0, 0)
    assert (second["reason"], second["epsilon"], second["sequence"]) == ("second study", 4.0, 1)
    assert (second["budget_revision"], second["delta_share"]) == (1, revision_share(1))
    assert second["changed_by"] == "start-token"
    assert third["accept"] == ["declared", "derived", "published"]
    assert third["epsilon"] == 4.0
    page = used.get(f"{URL}/settings", params={"page_size": 2}).json()
    token = page["next_page_token"]
    rest = used.get(f"{URL}/settings", params={"page_token": token}).json()
    assert page["settings"] + rest["settings"] == [first, second, third]
    assert rest["next_page_token"] is None
    (told, _) = used.get(f"{URL}/incidents").json()["incidents"]
    assert told["detail"]["reason"] == "second study"
    assert told["detail"]["limit"] == 4.0


@pytest.mark.parametrize("form", ["1", '"1"'])
def test_the_revision_is_taken_bare_or_quoted(limited: httpx.Client, form: str) -> None:
    body = {"reason": "x", "budget": HIGHER}
    answer = limited.patch(URL, json=body, headers={"If-Match": form})
    assert answer.status_code == 200


@pytest.mark.parametrize("form", ['W/"1"', '"0"', "2", "*", '"1", "2"', '"1', "", "01"])
def test_any_other_revision_is_stale(limited: httpx.Client, form: str) -> None:
    answer = limited.patch(URL, json={"reason": "x", "budget": HIGHER}, headers={"If-Match": form})
    assert (answer.status_code, answer.json()["type"]) == (412, "/problems/precondition-failed")
    assert answer.json()["revision"] == 1
    assert state(limited)["budget"]["epsilon"] == 3.0


def test_without_a_revision_nothing_changes(limited: httpx.Client) -> None:
    answer = change(limited, None, budget=HIGHER)
    assert (answer.status_code, answer.json()["type"]) == (428, "/problems/precondition-required")
    assert len(history(limited)) == 1


def test_of_two_who_decided_on_the_same_settings_one_is_refused(limited: httpx.Client) -> None:
    assert change(limited, budget=HIGHER).status_code == 200
    assert change(limited, budget=HIGHER | {"epsilon": 9.0}).status_code == 412
    assert state(limited)["budget"]["epsilon"] == 4.0


def test_of_many_who_decide_at_the_same_moment_one_changes_the_settings(
    limited: httpx.Client,
) -> None:
    gate = threading.Barrier(8)

    def work(number: int) -> int:
        with httpx.Client(base_url=limited.base_url, timeout=30, headers=AS_ADMIN) as client:
            gate.wait()
            return change(client, budget=HIGHER | {"epsilon": 4.0 + number}).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(8))) == [200] + [412] * 7
    assert len(history(limited)) == 2


@pytest.mark.parametrize(
    ("body", "location"),
    [
        ({}, "body"),
        ({"budget": BUDGET}, "body"),
        ({"accept": ["declared", "published"]}, "body"),
        ({"budget": None}, "body"),
        ({"accept": ["declared"]}, "body.accept"),
        ({"budget": {"epsilon": 4.0}}, "body.budget.delta"),
        ({"budget": HIGHER | {"kind": "gaussian_dp"}}, "body.budget.kind"),
        ({"budget": HIGHER, "reason": ""}, "body.reason"),
    ],
)
def test_what_cannot_be_a_change_is_named(limited: httpx.Client, body: Json, location: str) -> None:
    answer = change(limited, **body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["location"] == location
    assert (state(limited)["revision"], len(history(limited))) == (1, 1)


def test_what_is_accepted_is_counted_anew_for_the_dataset_and_its_runs(api: httpx.Client) -> None:
    # Under replace_one the amplified curve of Poisson sampling is derived.
    given = {"neighboring_relation": "replace_one", "budget": BUDGET}
    setup(api, dataset_given=given, budget=BUDGET)
    append(api, event(0, 10, mechanism=QUIET))
    before, own = state(api)["budget"], api.get("/v1/runs/run").json()["budget"]
    after = change(api, accept=["published", "declared", "derived"]).json()["budget"]
    assert after["spent"] < before["spent"]
    assert after["revision"] == before["revision"]
    assert api.get("/v1/runs/run").json()["budget"]["spent"] < own["spent"]
    assert append(api, event(10, 1, mechanism=QUIET)).json()["budget"] == state(api)["budget"]
    change(api, 2, accept=["published", "declared"])
    append(api, event(11, 1, mechanism=QUIET))
    assert state(api)["spent"] > before["spent"]


def test_only_an_owner_or_an_admin_changes_settings_and_a_viewer_reads_their_history(
    limited: httpx.Client, engine: Engine, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    keys = key_of_each(engine, prefix="some-")
    with serve() as address:
        for scope, key in keys.items():
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=address, headers=headers) as api:
                may = scope in (Role.OWNER, Role.ADMIN)
                frozen = not api.get(URL).json()["frozen"]
                answer = change(api, len(history(api)), frozen=frozen)
                assert answer.status_code == (200 if may else 403)
                assert api.get(f"{URL}/settings").status_code == 200
                last = history(api)
    assert [one["changed_by"] for one in last[-2:]] == ["some-owner", "some-admin"]


def test_a_dataset_that_is_not_there_has_no_settings(api: httpx.Client) -> None:
    assert change(api, budget=HIGHER).status_code == 404
    assert api.get(f"{URL}/settings").status_code == 404


def test_a_limit_that_was_set_anew_says_that_it_rests_on_our_own_proof(
    used: httpx.Client,
) -> None:
    first = state(used)["budget"]["filter"]
    assert (first["theorem"], first["status"]) == ("fixed-order-renyi-filter", "published")
    later = change(used, budget=HIGHER).json()["budget"]["filter"]
    assert (later["theorem"], later["status"]) == ("revised-filter", "derived")


@pytest.mark.parametrize(
    "given",
    [
        {"budget": BUDGET | {"filter": "union_of_orders"}},
        {"budget": BUDGET, "plan": [{"mechanism": QUIET, "sampling": FULL, "steps": 5}]},
    ],
)
def test_a_status_that_the_budget_of_a_run_rests_on_is_not_dropped(
    api: httpx.Client, given: Json
) -> None:
    setup(api, dataset_given={"accept": ["published", "derived"]}, **given)
    answer = change(api, accept=["published"])
    assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, "body.accept")
    assert change(api, accept=["published", "derived", "declared"]).status_code == 200


def test_a_dataset_on_which_nothing_ran_is_not_beyond_its_limit(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 0.002, "delta": 1e-5}})
    budget = state(api)["budget"]
    assert (budget["spent"], budget["remaining"], budget["overdrawn"]) == (0, 0, False)


def test_a_filter_and_orders_that_were_named_before_the_first_answer_stay(
    api: httpx.Client,
) -> None:
    created = dataset(budget=BUDGET, accept=["published", "derived"])
    assert api.post("/v1/datasets", json=created).status_code == 201
    union = BUDGET | {"filter": "union_of_orders", "orders": [4.0, 8.0]}
    assert change(api, 1, budget=union).status_code == 200
    lower = change(api, 2, budget=BUDGET | {"epsilon": 2.5}).json()["budget"]["filter"]
    assert (lower["kind"], lower["orders"]) == ("union_of_orders", [4.0, 8.0])
    one = BUDGET | {"filter": "fixed_order_renyi", "orders": [5.0]}
    assert change(api, 3, budget=one).status_code == 200
    kept = change(api, 4, budget=BUDGET | {"epsilon": 2.0}).json()["budget"]["filter"]
    assert (kept["kind"], kept["orders"]) == ("fixed_order_renyi", [5.0])
    usual = BUDGET | {"filter": "fixed_order_renyi"}
    first = change(api, 5, budget=usual).json()["budget"]["filter"]["orders"]
    second = change(api, 6, budget=BUDGET | {"epsilon": 0.5}).json()["budget"]["filter"]["orders"]
    assert first != second  # chosen anew from the limit


def test_orders_named_after_a_plan_hold_and_items_are_refused_beside_another_filter(
    api: httpx.Client,
) -> None:
    event = {"mechanism": QUIET, "sampling": FULL, "steps": 10}
    created = dataset(budget=BUDGET) | {"for": {"events": [event]}}
    assert api.post("/v1/datasets", json=created).status_code == 201
    named = change(api, 1, budget=BUDGET | {"orders": [3.0]})
    assert named.json()["budget"]["filter"]["orders"] == [3.0]
    refused = change(api, 2, budget=BUDGET | {"envelope": [event]})
    assert refused.status_code == 422
    assert "envelope" in refused.json()["errors"][0]["location"]
