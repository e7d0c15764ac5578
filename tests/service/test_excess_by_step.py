"""Corrections of steps that add up one by one: what is enforced is known exactly."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from accounting.event_counts import count_events
from accounting.events import (
    Event,
    Full,
    NoNoise,
)
from accounting.filters import Total, times
from accounting.guarantees import DEFAULT_ACCEPT
from service.ledger.budgets.accumulator import BudgetAccumulator, BudgetDelta, larger
from service.ledger.budgets.correction_costs import add_correction_costs
from tests.service.test_excess import (
    BALLS,
    BY_STEP,
    CHANGING,
    CYCLIC,
    POISSON,
    REALLY,
    RECORDED,
    accumulator,
    both,
    counted,
    covers,
    gaussian,
    parts,
    some,
    spans,
    total,
)


def by_step(seed: int) -> tuple[random.Random, list[Event], list[tuple[int, int, Event]]]:
    """Random steps with random corrections, in the order they are told in."""
    chance = random.Random(seed)
    steps, over, at = some(chance, BY_STEP, 12), [], 0
    while (at := at + chance.randrange(5)) < len(steps):
        end = min(len(steps), at + chance.randrange(1, 12))
        over.append((at, end, chance.choice(BY_STEP)))
        at = end
    chance.shuffle(over)
    return chance, steps, over


def account(steps: Sequence[Event], over: Sequence[tuple[int, int, Event]]) -> Total:
    really = list(steps)
    for low, high, what in over:
        really[low:high] = [what] * (high - low)
    return total(count_events([spans(really)]), DEFAULT_ACCEPT)


def told(
    steps: Sequence[Event], over: Sequence[tuple[int, int, Event]]
) -> tuple[BudgetAccumulator, list[Total]]:
    """The tally, and what was enforced before and after each correction."""
    found = accumulator(count_events([spans(steps)]))
    enforced = [found.sums().spent]
    for number, one in enumerate(over):
        add_correction_costs(
            found, [replace(part, correction=number) for part in parts(steps, [one])]
        )
        enforced.append(found.sums().spent)
    return found, enforced


def test_of_steps_the_largest_account_is_enforced_and_no_more() -> None:
    for seed in range(200):
        enforces_the_largest_account(seed)


def enforces_the_largest_account(seed: int) -> None:
    chance, steps, over = by_step(seed)
    found, enforced = told(steps, over)
    accounts = [account(steps, over[:count]) for count in range(len(over) + 1)]
    for count, one in enumerate(enforced, start=1):
        assert one == reduce(larger, accounts[:count]), seed
    # It stays so whatever follows; and the same corrections at once give the same.
    later = some(chance, BY_STEP, 12)
    found.apply(BudgetDelta(recorded=counted(count_events([spans(later)]))))
    more = [account([*steps, *later], over[:count]) for count in range(len(over) + 1)]
    assert found.sums().spent == found.sums().held == reduce(larger, more), seed
    again = accumulator(count_events([spans([*steps, *later])]))
    numbered = [
        replace(part, correction=number)
        for number, one in enumerate(over)
        for part in parts(steps, [one])
    ]
    add_correction_costs(again, chance.sample(numbered, len(numbered)))
    assert again.sums() == found.sums(), seed


def test_one_correction_of_steps_charges_the_larger_account() -> None:
    for seed in range(200):
        chance, steps, _ = by_step(seed)
        low = chance.randrange(len(steps))
        over = [(low, chance.randrange(low, len(steps)) + 1, chance.choice(BY_STEP))]
        enforced = told(steps, over)[1][-1]
        assert enforced == larger(account(steps, []), account(steps, over)), seed


def test_less_noise_is_made_up_for_by_more_that_was_told_before() -> None:
    loud, quiet = gaussian(2.0, Full()), gaussian(4.0, Full())
    steps = [loud] * 5 + [quiet] * 5
    less, more = (0, 5, quiet), (5, 10, loud)
    _, enforced = told(steps, [less, more])
    assert enforced == [account(steps, [])] * 3
    tally_, enforced = told(steps, [more, less])  # told so, it was more, and stays
    assert enforced == [account(steps, []), *[times(tally_.cost(loud), 10)] * 2]


def test_no_correction_lowers_what_is_enforced() -> None:
    for seed in range(100):
        only_grows(seed)


def only_grows(seed: int) -> None:
    chance = random.Random(seed)
    steps = some(chance, [*BY_STEP, *RECORDED, *CHANGING], 6)
    over, at = [], 0
    while (at := at + chance.randrange(9)) < len(steps):
        end = min(len(steps), at + chance.randrange(1, 12))
        over.append((at, end, chance.choice([*REALLY, *CHANGING])))
        at = end
    before = total(count_events([spans(steps)]), DEFAULT_ACCEPT)
    for count in range(1, len(over) + 1):
        enforced, _, corrected = both(steps, over[:count])
        assert covers(enforced, before), seed
        assert covers(enforced, corrected), seed
        before = enforced


def test_a_full_batch_that_was_a_pass_costs_the_pass_and_not_both() -> None:
    steps = [gaussian(4.0, Full())] * 5
    one = gaussian(4.0, CYCLIC)
    found, enforced = told(steps, [(0, 5, one)])
    pass_cost = found.cost(one)
    assert enforced[0] == times(found.cost(steps[0]), 5)
    assert enforced[1] == larger(enforced[0], times(pass_cost, 2))  # wherever in one they began


def test_nothing_without_a_bound_is_ever_taken_back() -> None:
    bare = Event(mechanism=NoNoise(), sampling=Full())
    steps = [gaussian(8.0, Full())] * 3 + [bare]
    enforced, _, _ = both(steps, [(2, 3, bare), (3, 4, gaussian(8.0, Full()))])
    assert enforced[0] == 2


def test_the_same_with_more_noise_adds_nothing() -> None:
    for sampling in (Full(), POISSON, CYCLIC, BALLS):
        steps = [gaussian(4.0, sampling)] * 7
        enforced, recorded, _ = both(steps, [(1, 6, gaussian(5.0, sampling))])
        assert enforced == recorded
