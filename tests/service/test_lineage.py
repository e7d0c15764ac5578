"""Lineage: what was made from a dataset spends its budget, under whatever name."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.ledger.append.state_rows import tally_of
from service.ledger.lookups import find_dataset
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets
from tests.conftest import AS_ADMIN
from tests.service.samples import BALLS, BUDGET, FULL, POISSON, Json, append, dataset, event, run
from tests.service.test_reservations import expire, reserve

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
SMALL: Json = {"epsilon": 1.0, "delta": 1e-5}
LARGE: Json = {"epsilon": 8.0, "delta": 1e-5}
FIXED: Json = {"kind": "fixed_size", "batch_size": 600}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 20_000, "steps_per_pass": 3}  # three steps a pass


@pytest.fixture
def alone(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[httpx.Client]:
    """A service that has seen no other test's datasets, whose numbers SQLite gives out again."""
    with serve() as address, httpx.Client(base_url=address, timeout=30, headers=AS_ADMIN) as client:
        yield client


def step(first_step: int, steps: int, *, mechanism: Json = QUIET, sampling: Json = FULL) -> Json:
    return event(first_step, steps, mechanism=mechanism, sampling=sampling)


def create(api: httpx.Client, name: str, *parents: str, **given: Any) -> httpx.Response:
    attested = {"parents": list(parents), "rows_per_parent_record": "at_most_one"}
    body = dataset(name, **((attested if parents else {}) | given))
    return api.post("/v1/datasets", json=body)


def made(api: httpx.Client, name: str, *parents: str, **given: Any) -> None:
    """A dataset, and a run of the same name in it."""
    answer = create(api, name, *parents, **given)
    assert answer.status_code == 201, answer.text
    assert api.post("/v1/runs", json=run(name, dataset=name)).status_code == 201


def charge(api: httpx.Client, name: str, steps: int = 1, **given: Any) -> httpx.Response:
    first = api.get(f"/v1/runs/{name}").json()["next_step"]
    return append(api, step(first, steps, **given), run=name, mode="charge")


def fitting(api: httpx.Client, name: str) -> int:
    """How many steps a refusal says would fit."""
    refused = charge(api, name, 10**9)
    assert refused.status_code == 409, refused.text
    found: int = refused.json()["admissible_steps"]
    return found


def budget(api: httpx.Client, name: str) -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


def failing(refused: httpx.Response) -> list[str]:
    assert refused.status_code == 409, refused.text
    return [scope["scope"] for scope in refused.json()["failing_scopes"]]


def test_a_child_spends_its_parents_budget(alone: httpx.Client) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "child", "top", budget=LARGE)
    assert api.get("/v1/datasets/child").json()["parents"] == ["top"]
    fits = fitting(api, "child")
    assert fits == fitting(api, "top")
    assert charge(api, "child", fits).status_code == 201
    assert failing(charge(api, "child")) == ["dataset:top"]
    assert failing(charge(api, "top")) == ["dataset:top"]
    assert 0 < budget(api, "top")["spent"] <= SMALL["epsilon"]
    assert not budget(api, "child")["overdrawn"]


def test_a_refusal_names_every_scope_that_fails_at_once(alone: httpx.Client) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "child", "top", budget=SMALL)
    api.post("/v1/runs", json=run("own", dataset="child", budget=SMALL))
    refused = charge(api, "own", 10**6)
    assert sorted(failing(refused)) == ["dataset:child", "dataset:top", "run:own"]
    assert refused.json()["admissible_steps"] == fitting(api, "top")
    assert api.get("/v1/datasets/top").json()["sequence"] == 0


