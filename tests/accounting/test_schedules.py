"""Random schedules: a tenth more steps cost more, and finer noises no more than merged ones."""

from typing import Any

import numpy as np
import pytest

from accounting.accountants.best_bound import best_bound
from accounting.accountants.event_grouping import dominating
from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation, NonUniform, Sampling, Span
from accounting.guarantees import ACCEPTABLE
from tests.accounting.test_gathering import DELTA, FIXED, POISSON, SAMPLINGS, gaussian

KINDS: list[Sampling] = [*SAMPLINGS, NonUniform(max_weight=0.02), POISSON, FIXED]
SCHEDULES = 200
PARTS = 10


def schedule(seed: int) -> tuple[list[float], list[int], Sampling, dict[str, Any]]:
    """Noises, how many steps of each, their sampling and what is asked."""
    random = np.random.default_rng(seed)
    relation = list(NeighboringRelation)[int(random.integers(3))]
    low = float(random.uniform(0.8, 3))
    count = int(random.integers(2, 18))
    noises = low * np.exp(np.sort(random.uniform(0, float(random.uniform(0.02, 0.7)), count)))
    steps = [50 * int(n) for n in random.integers(1, 5, count)]
    given: dict[str, Any] = {"relation": relation, "delta": DELTA, "with_lower": False}
    if seed % 2:
        given["accept"] = ACCEPTABLE
    return [float(noise) for noise in noises], steps, KINDS[seed % len(KINDS)], given


def of(noises: list[float], steps: list[int], sampling: Sampling) -> EventCounts:
    events = [gaussian(noise, sampling) for noise in noises]
    spans = [[Span(event=one, steps=n)] for one, n in zip(events, steps, strict=True)]
    return count_events(spans)


@pytest.mark.no_cover
@pytest.mark.parametrize("first", range(PARTS))
def test_random_schedules_cost_more_with_more_steps_and_as_much_as_merged(first: int) -> None:
    for seed in range(first, SCHEDULES, PARTS):
        noises, steps, sampling, given = schedule(seed)
        counts = of(noises, steps, sampling)
        found = best_bound(counts, **given)
        if found is None:  # without a bound for this sampling and relation
            assert best_bound(of(noises[:1], steps[:1], sampling), **given) is None
            continue
        merged = best_bound(dominating(counts, 8), **given)
        longer = best_bound(of(noises, [n + n // 10 for n in steps], sampling), **given)
        assert merged is not None
        assert longer is not None
        assert found.epsilon <= longer.epsilon
        assert found.epsilon <= 1.05 * merged.epsilon
