"""Lower laws: what they lose far out, and what whole answers then cost."""

import math
from typing import Any

import numpy as np
import pytest

from accounting import calibration
from accounting.accountants.best_bound import best_bound
from accounting.accountants.queries import pairs_above
from accounting.calibration import ROUGH_TOLERANCE, Parameter, calibrate, fill_spans
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Direction,
    Event,
    FixedSize,
    Gaussian,
    NeighboringRelation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
    WithReplacement,
)
from accounting.guarantees import DEFAULT_ACCEPT, Status
from accounting.pld import certified_composition
from accounting.pld.lattice import discretization
from accounting.pld.lattice.lattice_bounds import lattice_epsilon
from accounting.pld.pairs import DiscretePair, GaussianPair, SymmetricPair, Units
from accounting.pld.profiles import profiles
from accounting.pld.tails import Tails

REPLACE_ONE, SPECIAL = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL
REMOVE, ADD = Direction.REMOVE, Direction.ADD
ACCEPT = DEFAULT_ACCEPT | {Status.DERIVED}
FIXED = FixedSize(batch_size=256, dataset_size=60_000)


def counts_of(sampling: Sampling, sigma: float, steps: int) -> EventCounts:
    event = Event(mechanism=Gaussian(noise_multiplier=sigma), sampling=sampling)
    return count_events([[Span(event=event, steps=steps)]])


def units_of(sampling: Sampling, sigma: float, relation: NeighboringRelation) -> Units:
    return pairs_above(counts_of(sampling, sigma, 14_100), relation, ACCEPT, delta=1e-5)[1]


@pytest.mark.parametrize(("sigma", "epsilon"), [(2.23, 2.99831), (4.0, 1.20463)])
def test_a_small_tail_that_is_badly_known_costs_the_lower_end_nothing(
    sigma: float, epsilon: float
) -> None:
    units = units_of(FIXED, sigma, REPLACE_ONE)
    low, high = lattice_epsilon(units, direction=REMOVE, delta=1e-5, width=5e-4)
    assert low <= epsilon <= high
    assert high - low <= 5e-4 * high


def test_what_is_left_of_a_law_that_ends_earlier_lies_below_the_profile() -> None:
    half = GaussianPair(noise_multiplier=2.0)
    pair = SymmetricPair(near=half, far=half, sampling_probability=256 / 60_000)
    lattice = discretization.Lattice(
        width=2.0**-13, offset=0.0, bottom=-0.0625, first=-512, last=4096, bit=2.0**-40
    )
    rough, fine = (
        discretization.laws(pair, direction=REMOVE, lattice=lattice, small=small)[0]
        for small in (1e-5, 1e-280)
    )
    assert np.count_nonzero(rough.mass) < np.count_nonzero(fine.mass)
    assert rough.excess < 1e-3 * fine.excess
    losses = lattice.points()[: len(rough.mass)]
    profile, _ = discretization.lattice_profile(rough.mass, losses=losses, width=lattice.width)
    above = profiles(pair, direction=REMOVE, losses=losses)[1]
    assert np.all(profile <= above * (1 + rough.excess) * (1 + 1e-9))


def known(error: float, *, p_above: float, p_below: float) -> Tails:
    ends = (np.array([each]) for each in (p_above, p_above, p_below, p_below, error))
    return Tails(*ends)


def test_the_mass_above_the_lowest_tangent_is_read_off_the_smaller_tail() -> None:
    pair = GaussianPair(noise_multiplier=1.0)
    atoms = DiscretePair(first=(0.5, 0.5), second=(0.25, 0.75))
    kept = discretization._kept_mass
    small = known(1e-3, p_above=1 - 1e-6, p_below=1e-6)
    assert 1 - 1e-6 - 2e-9 <= kept(pair, small, 0.0) <= 1 - 1e-6 - 0.9e-9
    assert kept(atoms, small, 0.25) <= (0.75 - 1e-6) * (1 - 1e-3)  # its masses may be off
    for unknown in (1.0, math.inf, math.nan):
        assert kept(pair, known(unknown, p_above=0.9, p_below=0.1), 0.0) == 0.0


def test_the_smaller_order_of_many_outcomes_is_shown_to_be_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sampling = WithReplacement(batch_size=256, dataset_size=60_000)
    units = tuple(units_of(sampling, 1.1, SPECIAL))
    asked = (units, ADD, 15.04, 1e-5)
    assert not certified_composition._within(units, ADD, epsilon=15.04, delta=1e-5)
    assert certified_composition._is_no_larger(*asked)
    assert not certified_composition._is_no_larger(units, ADD, 7.2, 1e-5)  # it has 7.246

    def unable(*_: Any, **__: Any) -> tuple[float, float]:
        raise ArithmeticError

    monkeypatch.setattr(certified_composition, "lattice_epsilon", unable)
    assert not certified_composition._is_no_larger(*asked)


def test_the_noise_of_shuffled_passes_is_solved_for_as_well_as_epsilon_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def counted(counts: EventCounts, **given: Any) -> Any:
        asked.append(0.0)
        return best_bound(counts, **given)

    monkeypatch.setattr(calibration, "best_bound", counted)
    sampling = Shuffle(
        batch_size=4096, steps_per_pass=14, reshuffle=Reshuffle.EACH_PASS, dataset_size=60_000
    )
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=sampling)

    def counts_at(value: float) -> EventCounts:
        spans = [Span(event=event, steps=14 * 60)]
        noise = Parameter.NOISE_MULTIPLIER
        return count_events([fill_spans(spans, places=[0], parameter=noise, value=value)])

    found = calibrate(
        counts_at,
        parameter=Parameter.NOISE_MULTIPLIER,
        epsilon=3.0,
        delta=1e-5,
        relation=REPLACE_ONE,
        accept=ACCEPT,
    )
    assert found.guarantee.epsilon is not None
    assert 3.0 * (1 - 3 * ROUGH_TOLERANCE) <= found.guarantee.epsilon <= 3.0
    assert len(asked) <= 8
