"""What an append says of its run covers the run, whatever its events say of one another."""

from typing import Any

import httpx
import pytest

from accounting.accountants.best_bound import best_bound
from accounting.events import Cyclic, Event, Gaussian, NeighboringRelation, Reshuffle, Shuffle
from accounting.guarantees import Status
from service.ledger.append.rdp_reading import meter_of, read_guarantee, read_known
from service.ledger.budgets.steps_and_passes import StepsAndPasses, count_events
from tests.service.samples import Json, append, setup
from tests.service.test_taken_passes import NOISE, NULL, opened, step

NOISE_TWO = Gaussian(noise_multiplier=2.0)
EARLY = Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.EACH_PASS, dataset_size=500)
ONCE = Shuffle(batch_size=10, steps_per_pass=4, reshuffle=Reshuffle.ONCE, dataset_size=500)
TEN = StepsAndPasses(steps=40, passes=10, begun=10)


@pytest.mark.parametrize("other", [ONCE, Cyclic(batch_size=10, steps_per_pass=4)])
def test_an_order_that_may_be_used_again_hides_nothing_in_the_answer(other: Shuffle) -> None:
    given: dict[str, Any] = {
        "relation": NeighboringRelation.REPLACE_SPECIAL,
        "accept": frozenset({Status.PUBLISHED, Status.DERIVED}),
    }
    secret, again = (Event(mechanism=NOISE_TWO, sampling=one) for one in (EARLY, other))
    known = meter_of({secret: TEN}, delta=1e-5, **given)
    alone = read_guarantee(known, {secret: TEN}, sequence=1, **given)
    units = {secret: TEN, again: TEN}
    right = best_bound(count_events(units), accountant="rdp", delta=1e-5, **given)
    assert right is not None
    for before in (known, None):
        meter = meter_of(units, delta=1e-5, known=before, **given)
        found = read_guarantee(meter, units, sequence=2, **given)
        assert found["epsilon"] >= right.epsilon > 1.4 * alone["epsilon"]


@pytest.mark.parametrize(("first", "then"), [(1, 1000), (1000, 1)])
def test_an_answer_names_the_bounds_that_it_uses_now(first: int, then: int) -> None:
    """Of few passes a published bound is the least, of many the one that was derived here."""
    given: dict[str, Any] = {
        "relation": NeighboringRelation.REPLACE_SPECIAL,
        "accept": frozenset({Status.PUBLISHED, Status.DERIVED}),
    }
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=EARLY)
    before, after = (
        {event: StepsAndPasses(steps=4 * passes, passes=passes, begun=passes)}
        for passes in (first, then)
    )
    meter = meter_of(before, delta=1e-6, **given)
    assert read_known(meter, before, sequence=1) == read_guarantee(
        meter, before, sequence=1, **given
    )
    assert read_known(meter, after, sequence=1) is None  # the accountant has to be asked
    read = [read_guarantee(meter, one, sequence=1, **given) for one in (before, after, before)]
    for found, units in zip(read, (before, after, before), strict=True):
        right = best_bound(count_events(units), accountant="rdp", delta=1e-6, **given)
        assert right is not None
        assert found["status"] is right.status
        assert found["theorems"] == list(right.theorems)
        assert found["assumptions"] == list(right.assumptions)
    assert read[0]["status"] is not read[1]["status"]
    assert read_known(meter, after, sequence=1) == read[1]


def test_a_fall_that_leaves_an_event_uncounted_is_answered(api: httpx.Client) -> None:
    """What was counted of a pass at more noise counts at less: of the former nothing is left."""
    setup(api, dataset_given=NULL, delta=1e-5)
    opened(api, "again", 0, order="continued")
    balls: Json = {"kind": "balls_and_bins", "steps_per_pass": 4}
    at = 0
    for noise, steps in ((2.0, 4), (300.0, 1), (2.0, 1), (2.0, 9)):
        mechanism = NOISE | {"noise_multiplier": noise}
        sent = append(api, step(at, steps, sampling=balls, mechanism=mechanism), branch="again")
        assert sent.status_code == 201, sent.text
        at += steps
        told = api.get("/v1/runs/run/guarantee", params={"accountant": "rdp"}).json()
        assert sent.json()["guarantee"]["epsilon"] == pytest.approx(told["epsilon"])
