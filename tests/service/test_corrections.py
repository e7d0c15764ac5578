"""Corrections: beside the record, for a reason; what is enforced only ever grows by them."""

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.events import NeighboringRelation
from service.guarantees.recorded_facts import dataset_facts
from service.identity.keys import Role
from service.ledger.append.state_rows import run_tally, tally_of
from service.ledger.budgets.budget import accept_of, dataset_filter
from service.ledger.lookups import find_dataset, find_run
from service.storage.engine import snapshot, transaction
from service.storage.tables import datasets, runs
from tests.conftest import AS_ADMIN
from tests.service.office import key_of_each
from tests.service.samples import (
    BALLS,
    BUDGET,
    FULL,
    WRITER,
    Json,
    append,
    dataset,
    event,
    run,
    setup,
)

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 20.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 10.0}
MIDDLE: Json = {"kind": "gaussian", "noise_multiplier": 15.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass
SHORT: Json = {"kind": "balls_and_bins", "steps_per_pass": 4}
URL = "/v1/runs/run/corrections"


def step(first_step: int, steps: int, *, mechanism: Json = QUIET, sampling: Json = FULL) -> Json:
    return event(first_step, steps, mechanism=mechanism, sampling=sampling)


def correct(
    api: httpx.Client, really: Json, *, run_name: str = "run", **given: Any
) -> httpx.Response:
    body = {"reason": "the log says so"} | really | given
    return api.post(f"/v1/runs/{run_name}/corrections", json=body)


def budget(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


def forget_sums(engine: Engine) -> None:
    """Let every sum be folded anew, as after a change of the accounting."""
    with transaction(engine) as connection:
        connection.execute(datasets.update().values(totals=None, version=datasets.c.version + 1))
        connection.execute(runs.update().values(totals=None))


@pytest.fixture
def used(api: httpx.Client) -> httpx.Client:
    """Twenty quiet steps, in two entries."""
    setup(api, dataset_given={"budget": BUDGET})
    append(api, step(0, 12))
    append(api, step(12, 8))
    return api


def other(api: httpx.Client, *events: Json) -> Any:
    """The budget of another dataset in which these steps alone were recorded."""
    assert api.post("/v1/datasets", json=dataset("other", budget=BUDGET)).status_code == 201
    assert api.post("/v1/runs", json=run("there", dataset="other")).status_code == 201
    assert append(api, *events, run="there").status_code == 201
    return budget(api, "other")


def test_less_noise_costs_the_difference_and_no_more(used: httpx.Client, engine: Engine) -> None:
    answer = correct(used, step(10, 5, mechanism=LOUD))
    assert answer.status_code == 201, answer.text
    told = other(used, step(0, 15), step(15, 5, mechanism=LOUD))
    assert budget(used) == told
    forget_sums(engine)
    assert budget(used) == told
    append(used, step(20, 3))  # the writer goes on from the same sums, and stores them
    again = append(used, step(15 + 5, 3), run="there").json()["budget"]
    assert budget(used) == again
    forget_sums(engine)
    assert budget(used) == again


def test_more_noise_changes_nothing_that_is_enforced(used: httpx.Client, engine: Engine) -> None:
    before = budget(used)
    assert (
        correct(used, step(0, 20, mechanism=QUIET | {"noise_multiplier": 40.0})).status_code == 201
    )
    assert budget(used) == before
    forget_sums(engine)
    assert budget(used) == before


def test_a_correction_is_told_as_it_was_made_and_the_record_stays(used: httpx.Client) -> None:
    answer = correct(used, step(0, 5, mechanism=LOUD)).json()
    assert answer.pop("recorded_at").endswith("+00:00")
    told = {**step(0, 5, mechanism=LOUD), "run": "run", "branch": "main", "sequence": 2}
    assert answer == told | {"reason": "the log says so", "corrected_by": "start-token"}
    assert used.get("/v1/datasets/data").json()["sequence"] == 2
    assert used.get("/v1/runs/run").json()["steps"] == 20
    document = used.get("/v1/runs/run/ledger").json()
    assert document["events"] == [step(0, 20)]
    (incident, *_) = used.get("/v1/datasets/data/incidents").json()["incidents"]
    assert (incident["kind"], incident["run"]) == ("correction", "run")
    assert incident["detail"]["reason"] == "the log says so"


def test_the_same_again_is_the_same_and_another_of_the_same_steps_a_conflict(
    used: httpx.Client,
) -> None:
    first = correct(used, step(0, 5, mechanism=LOUD))
    after = budget(used)
    again = correct(used, step(0, 5, mechanism=LOUD))
    assert (again.status_code, again.json()) == (200, first.json())
    for really, given in (
        (step(0, 5, mechanism=MIDDLE), {}),
        (step(0, 5, mechanism=LOUD), {"reason": "another"}),
        (step(4, 1, mechanism=LOUD), {}),
        (step(0, 6, mechanism=LOUD), {}),
    ):
        refused = correct(used, really, **given)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    assert budget(used) == after
    assert correct(used, step(5, 1, mechanism=LOUD)).status_code == 201


def test_only_recorded_steps_are_corrected(used: httpx.Client) -> None:
    branch = {"name": "again", "writer": WRITER, "from_step": 10, "order": "fresh"}
    assert used.post("/v1/runs/run/branches", json=branch).status_code == 201
    append(used, step(10, 2), branch="again")
    for first, steps, name in ((20, 1, "main"), (19, 2, "main"), (9, 2, "again"), (11, 2, "again")):
        refused = correct(used, step(first, steps, mechanism=LOUD), branch=name)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/out-of-sequence")
        assert refused.json()["expected_step"] == (20 if name == "main" else 12)
    assert correct(used, step(10, 2, mechanism=LOUD), branch="again").status_code == 201
    assert correct(used, step(10, 2, mechanism=LOUD)).status_code == 201  # steps of their own
    assert correct(used, step(0, 1), branch="nowhere").status_code == 404
    assert correct(used, step(0, 1), run_name="nobody").status_code == 404


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"sampling": {"kind": "fixed_size", "batch_size": 60001}}, "body.sampling.batch_size"),
        ({"reason": ""}, "body.reason"),
        ({"steps": 0}, "body.steps"),
        ({"first_step": -1}, "body.first_step"),
    ],
)
def test_what_cannot_be_a_correction_is_named(
    used: httpx.Client, given: Json, location: str
) -> None:
    answer = correct(used, step(0, 1) | given)
    assert (answer.status_code, answer.json()["errors"][0]["location"]) == (422, location)
    assert used.get(URL).json() == {"corrections": [], "next_page_token": None}


