"""Steps that are held ahead where a correction has shifted the passes of their loader."""

import random
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text

from accounting.event_counts import count_events
from accounting.gaussian import gaussian_epsilon
from service.ledger.budgets.accumulator import BudgetDelta
from service.ledger.budgets.correction_costs import (
    add_correction_costs,
    shifted_counts,
    shifts_of,
    with_shifts,
)
from service.ledger.budgets.steps_and_passes import merge_changes, negative
from service.storage.engine import transaction
from tests.service.samples import FULL, Json, append, dataset, event, run, setup
from tests.service.test_excess import (
    CHANGING,
    TRUSTING,
    accumulator,
    both,
    counted,
    covers,
    parts,
    some,
    spans,
)

DELTA = 1e-5
SHUFFLE: Json = {
    "kind": "shuffle", "batch_size": 30000, "reshuffle": "each_pass", "steps_per_pass": 2,
}  # fmt: skip
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 1e3}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 0.8}
LIMIT = gaussian_epsilon(DELTA, mu=1.01 / 0.8)  # one release of the loud noise, and a little more
GIVEN: Json = {
    "neighboring_relation": "replace_special",
    "budget": {"epsilon": LIMIT, "delta": DELTA, "filter": "gaussian_dp"},
}
REST = event(1, 1, mechanism=QUIET, sampling=SHUFFLE)  # of the pass as it was recorded
NEXT = event(2, 2, mechanism=LOUD, sampling=SHUFFLE)  # which touches two passes as corrected


def test_what_is_held_is_what_counts_once_it_ran() -> None:
    """The enforced sums cover both accounts of corrected steps, of which some are only reserved."""
    for seed in range(200):
        chance = random.Random(seed)
        steps = some(chance, CHANGING, 4)
        ran = chance.randrange(1, len(steps) + 1)
        over, at = [], chance.randrange(2)
        while at < ran:
            end = min(ran, at + chance.randrange(1, 4))
            over.append((at, end, chance.choice(CHANGING)))
            at = end + chance.randrange(4)
        recorded, every = (counted(count_events([spans(one)])) for one in (steps[:ran], steps))
        found = accumulator(count_events([spans(steps[:ran])]), TRUSTING)
        corrections = parts(steps, over)
        shifts = shifts_of(corrections)
        add_correction_costs(found, corrections)
        found.apply(BudgetDelta(shifted=shifted_counts(shifts, recorded)))
        ahead = BudgetDelta(reserved=merge_changes([every, negative(recorded)]))
        found.apply(with_shifts(ahead, shifts))
        enforced, as_recorded, really = both(steps, over, TRUSTING)
        assert found.sums().held == enforced, seed
        assert covers(found.sums().held, as_recorded), seed
        assert covers(found.sums().held, really), seed


def reserved(api: httpx.Client, *events: Json, name: str = "ahead") -> httpx.Response:
    body = {"name": name, "events": list(events), "ttl_seconds": 600}
    return api.post("/v1/runs/run/reservations", json=body)


def corrected(api: httpx.Client) -> None:
    """The first step was none of the loader's: its passes begin one step later."""
    really = {"first_step": 0, "steps": 1, "reason": "a look at all records"}
    really |= {"mechanism": QUIET, "sampling": FULL}
    assert api.post("/v1/runs/run/corrections", json=really).status_code == 201


def budget(api: httpx.Client, path: str = "datasets/data") -> Any:
    return api.get(f"/v1/{path}").json()["budget"]


def test_a_reservation_is_refused_where_a_charge_of_its_steps_is(api: httpx.Client) -> None:
    """The record may be in both loud steps, as the first step of one pass and of the next."""
    setup(api, dataset_given=GIVEN)
    assert append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE)).status_code == 201
    corrected(api)
    assert append(api, REST, NEXT, mode="charge").status_code == 409
    assert reserved(api, REST, NEXT).status_code == 409
    assert reserved(api, REST).status_code == 201


