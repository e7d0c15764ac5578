"""What steps cost without any credit for their sampling is never below what they attain."""

import pytest

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import (
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    PoissonUnit,
    Sampling,
    TruncatedPoisson,
    WithReplacement,
)


@pytest.mark.parametrize("relation", NeighboringRelation)
@pytest.mark.parametrize(
    "sampling",
    [
        PoissonUnit(sampling_probability=0.5, rows=10),
        FixedSize(batch_size=500, dataset_size=1000),
        WithReplacement(batch_size=5, dataset_size=5),
        TruncatedPoisson(sampling_probability=0.9, max_batch_size=900, dataset_size=1000),
    ],
)
def test_no_unamplified_epsilon_is_below_what_is_attained(
    sampling: Sampling, relation: NeighboringRelation
) -> None:
    event = Event(mechanism=Gaussian(noise_multiplier=5.0), sampling=sampling)
    found = guarantee(EventCounts(steps={event: 20}), relation=relation, delta=1e-5)
    assert found.epsilon_lower is not None
    assert found.unamplified_epsilon is not None
    assert found.epsilon_lower <= found.unamplified_epsilon