def test_facts_that_are_worse_than_told_can_overdraw(used: httpx.Client) -> None:
    bad = {"kind": "gaussian", "noise_multiplier": 1.0}
    assert correct(used, step(3, 4, mechanism=bad)).status_code == 201
    assert budget(used)["overdrawn"]
    refused = append(used, step(20, 1), mode="charge")
    assert (refused.status_code, refused.json()["admissible_steps"]) == (409, 0)
    kinds = [one["kind"] for one in used.get("/v1/datasets/data/incidents").json()["incidents"]]
    assert kinds[:2] == ["correction", "overdraft"]


def test_what_had_no_noise_is_infinite_and_what_was_infinite_stays_so(
    used: httpx.Client, engine: Engine
) -> None:
    assert correct(used, step(0, 1, mechanism={"kind": "none"})).status_code == 201
    assert (budget(used)["spent"], budget(used)["overdrawn"]) == (None, True)
    assert used.post("/v1/datasets", json=dataset("other", budget=BUDGET)).status_code == 201
    used.post("/v1/runs", json=run("there", dataset="other"))
    append(used, step(0, 1, mechanism={"kind": "none"}), run="there")
    assert correct(used, step(0, 1), run_name="there").status_code == 201
    assert budget(used, "other")["spent"] is None
    forget_sums(engine)
    assert budget(used)["spent"] is budget(used, "other")["spent"] is None


@pytest.fixture
def alone(serve: Callable[..., AbstractContextManager[str]]) -> Iterator[httpx.Client]:
    """A service that has seen no other test's datasets, whose numbers SQLite gives out again."""
    with serve() as address, httpx.Client(base_url=address, headers=AS_ADMIN) as client:
        yield client


def derive(api: httpx.Client, rows: str, **run_given: Any) -> None:
    """A dataset made from another, and a run in it."""
    given: Json = {"neighboring_relation": "replace_one", "budget": BUDGET}
    parents: Json = {"parents": ["top"], "rows_per_parent_record": rows}
    assert api.post("/v1/datasets", json=dataset("top", **given)).status_code == 201
    assert api.post("/v1/datasets", json=dataset(**parents, **given)).status_code == 201
    assert api.post("/v1/runs", json=run(**run_given)).status_code == 201
    assert append(api, step(0, 12)).status_code == 201