def test_two_children_share_their_parents_budget(alone: httpx.Client) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "left", "top")
    made(api, "right", "top")
    fits = fitting(api, "left")
    assert charge(api, "left", fits // 2).status_code == 201
    assert fitting(api, "right") == fits - fits // 2
    assert charge(api, "right", fits - fits // 2).status_code == 201
    assert failing(charge(api, "left")) == failing(charge(api, "right")) == ["dataset:top"]
    assert api.get("/v1/datasets/left").json()["budget"] is None


def test_a_copy_of_a_copy_under_another_name_escapes_nothing(alone: httpx.Client) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "copy", "top", rows_per_parent_record="exactly_one")
    fits = fitting(api, "copy")
    assert charge(api, "copy", fits).status_code == 201
    made(api, "renamed", "copy", budget=LARGE, rows_per_parent_record="exactly_one")
    assert failing(charge(api, "renamed")) == ["dataset:top"]
    assert budget(api, "renamed")["spent"] == 0  # of runs on itself alone


def test_a_parents_guarantee_holds_for_all_that_was_made_from_it(alone: httpx.Client) -> None:
    api = alone
    made(api, "top", budget=LARGE)
    made(api, "child", "top")
    made(api, "grandchild", "child")
    for name, steps in (("top", 3), ("child", 4), ("grandchild", 5)):
        assert charge(api, name, steps).status_code == 201
    asked = {"delta": 1e-5}
    found = {
        name: api.get(f"/v1/datasets/{name}/guarantee", params=asked).json()["steps"]
        for name in ("top", "child", "grandchild")
    }
    assert found == {"top": 12, "child": 9, "grandchild": 5}
    made(api, "plain", budget=LARGE)
    charge(api, "plain", 12)
    for path in ("", "/guarantee"):
        whole, same = (
            api.get(f"/v1/datasets/{name}{path}", params=asked if path else {}).json()
            for name in ("top", "plain")
        )
        key = "epsilon" if path else "spent"
        assert whole[key] == same[key] > 0


@pytest.mark.parametrize("rows", ["at_most_one", "exactly_one"])
@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "replace_special"])
def test_each_relation_restates_a_childs_batches_as_proved(
    alone: httpx.Client, relation: str, rows: str
) -> None:
    api = alone
    given = {"neighboring_relation": relation, "accept": ["published", "declared", "derived"]}
    made(api, "top", budget=LARGE, **given)
    made(api, "child", "top", budget=LARGE, rows_per_parent_record=rows, **given)
    assert charge(api, "child", 4, sampling=POISSON).status_code == 201
    assert budget(api, "top")["spent"] == budget(api, "child")["spent"]
    assert charge(api, "child", 4, sampling=FIXED).status_code == 201
    top, child = budget(api, "top")["spent"], budget(api, "child")["spent"]
    left_out = rows == "at_most_one" and relation != "add_or_remove_one"
    assert top > child if left_out else top == child
    made(api, "plain", budget=LARGE, **given)
    reach = {"replace_one": 1, "replace_special": 2}.get(relation, 1)
    full = {"kind": "gaussian", "noise_multiplier": 20.0 / reach}
    charge(api, "plain", 4, sampling=POISSON)
    charge(api, "plain", 4, mechanism=full) if left_out else charge(api, "plain", 4, sampling=FIXED)
    assert top == budget(api, "plain")["spent"]


def test_what_says_nothing_of_a_missing_row_is_refused_for_the_parent(alone: httpx.Client) -> None:
    api = alone
    given = {"neighboring_relation": "replace_one"}
    made(api, "top", budget=LARGE, **given)
    made(api, "child", "top", **given)
    box = {"kind": "approximate_dp", "epsilon": 0.1, "delta": 0.0}
    cyclic = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    for more in ({"mechanism": box}, {"sampling": cyclic}, {"sampling": {"kind": "unknown"}}):
        refused = charge(api, "child", **more)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/unsupported-event")
        assert "dataset:top" in refused.json()["detail"]
        assert charge(api, "top", **more).status_code == 201
    assert append(api, step(0, 3, sampling=cyclic), run="child").json()["verdict"] == "overdraft"
    assert budget(api, "top")["spent"] is None
    made(api, "whole", "top", rows_per_parent_record="exactly_one", **given)
    assert charge(api, "whole").status_code == 409  # frozen


def test_a_copy_with_every_record_counts_passes_as_its_parent_would(alone: httpx.Client) -> None:
    api = alone
    given = {"neighboring_relation": "replace_one"}
    made(api, "top", budget=LARGE, **given)
    made(api, "copy", "top", rows_per_parent_record="exactly_one", budget=LARGE, **given)
    cyclic = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}
    for _ in range(3):
        assert charge(api, "copy", 7, sampling=cyclic).status_code == 201
        assert budget(api, "top") == budget(api, "copy")


