"""The epsilons of a curve: a page tells them to the last digit."""

from itertools import pairwise

from accounting.accountants.best_bound import best_bound
from accounting.event_counts import EventCounts
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.privacy_profile import epsilon_grid

RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE


def test_the_epsilons_of_a_curve_are_told_as_they_are() -> None:
    sampling = Poisson(sampling_probability=0.01)
    counts = EventCounts(
        steps={Event(mechanism=Gaussian(noise_multiplier=1.1), sampling=sampling): 500}
    )
    grid = epsilon_grid(counts, relation=RELATION, points=200).tolist()
    assert [float(f"{one:.4g}") for one in grid] == grid
    assert grid[0] == 0.0
    assert all(before < after for before, after in pairwise(grid))
    end = best_bound(counts, relation=RELATION, delta=1e-12, accountant="rdp")
    assert end is not None
    assert end.epsilon <= grid[-1] < 1.001 * end.epsilon