@pytest.mark.parametrize("rows", ["at_most_one", "exactly_one"])
def test_every_scope_counts_it(alone: httpx.Client, engine: Engine, rows: str) -> None:
    api = alone
    derive(api, rows, budget={"epsilon": 4.0, "delta": 1e-6})

    def scopes() -> list[Any]:
        own = api.get("/v1/runs/run").json()["budget"]
        return [budget(api, "top"), budget(api), own]

    before = scopes()
    assert correct(api, step(0, 5, mechanism=LOUD)).status_code == 201
    after = scopes()
    assert all(b["spent"] > a["spent"] for a, b in zip(before, after, strict=True))
    assert after[0]["spent"] == after[1]["spent"]
    forget_sums(engine)
    assert scopes() == after
    told = append(api, step(12, 1)).json()
    forget_sums(engine)
    assert told["budget"] == budget(api)


def test_a_parent_whose_records_may_be_left_out_counts_a_corrected_sampling(
    alone: httpx.Client, engine: Engine
) -> None:
    api = alone
    derive(api, "at_most_one")
    really = step(0, 5, sampling={"kind": "unknown"})
    assert correct(api, really).status_code == 201
    for _ in range(2):
        assert budget(api)["spent"] is not None
        assert budget(api, "top")["spent"] is None
        forget_sums(engine)


def test_an_appends_guarantee_counts_corrections_too(used: httpx.Client, engine: Engine) -> None:
    correct(used, step(0, 5, mechanism=LOUD))
    used.post("/v1/runs", json=run("plain"))
    for _ in range(2):
        told = append(used, step(0, 1)).json()  # known before: nothing is recorded
        assert told["accepted"] == 0
        corrected = used.get("/v1/runs/run/guarantee").json()["corrected_epsilon"]
        assert told["guarantee"]["epsilon"] >= corrected
        forget_sums(engine)
        append(used, step(0, 1), run="plain")


def test_a_plan_that_was_not_kept_to_no_longer_holds_its_run(api: httpx.Client) -> None:
    setup(
        api,
        dataset_given={"budget": {"epsilon": 8.0, "delta": 1e-5}},
        budget=BUDGET,
        plan=[{"mechanism": QUIET, "sampling": FULL, "steps": 20}],
    )
    assert append(api, step(0, 5), mode="charge").status_code == 201
    assert api.get("/v1/runs/run").json()["on_plan"] is True
    assert correct(api, step(0, 5, mechanism=LOUD)).status_code == 201
    found = api.get("/v1/runs/run").json()
    assert (found["on_plan"], found["budget"]["valid_for"]) == (False, "adaptive")


RELATION = NeighboringRelation.REPLACE_SPECIAL
KINDS: list[tuple[Json, Json]] = [
    (QUIET, FULL), (LOUD, {"kind": "poisson", "sampling_probability": 0.01}), (QUIET, CYCLIC),
    (LOUD, SHORT), (MIDDLE, FULL), (QUIET, BALLS), (MIDDLE, CYCLIC), (LOUD, CYCLIC),
]  # fmt: skip
REALLY: list[tuple[Json, Json]] = [*KINDS, (LOUD, CYCLIC), (MIDDLE, SHORT), (QUIET, SHORT)]


@pytest.mark.parametrize("seed", range(8))
def test_both_accounts_are_enforced_whatever_was_corrected(
    api: httpx.Client, engine: Engine, seed: int
) -> None:
    chance = random.Random(seed)
    given = {"neighboring_relation": RELATION, "budget": {"epsilon": 100.0, "delta": 1e-5}}
    setup(api, dataset_given=given, budget={"epsilon": 100.0, "delta": 1e-5})
    first = 0
    for _ in range(8):
        steps = chance.choice([1, 3, 7, 14])
        mechanism, sampling = chance.choice(KINDS)
        append(api, step(first, steps, mechanism=mechanism, sampling=sampling))
        first += steps
    at = 0
    while (at := at + chance.randrange(6)) < first - 6:
        steps = chance.randrange(1, 7)
        mechanism, sampling = chance.choice(REALLY)
        body = step(at, steps, mechanism=mechanism, sampling=sampling)
        assert correct(api, body).status_code == 201
        at += steps
    append(api, step(first, 9, sampling=CYCLIC))
    for _ in range(2):
        _require_both(engine)
        forget_sums(engine)