@pytest.mark.parametrize("first", ["at_most_one", "exactly_one"])
@pytest.mark.parametrize("second", ["at_most_one", "exactly_one"])
def test_a_record_has_its_row_at_the_end_of_a_path_only_if_it_has_one_at_each_step(
    alone: httpx.Client, first: str, second: str
) -> None:
    api = alone
    given = {"neighboring_relation": "replace_one"}
    made(api, "top", budget=LARGE, **given)
    made(api, "child", "top", rows_per_parent_record=first, **given)
    made(api, "grandchild", "child", rows_per_parent_record=second, **given)
    answer = charge(
        api, "grandchild", sampling={"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}
    )
    assert answer.status_code == (201 if first == second == "exactly_one" else 422)


@pytest.mark.parametrize(
    ("given", "parents", "status", "location"),
    [
        ({}, ["nobody"], 404, None),
        ({"neighboring_relation": "replace_one"}, ["top"], 422, "body.parents[0]"),
        ({"privacy_unit": "household"}, ["top"], 422, "body.parents[0]"),
        ({"rows_per_parent_record": None}, ["top"], 422, "body.rows_per_parent_record"),
        ({"rows_per_parent_record": "exactly_one"}, [], 422, "body.rows_per_parent_record"),
        ({}, ["top", "child"], 422, "body.parents[1]"),
        ({}, ["child", "sibling"], 422, "body.parents[1]"),
        ({}, ["top", "top"], 422, "body.parents[1]"),
        ({}, ["new"], 422, "body.parents[0]"),
    ],
)
def test_parents_that_prove_nothing_are_refused(
    alone: httpx.Client, given: Json, parents: list[str], status: int, location: str | None
) -> None:
    api = alone
    made(api, "top")
    made(api, "child", "top")
    made(api, "sibling", "top")
    refused = create(api, "new", *parents, **given)
    assert refused.status_code == status, refused.text
    if location is not None:
        assert refused.json()["errors"][0]["location"] == location
    assert api.get("/v1/datasets/new").status_code == 404


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_one", "replace_special"])
@pytest.mark.parametrize(
    ("size", "parents", "rows", "status"),
    [
        (5999, ["six"], "exactly_one", 422),
        (6000, ["six"], "exactly_one", 201),
        (6001, ["six"], "exactly_one", 201),  # rows of no parent: public ones
        (6000, ["six", "four"], "exactly_one", 422),  # each alone would fit
        (9999, ["four", "six"], "exactly_one", 422),
        (10_000, ["six", "four"], "exactly_one", 201),
        (1, ["six", "four"], "at_most_one", 201),
    ],
)
def test_exactly_one_is_refused_of_a_dataset_with_fewer_rows_than_its_parents_have_records(
    alone: httpx.Client, relation: str, size: int, parents: list[str], rows: str, status: int
) -> None:
    api, given = alone, {"neighboring_relation": relation}
    made(api, "six", dataset_size=6000, **given)
    made(api, "four", dataset_size=4000, **given)
    attested = given | {"dataset_size": size, "rows_per_parent_record": rows}
    answer = create(api, "child", *parents, **attested)
    assert answer.status_code == status, answer.text
    if status == 201:
        assert create(api, "child", *parents, **attested).status_code == 200
        return
    (fault,) = answer.json()["errors"]
    records = sum({"six": 6000, "four": 4000}[name] for name in parents)
    assert fault["location"] == "body.dataset_size"
    assert f"must be at least {records}" in fault["message"]
    assert api.get("/v1/datasets/child").status_code == 404


def test_parents_without_a_common_ancestor_are_both_spent(alone: httpx.Client) -> None:
    api = alone
    made(api, "a", budget=SMALL)
    made(api, "b", budget=LARGE)
    made(api, "both", "a", "b")
    assert api.get("/v1/datasets/both").json()["parents"] == ["a", "b"]
    assert charge(api, "both", 3).status_code == 201
    assert budget(api, "a")["spent"] > 0
    assert budget(api, "b")["spent"] > 0
    assert failing(charge(api, "both", 10**6)) == ["dataset:a", "dataset:b"]
    again = create(api, "both", "a", "b")
    assert again.status_code == 200


def test_what_a_child_reserves_is_held_by_its_parent_and_forfeited_there(
    alone: httpx.Client, engine: Engine
) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "child", "top")
    fits = fitting(api, "top")
    assert reserve(api, "lease", fits, run_name="child").status_code == 201
    held = budget(api, "top")
    assert (held["spent"], held["reserved"] > 0) == (0, True)
    assert failing(charge(api, "top")) == ["dataset:top"]
    assert reserve(api, "more", 1, run_name="child").status_code == 409
    expire(engine, "lease")
    lost = budget(api, "top")
    assert (lost["spent"], lost["reserved"]) == (held["reserved"], 0)
    back = api.post("/v1/reservations/lease:release", json={"last_step": -1})
    assert back.status_code == 200
    assert budget(api, "top")["spent"] == budget(api, "top")["reserved"] == 0
    assert charge(api, "top").status_code == 201


