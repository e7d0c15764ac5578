"""What full batches would cost a record that has several rows: all of them take part."""

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import Event, Full, Gaussian, NeighboringRelation, PoissonUnit, Sampling

DELTA = 1e-5
REPLACE_ONE = NeighboringRelation.REPLACE_ONE


def counts(sampling: Sampling, *, steps: int = 1, sigma: float) -> EventCounts:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    return EventCounts(steps={event: steps})


def test_a_parents_record_with_several_rows_joins_full_batches_with_all_of_them() -> None:
    sampling = PoissonUnit(sampling_probability=0.5, rows=10)
    answer = guarantee(counts(sampling, steps=7, sigma=5.0), relation=REPLACE_ONE, delta=DELTA)
    whole = counts(Full(), steps=7, sigma=0.5)
    full = guarantee(whole, relation=REPLACE_ONE, delta=DELTA, accountant="gdp")
    assert answer.epsilon_lower is not None
    assert full.epsilon is not None
    assert answer.unamplified_epsilon is not None
    assert answer.unamplified_epsilon == pytest.approx(full.epsilon, rel=1e-12)
    assert answer.unamplified_epsilon >= full.epsilon > answer.epsilon_lower
    # Less noise than an event may have is told as none.
    least = guarantee(counts(sampling, sigma=1e-100), relation=REPLACE_ONE, delta=DELTA)
    assert least.unamplified_epsilon is None