@pytest.mark.parametrize("told", ["before", "after"])
def test_steps_that_are_held_cost_no_more_once_they_ran(api: httpx.Client, told: str) -> None:
    setup(api, dataset_given=GIVEN | {"budget": GIVEN["budget"] | {"epsilon": 2 * LIMIT}})
    assert append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE)).status_code == 201
    if told == "before":
        corrected(api)
    assert reserved(api, REST, NEXT).status_code == 201
    if told == "after":
        corrected(api)
    before = budget(api)
    assert before["reserved"] > LIMIT
    assert append(api, REST, NEXT, mode="charge").status_code == 201
    after = budget(api)
    assert after["reserved"] == 0
    assert after["spent"] == pytest.approx(before["spent"] + before["reserved"])


def test_what_one_run_holds_is_not_there_for_another(api: httpx.Client) -> None:
    both = gaussian_epsilon(DELTA, mu=2**0.5 / 0.8)
    setup(api, dataset_given=GIVEN | {"budget": GIVEN["budget"] | {"epsilon": 1.01 * both}})
    assert append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE)).status_code == 201
    assert reserved(api, REST, NEXT).status_code == 201
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    another = event(0, 1, mechanism=LOUD, sampling=FULL)
    corrected(api)
    assert append(api, another, run="other", mode="charge").status_code == 409
    assert api.post("/v1/reservations/ahead:void", json={"reason": "lost"}).status_code == 200
    assert append(api, another, run="other", mode="charge").status_code == 201


def _told(api: httpx.Client, asked: httpx.Response) -> None:
    """The books of the writer and sums that are folded anew say the same."""
    assert asked.status_code in (200, 201), asked.text
    again = append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE))
    known, found = again.json()["budget"], budget(api, "datasets/child")
    together = found["spent"] + found["reserved"]  # what expired is no longer reserved
    assert known["spent"] + known["reserved"] == pytest.approx(together, rel=1e-12)


def test_books_and_sums_that_are_folded_anew_agree(api: httpx.Client, engine: Engine) -> None:
    wide = GIVEN | {"budget": GIVEN["budget"] | {"epsilon": 300.0}}
    made_from: Json = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
    assert api.post("/v1/datasets", json=dataset(**wide)).status_code == 201
    assert api.post("/v1/datasets", json=dataset("child", **wide, **made_from)).status_code == 201
    plan: list[Json] = [{"mechanism": QUIET, "sampling": SHUFFLE, "steps": 3}]
    own: Json = {"plan": plan, "budget": {"epsilon": 300.0, "delta": DELTA}}
    assert api.post("/v1/runs", json=run(dataset="child", **own)).status_code == 201
    _told(api, append(api, event(0, 1, mechanism=QUIET, sampling=SHUFFLE)))
    held = budget(api)["reserved"]
    corrected(api)
    assert budget(api)["reserved"] > held
    _told(api, append(api, REST))
    assert budget(api, "runs/run")["reserved"] == 0  # what the plan held is not the run's own
    _told(api, reserved(api, event(3, 4, mechanism=LOUD, sampling=SHUFFLE)))
    assert budget(api, "runs/run")["reserved"] > 0
    _told(api, append(api, event(2, 2, mechanism=QUIET, sampling=SHUFFLE)))
    with transaction(engine) as connection:
        past = {"past": "2020-01-01 00:00:00.000000"}
        connection.execute(text("UPDATE reservations SET expires_at = :past"), past)
    lost = [budget(api, f"datasets/{name}") for name in ("data", "child")]
    _told_alike(lost)
    assert lost[0]["reserved"] == 0
    _told(api, api.post("/v1/reservations/ahead:release", json={"last_step": 4}))
    assert api.post("/v1/runs/run:finish", json={"state": "finished"}).status_code == 200
    _told_alike([budget(api, f"datasets/{name}") for name in ("data", "child")])


def _told_alike(found: list[Any]) -> None:
    assert found[0]["spent"] == found[1]["spent"]
    assert found[0]["reserved"] == found[1]["reserved"]