def refolded(api: httpx.Client, engine: Engine, name: str) -> Any:
    with transaction(engine) as connection:
        connection.execute(datasets.update().values(totals=None, version=datasets.c.version + 1))
    return budget(api, name)


@pytest.mark.parametrize("relation", ["replace_one", "replace_special"])
def test_passes_of_a_child_are_counted_once_in_its_parent_however_often_it_is_read(
    alone: httpx.Client, engine: Engine, relation: str
) -> None:
    made(alone, "top", neighboring_relation=relation)
    made(alone, "child", "top", neighboring_relation=relation)
    for sampling in (CYCLIC, BALLS):
        charged = charge(alone, "child", 4, sampling=sampling)
        assert charged.status_code == 201, charged.text
    ahead = {"sampling": CYCLIC}
    assert reserve(alone, "lease", 5, run_name="child", event=ahead).status_code == 201
    sums = []
    for _ in range(2):
        with snapshot(engine) as connection:
            sums.append(tally_of(connection, find_dataset(connection, "top")).sums())
        refolded(alone, engine, "top")
    assert sums[0] == sums[1]
    assert any(sums[0].spent)


def test_children_and_parent_race_and_neither_deadlock_nor_pass_the_limit(
    alone: httpx.Client, engine: Engine
) -> None:
    api = alone
    made(api, "top", budget=BUDGET)
    made(api, "left", "top", budget=LARGE)
    made(api, "right", "top", budget=LARGE)
    names = ["top", "left", "right"] * 4
    for index, name in enumerate(names):
        api.post("/v1/runs", json=run(f"race{index}", dataset=name))
    gate = threading.Barrier(len(names))
    fits = fitting(api, "top")
    each = max(1, fits // 40)

    def work(index: int) -> int:
        done = 0
        with httpx.Client(base_url=api.base_url, timeout=60, headers=AS_ADMIN) as client:
            gate.wait()
            for _ in range(8):
                answer = append(client, step(done, each), run=f"race{index}", mode="charge")
                assert answer.status_code in (201, 409), answer.text
                done += each * (answer.status_code == 201)
        return done

    with ThreadPoolExecutor(len(names)) as pool:
        done = sum(pool.map(work, range(len(names))))
    assert fits - each < done <= fits
    state = budget(api, "top")
    assert 0 < state["spent"] <= BUDGET["epsilon"]
    assert refolded(api, engine, "top") == state


def test_two_processes_that_share_a_database_see_each_others_steps(
    serve: Callable[..., AbstractContextManager[str]], alone: httpx.Client
) -> None:
    api = alone
    made(api, "top", budget=SMALL)
    made(api, "child", "top", budget=LARGE)
    fits = fitting(api, "top")
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as other:
        for turn in range(6):
            one, name = ((api, "top"), (other, "child"))[turn % 2]
            assert charge(one, name).status_code == 201
        assert fitting(api, "child") == fitting(other, "top") == fits - 6
        assert budget(api, "top") == budget(other, "top")
