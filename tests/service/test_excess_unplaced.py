"""Corrections on a branch whose place is not known: what is enforced covers both accounts."""

import random
from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest

from accounting.event_counts import UNPLACED, EventCounts, count_events
from accounting.events import BallsAndBins, Event, Full, RandomAllocation
from accounting.filters import Total
from accounting.guarantees import DEFAULT_ACCEPT, Status
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta
from service.ledger.budgets.correction_costs import (
    add_correction_costs,
    shifted_counts,
    shifts_of,
)
from service.ledger.budgets.steps_and_passes import EventCountDelta, StepsAndPasses
from service.schemas.event_codec import overlay
from tests.service.samples import append, setup
from tests.service.test_excess import (
    BALLS,
    CHANGING,
    FILTER,
    POISSON,
    RELATION,
    TRUSTING,
    covers,
    gaussian,
    parts,
    quieter,
    some,
    spans,
    total,
)
from tests.service.test_taken_passes import NOISE, NULL, opened, step

POOL = [
    *CHANGING,
    gaussian(2.0, POISSON),
    gaussian(8.0, Full()),
    *(gaussian(noise, RandomAllocation(steps_per_pass=6, participations=2)) for noise in (2.0, 5)),
    *(gaussian(noise, BALLS) for noise in (1.0, 3.0)),
    *(gaussian(noise, BallsAndBins(steps_per_pass=8)) for noise in (2.0, 20.0)),
]


def counted(counts: EventCounts) -> EventCountDelta:
    """Told passes are of events of which no step was recorded."""
    return {
        event: StepsAndPasses(
            steps=counts.steps.get(event, 0),
            passes=counts.passes.get(event, 0),
            begun=counts.begun.get(event, 0),
        )
        for event in {**counts.steps, **counts.passes, **counts.begun}
    }


def accounts(
    steps: Sequence[Event], over: Sequence[tuple[int, int, Event]], accept: frozenset[Status]
) -> tuple[Total, Total, Total]:
    """Enforced, as recorded, as corrected."""
    recorded = count_events([spans(steps)], places=[UNPLACED])
    zero = FILTER.zero()
    found = BudgetAccumulator(
        filter=FILTER, relation=RELATION, accept=accept, recorded=zero, reserved=zero
    )
    found.apply(BudgetDelta(recorded=counted(recorded)))
    corrected = [replace(part, unplaced=True) for part in parts(steps, over)]
    add_correction_costs(found, corrected)
    found.apply(BudgetDelta(shifted=shifted_counts(shifts_of(corrected), counted(recorded))))
    really = [
        event if quieter(what, event) else what
        for number, event in enumerate(steps)
        for _, _, what in overlay((number, 1, event), list(over))
    ]
    corrected_counts = count_events([spans(really)], places=[UNPLACED])
    return found.sums().spent, total(recorded, accept), total(corrected_counts, accept)


@pytest.mark.parametrize("accept", [DEFAULT_ACCEPT, TRUSTING], ids=["published", "derived"])
def test_where_the_place_is_not_known_both_accounts_are_covered(
    accept: frozenset[Status],
) -> None:
    for seed in range(300):
        chance = random.Random(seed)
        pool = chance.sample(POOL, chance.randrange(2, 5))
        steps = some(chance, pool, chance.choice([4, 12, 30]))
        over, at = [], chance.randrange(4)
        while at < len(steps):
            end = min(len(steps), at + chance.randrange(1, chance.choice([4, 12, 40])))
            over.append((at, end, chance.choice(pool)))
            at = end + chance.randrange(9)
        enforced, recorded, corrected = accounts(steps, over, accept)
        assert covers(enforced, recorded), seed
        assert covers(enforced, corrected), seed


def test_steps_that_were_bins_are_told_where_a_branch_goes_on_in_an_old_order(
    api: httpx.Client,
) -> None:
    """Eleven releases at noise 2 take the budget, where ten amplified passes would leave room."""
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 12.0, "delta": 1e-5, "orders": [2.0]}})
    loud = NOISE | {"noise_multiplier": 2.0}
    quiet = step(0, 30, sampling={"kind": "full"}, mechanism=NOISE | {"noise_multiplier": 100.0})
    assert append(api, quiet).status_code == 201
    opened(api, "again", 5, order="continued")
    poisson = {"kind": "poisson", "sampling_probability": 0.02}
    sent = append(api, step(5, 500, sampling=poisson, mechanism=loud), branch="again")
    assert sent.status_code == 201
    wrong = {
        "branch": "again",
        "first_step": 5,
        "steps": 500,
        "mechanism": loud,
        "sampling": {"kind": "balls_and_bins", "steps_per_pass": 50},
        "reason": "the loader dealt the records into bins",
    }
    assert api.post("/v1/runs/run/corrections", json=wrong).status_code == 201
    budget = api.get("/v1/datasets/data").json()["budget"]
    assert budget["spent"] > 12.0
    assert budget["overdrawn"]
    more = step(505, 5, sampling={"kind": "full"}, mechanism=loud)
    assert append(api, more, branch="again", mode="charge").status_code == 409