def _require_both(engine: Engine) -> None:
    with snapshot(engine) as connection:
        row, own = find_dataset(connection, "data"), find_run(connection, "run")
        enforced = [tally_of(connection, row), run_tally(connection, row, own)]
        accounts = dataset_facts(connection, row).accounts
        held_by, accept = dataset_filter(row), accept_of(row)
    assert len(accounts) == 2
    totals = [held_by.total(one, relation=RELATION, accept=accept) for one in accounts]
    for accumulator in enforced:
        assert accumulator is not None
        spent = accumulator.sums().spent
        for total in totals:
            assert all(part <= whole for part, whole in zip(total, spent, strict=True))


def test_the_writer_and_the_database_agree_about_passes(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"neighboring_relation": RELATION, "budget": BUDGET})
    append(api, step(0, 25, sampling=CYCLIC))
    assert budget(api) == append(api, step(25, 1, sampling=CYCLIC)).json()["budget"]
    before = budget(api)
    quieter = step(3, 4, mechanism=QUIET | {"noise_multiplier": 30.0}, sampling=CYCLIC)
    correct(api, quieter)
    assert budget(api) == before
    correct(api, step(8, 6, mechanism=LOUD, sampling=CYCLIC))  # of two passes
    told = append(api, step(26, 1, sampling=CYCLIC)).json()["budget"]
    assert told["spent"] > before["spent"]
    forget_sums(engine)
    assert budget(api) == told
    correct(api, step(20, 1))  # a full batch in between: the loader began anew after it
    told = append(api, step(27, 1, sampling=CYCLIC)).json()["budget"]
    forget_sums(engine)
    assert budget(api) == told
    # Where passes begin then hangs on the account; a louder step may lie in one more of them.
    for first, multiplier in ((28, 2.0), (38, 100.0), (48, 100.0)):
        mechanism = QUIET | {"noise_multiplier": multiplier}
        body = step(first, 10, mechanism=mechanism, sampling=CYCLIC)
        told = append(api, body).json()["budget"]
        assert budget(api) == told
    forget_sums(engine)
    assert budget(api) == told


def test_a_budget_counts_passes_that_a_correction_shifted(
    api: httpx.Client, engine: Engine
) -> None:
    given = {
        "neighboring_relation": RELATION,
        "budget": {"epsilon": 26.0, "delta": 1e-5, "orders": [2.0]},
    }
    setup(api, dataset_given=given, budget={"epsilon": 26.0, "delta": 1e-5, "orders": [2.0]})
    loud, quiet = ({"kind": "gaussian", "noise_multiplier": sigma} for sigma in (2.0, 1000.0))
    loader = {"kind": "cyclic", "batch_size": 6_000, "steps_per_pass": 10}
    parts = [
        step(first + 20 * one, steps, mechanism=mechanism, sampling=loader)
        for one in range(50)
        for first, steps, mechanism in ((0, 2, loud), (2, 18, quiet))
    ]
    assert append(api, *parts, mode="charge").status_code == 201
    assert correct(api, step(10, 1, mechanism=quiet)).status_code == 201
    found = budget(api)
    assert found["overdrawn"]
    assert api.get("/v1/runs/run").json()["budget"]["spent"] == found["spent"]
    guarantee = api.get("/v1/datasets/data/guarantee").json()
    assert found["spent"] >= guarantee["epsilon"] == guarantee["corrected_epsilon"]
    forget_sums(engine)
    assert budget(api) == found
    assert api.get("/v1/runs/run").json()["budget"]["spent"] == found["spent"]


def test_corrections_are_listed_in_pages(used: httpx.Client) -> None:
    for first in range(3):
        correct(used, step(first, 1, mechanism=LOUD))
    page = used.get(URL, params={"page_size": 2}).json()
    rest = used.get(URL, params={"page_token": page["next_page_token"]}).json()
    found = page["corrections"] + rest["corrections"]
    assert ([one["first_step"] for one in found], rest["next_page_token"]) == ([0, 1, 2], None)
    assert used.get("/v1/runs/nobody/corrections").status_code == 404


def test_only_an_owner_or_an_admin_corrects_and_a_viewer_reads_it(
    used: httpx.Client, engine: Engine, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    keys = key_of_each(engine, prefix="a-")
    with serve() as address:
        for scope, key in keys.items():
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=address, headers=headers) as api:
                answer = correct(api, step(0, 1, mechanism=LOUD))
                expected = {Role.OWNER: 201, Role.ADMIN: 200}  # the same again
                assert answer.status_code == expected.get(scope, 403)
                found = api.get(URL).json()["corrections"]
    assert [one["corrected_by"] for one in found] == ["a-owner"]
