"""Corrections one after another: both accounts are covered, and no correction lowers a sum."""

import httpx
import pytest
from sqlalchemy import Engine

from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run, setup
from tests.service.test_corrections import budget, correct, forget_sums, other

QUIET, MIDDLE, LOUD = (
    {"kind": "gaussian", "noise_multiplier": sigma} for sigma in (20.0, 15.0, 10.0)
)
CHILDREN = {"all": "exactly_one", "some": "at_most_one"}
LARGE: Json = {"epsilon": 30.0, "delta": 1e-5}


@pytest.fixture
def family(api: httpx.Client) -> httpx.Client:
    """A dataset and two that were made from it, each with loud and quiet steps."""
    common = {"neighboring_relation": "replace_special", "budget": LARGE}
    for name in ("data", *CHILDREN):
        made = {"parents": ["data"], "rows_per_parent_record": CHILDREN.get(name)}
        given = common | (made if name in CHILDREN else {})
        answer = api.post("/v1/datasets", json=dataset(name, **given))
        assert answer.status_code == 201, answer.text
        named = run(f"in-{name}", dataset=name, budget=LARGE)
        assert api.post("/v1/runs", json=named).status_code == 201
        recorded = (
            event(0, 20, mechanism=LOUD, sampling=FULL),
            event(20, 20, mechanism=QUIET, sampling=FULL),
        )
        assert append(api, *recorded, run=f"in-{name}").status_code == 201
    return api


def less(api: httpx.Client, name: str, sampling: Json = FULL) -> None:
    """Ten loud steps of a dataset's run were quiet."""
    told = event(0, 10, mechanism=QUIET, sampling=sampling)
    assert correct(api, told, run_name=f"in-{name}").status_code == 201


def more(api: httpx.Client, name: str, sampling: Json = FULL) -> None:
    """Ten quiet steps of a dataset's run were loud."""
    told = event(20, 10, mechanism=LOUD, sampling=sampling)
    assert correct(api, told, run_name=f"in-{name}").status_code == 201


def budgets(api: httpx.Client) -> list[Json]:
    runs = [api.get(f"/v1/runs/in-{name}").json()["budget"] for name in ("data", *CHILDREN)]
    return [*(budget(api, name) for name in ("data", *CHILDREN)), *runs]


def require_same(api: httpx.Client, engine: Engine) -> None:
    """The writer, what it stored and what is folded anew agree."""
    steps = [api.get(f"/v1/runs/in-{name}").json()["next_step"] for name in ("data", *CHILDREN)]
    for name, at in zip(("data", *CHILDREN), steps, strict=True):
        further = event(at, 1, mechanism=QUIET, sampling=FULL)
        told = append(api, further, run=f"in-{name}").json()["budget"]
        assert budget(api, name) == told
    stored = budgets(api)
    forget_sums(engine)
    assert budgets(api) == stored


@pytest.mark.parametrize("first", CHILDREN)
@pytest.mark.parametrize("second", CHILDREN)
def test_in_a_parent_they_count_in_the_order_they_were_told(
    family: httpx.Client, engine: Engine, first: str, second: str
) -> None:
    before = budget(family)["spent"]
    less(family, first)
    assert budget(family)["spent"] == before
    more(family, second)  # what the other was told to cost less makes up for it
    assert budget(family)["spent"] == before
    require_same(family, engine)


@pytest.mark.parametrize("first", CHILDREN)
@pytest.mark.parametrize("second", CHILDREN)
def test_in_a_parent_what_was_enforced_once_stays(
    family: httpx.Client, engine: Engine, first: str, second: str
) -> None:
    before = budget(family)["spent"]
    more(family, first)
    after = budget(family)["spent"]
    assert after > before
    less(family, second)
    assert budget(family)["spent"] == after
    require_same(family, engine)


def test_full_batches_that_were_passes_make_room_for_them_in_the_corrected_account(
    family: httpx.Client, engine: Engine
) -> None:
    passes = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}
    before = budget(family)["spent"]
    less(family, "all", passes)  # ten full batches were at most two passes
    assert budget(family)["spent"] == before
    more(family, "all", passes)
    assert budget(family)["spent"] == before
    require_same(family, engine)
    again = budget(family)["spent"]
    more(family, "some", FULL)
    assert budget(family)["spent"] >= again
    require_same(family, engine)


@pytest.mark.parametrize("steps", [6, 10])
def test_over_several_entries_the_larger_of_both_accounts_counts(
    api: httpx.Client, steps: int
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    quiet = event(0, 20, mechanism=QUIET, sampling=FULL)
    append(api, quiet, event(20, 10, mechanism=LOUD, sampling=FULL))
    before = budget(api)
    told = event(15, steps, mechanism=MIDDLE, sampling=FULL)
    assert correct(api, told).status_code == 201
    # Five steps were louder than they were told; the others were quieter.
    rest = event(15 + steps, 15 - steps, mechanism=LOUD, sampling=FULL)
    really = other(api, quiet | {"steps": 15}, told, rest)
    assert budget(api) == max(before, really, key=lambda one: one["spent"])
    assert (really["spent"] > before["spent"]) == (steps == 6)
