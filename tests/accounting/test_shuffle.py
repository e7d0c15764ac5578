"""Floors of shuffled passes, and the Gaussian of a pass that gains or loses a record."""

import math
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from accounting.events import Direction, NeighboringRelation
from accounting.gaussian import gaussian_bracket_delta, gaussian_bracket_epsilon, gaussian_epsilon
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.lattice.lattice_bounds import lattice_epsilon
from accounting.pld.pairs import SampledGaussianPair
from accounting.pld.profiles import NORMAL, NORMAL_SQUARED
from accounting.rounding import UNIT_ROUNDOFF, Array
from accounting.shuffling.full import (
    THEOREMS,
    largest_pair,
    noise_of_average,
    shuffle_add_remove_mu,
)
from tests.accounting.shuffle_floors import shuffle_lower_delta, shuffle_lower_epsilon

SPECIAL, ONE, SIZE = (
    NeighboringRelation.REPLACE_SPECIAL,
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.ADD_OR_REMOVE_ONE,
)
RELATIONS = st.sampled_from([SPECIAL, ONE, SIZE])
NOISE = st.floats(0.2, 20)
BATCHES = st.integers(2, 10**6)
PROPERTY = settings(deadline=None, max_examples=40)
DELTA = 1e-5


def epsilon(
    noise_multiplier: float,
    batches: int,
    steps: int | None = None,
    *,
    relation: NeighboringRelation = SPECIAL,
    delta: float = DELTA,
) -> float:
    return shuffle_lower_epsilon(
        delta,
        noise_multiplier=noise_multiplier,
        batches=batches,
        steps=batches if steps is None else steps,
        relation=relation,
    )


def delta_at(
    value: float, noise_multiplier: float, batches: int, steps: int, relation: NeighboringRelation
) -> float:
    return shuffle_lower_delta(
        value, noise_multiplier=noise_multiplier, batches=batches, steps=steps, relation=relation
    )


def _exact(
    value: float, threshold: float, sigma: float, batches: int, steps: int, mean: float
) -> Any:
    """P(W > C) - e^epsilon Q(W > C) by its definition, in which three hundred digits may cancel."""
    with mp.workdps(360):
        own, others = (mp.mpf(threshold) - mean) / mp.mpf(sigma), mp.mpf(threshold) / mp.mpf(sigma)
        normal = mp.ncdf(others)

        def above(first: Any) -> Any:
            share = mp.mpf(steps) / batches
            joined = first * normal ** (steps - 1)
            return 1 - share * joined - (1 - share) * normal**steps

        far = (mp.mpf(threshold) - 2) / mp.mpf(sigma)
        return above(mp.ncdf(far)) - mp.exp(value) * above(mp.ncdf(own))


# Goldens: sampling theory, section 1.5


@pytest.mark.parametrize(
    ("noise_multiplier", "batches", "steps", "expected"),
    [
        (0.5, 1000, 1000, 9.996624815543724),
        (1.0, 1000, 1000, 2.8820959799484385),
        (0.4, 10**4, 10**4, 13.20668631353056),
        (0.5, 1000, 300, 9.428049499358309),
    ],
)
def test_one_pass_loses_at_least_what_is_known(
    noise_multiplier: float, batches: int, steps: int, expected: float
) -> None:
    assert epsilon(noise_multiplier, batches, steps) == pytest.approx(expected, rel=1e-11)


def test_delta_of_one_pass_is_at_least_what_is_known() -> None:
    assert delta_at(4.0, 0.5, 1000, 1000, SPECIAL) == pytest.approx(0.07379845257512631, rel=1e-11)
    assert delta_at(1.0, 1.0, 1000, 1000, SPECIAL) == pytest.approx(
        0.0009987435975214337, rel=1e-11
    )


@pytest.mark.parametrize(
    ("noise_multiplier", "batches", "passes", "expected"),
    [
        (1.0, 1000, 10, 4.480510690445932),
        (0.5, 1000, 10, 43.36),
        (0.8, 195, 30, 27.31),
    ],
)
def test_passes_in_fresh_orders_lose_at_least_what_is_known(
    noise_multiplier: float, batches: int, passes: int, expected: float
) -> None:
    pair = largest_pair(
        noise_multiplier=noise_multiplier, batches=batches, steps=batches, relation=SPECIAL
    )
    narrow = lattice_epsilon([(pair, passes)], direction=Direction.REMOVE, delta=DELTA, width=1e-4)
    assert expected * (1 - 1e-5) < narrow[0] < expected * (1 + 3e-4)
    wide = lower_epsilon([(pair, passes)], delta=DELTA)
    assert narrow[0] * (1 - 3e-4) < wide < narrow[1]


def test_what_poisson_accounting_would_say_of_ten_passes_is_refuted() -> None:
    pair = largest_pair(noise_multiplier=1.0, batches=1000, steps=1000, relation=SPECIAL)
    poisson = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=1e-3)
    claimed = epsilon_bracket([(poisson, 10**4)], delta=DELTA).upper
    assert claimed == pytest.approx(0.4758, rel=1e-3)
    assert lower_epsilon([(pair, 10)], delta=DELTA) > 9 * claimed


def test_passes_that_share_one_order_are_not_amplified_at_all() -> None:
    merged = noise_of_average(noise_multiplier=1.0, passes=10)
    assert epsilon(merged, 1000) == pytest.approx(17.85658682954727, rel=1e-11)
    assert epsilon(merged, 1000) <= gaussian_epsilon(DELTA, mu=math.sqrt(10))


# Properties


@PROPERTY
@given(noise_multiplier=st.floats(1e-3, 1e3), delta=st.floats(1e-12, 0.1))
def test_a_pass_of_one_batch_is_a_gaussian(noise_multiplier: float, delta: float) -> None:
    for relation, sensitivity in ((SPECIAL, 1.0), (ONE, 2.0), (SIZE, 1.0)):
        mu = sensitivity / noise_multiplier
        exact = gaussian_bracket_epsilon(delta, mu=(mu, mu))[1]
        found = epsilon(noise_multiplier, 1, relation=relation, delta=delta)
        assert exact * (1 - 1e-9) - 1e-12 <= found <= exact
        value = min(0.5 * exact, 300.0)
        expected = gaussian_bracket_delta(value, mu=(mu, mu))
        assert expected[0] * (1 - 1e-7) <= delta_at(value, noise_multiplier, 1, 1, relation)
        assert delta_at(value, noise_multiplier, 1, 1, relation) <= expected[1] * (1 + 1e-12)


@PROPERTY
@given(noise_multiplier=NOISE, batches=BATCHES, data=st.data())
def test_a_floor_is_below_one_gaussian_a_pass(
    noise_multiplier: float, batches: int, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, batches))
    for relation, sensitivity in ((SPECIAL, 1.0), (ONE, 2.0), (SIZE, math.sqrt(5))):
        floor = epsilon(noise_multiplier, batches, steps, relation=relation)
        assert 0 <= floor <= gaussian_epsilon(DELTA, mu=sensitivity / noise_multiplier)


@PROPERTY
@given(noise_multiplier=NOISE, batches=BATCHES, more=BATCHES)
def test_more_batches_hide_a_record_better(
    noise_multiplier: float, batches: int, more: int
) -> None:
    fewer, many = epsilon(noise_multiplier, batches), epsilon(noise_multiplier, batches + more)
    assert many <= fewer * (1 + 1e-9)


@PROPERTY
@given(noise_multiplier=NOISE, batches=BATCHES, relation=RELATIONS, data=st.data())
def test_a_part_of_a_pass_loses_no_more_than_the_whole(
    noise_multiplier: float, batches: int, relation: NeighboringRelation, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, batches))
    part, whole = (
        epsilon(noise_multiplier, batches, some, relation=relation) for some in (steps, batches)
    )
    assert part <= whole * (1 + 1e-9)


@PROPERTY
@given(noise_multiplier=NOISE, more=st.floats(1.001, 3), batches=BATCHES, relation=RELATIONS)
def test_more_noise_hides_a_record_better(
    noise_multiplier: float, more: float, batches: int, relation: NeighboringRelation
) -> None:
    loud = epsilon(noise_multiplier * more, batches, relation=relation)
    assert loud <= epsilon(noise_multiplier, batches, relation=relation) * (1 + 1e-9)


@PROPERTY
@given(noise_multiplier=NOISE, batches=BATCHES, relation=RELATIONS, delta=st.floats(1e-9, 0.3))
def test_delta_and_epsilon_are_read_off_one_profile(
    noise_multiplier: float, batches: int, relation: NeighboringRelation, delta: float
) -> None:
    value = epsilon(noise_multiplier, batches, relation=relation, delta=delta)
    if value > 0:
        found = delta_at(value, noise_multiplier, batches, batches, relation)
        assert found == pytest.approx(delta, rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(noise_multiplier=st.floats(0.3, 5), batches=st.integers(2, 10**5), relation=RELATIONS)
def test_a_pair_of_one_pass_says_nearly_what_the_closed_form_does(
    noise_multiplier: float, batches: int, relation: NeighboringRelation
) -> None:
    pair = largest_pair(
        noise_multiplier=noise_multiplier, batches=batches, steps=batches, relation=relation
    )
    assert math.fsum(pair.first) == pytest.approx(1, abs=1e-9)
    assert math.fsum(pair.second) == pytest.approx(1, abs=1e-9)
    alone = epsilon(noise_multiplier, batches, relation=relation)
    found = lower_epsilon([(pair, 1)], delta=DELTA)
    assert alone * (1 - 1e-4) - 1e-5 <= found <= alone * (1 + 1e-9)


@pytest.mark.parametrize("noise_multiplier", [1e-100, 1e-3, 1e3, 1e100])
@pytest.mark.parametrize("batches", [1, 2, 10**12])
def test_extreme_passes_have_floors(noise_multiplier: float, batches: int) -> None:
    pair = largest_pair(
        noise_multiplier=noise_multiplier, batches=batches, steps=batches, relation=ONE
    )
    floor = lower_epsilon([(pair, 2)], delta=DELTA)
    assert 0 <= floor < math.inf
    assert (floor > 100) == (noise_multiplier < 1)
    assert 0 <= epsilon(noise_multiplier, batches) < math.inf


# Rounding


def _highest(value: float, sigma: float, batches: int, steps: int, mean: float) -> float:
    """Delta of the best threshold; to be off by a little is of second order."""
    share = steps / batches

    def above(threshold: Array, own_mean: float) -> Array:
        others = special.log_ndtr(threshold / sigma)
        joined = special.log_ndtr((threshold - own_mean) / sigma) + (steps - 1) * others
        return np.asarray(-share * np.expm1(joined) - (1 - share) * np.expm1(steps * others))

    def lost(threshold: Array) -> Array:
        return np.asarray(math.exp(value) * above(threshold, mean) - above(threshold, 2.0))

    grid = np.linspace(0.0, 2 + 37 * sigma, 3000)
    best = int(np.argmin(lost(grid)))
    bounds = float(grid[max(best - 1, 0)]), float(grid[min(best + 1, 2999)])
    found = optimize.minimize_scalar(
        lambda one: float(lost(np.array(one))),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(_exact(value, float(found.x), sigma, batches, steps, mean))


@settings(max_examples=25, deadline=None)
@given(
    noise_multiplier=st.floats(0.1, 10),
    batches=st.integers(2, 10**4),
    value=st.floats(0, 20),
    data=st.data(),
)
def test_floors_are_below_the_definition_by_roundoffs_only(
    noise_multiplier: float, batches: int, value: float, data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, batches))
    for relation, mean in ((SPECIAL, 1.0), (ONE, 0.0)):
        found = delta_at(value, noise_multiplier, batches, steps, relation)
        exact = _highest(value, noise_multiplier, batches, steps, mean)
        assert exact * (1 - 1e-9) - 1e-13 <= found <= max(exact, 0.0) * (1 + 1e-14)


@settings(max_examples=300, deadline=None)
@given(z=st.floats(-1e6, 36))
def test_the_logarithm_of_the_normal_law_is_as_precise_as_is_claimed(z: float) -> None:
    with mp.workdps(60):
        tail = mp.erfc(abs(mp.mpf(z)) / mp.sqrt(2)) / 2
        exact = mp.log1p(-tail) if z > 0 else mp.log(tail)
        off = abs((mp.mpf(float(special.log_ndtr(z))) - exact) / exact)
    assert off <= UNIT_ROUNDOFF * (NORMAL + NORMAL_SQUARED * max(z, 0.0) ** 2)


# From above


@pytest.mark.parametrize(
    ("batch_size", "dataset_size", "steps_per_pass", "shift"),
    [
        (256, 60000, 235, math.sqrt(5)),  # 60000 = 234 * 256 + 96
        (256, 60000, 234, 2.0),
        (256, 60000, 100, 2.0),
        (1, 100, 99, 2.0),
        (10, 100, 9, 2.0),
        (10, 101, 9, 2.0),
        (3, 2, 1, math.sqrt(5)),
    ],
)
def test_a_pass_that_gains_or_loses_a_record_is_one_gaussian(
    batch_size: int, dataset_size: int, steps_per_pass: int, shift: float
) -> None:
    mu = shuffle_add_remove_mu(
        noise_multiplier=0.7,
        batch_size=batch_size,
        dataset_size=dataset_size,
        steps_per_pass=steps_per_pass,
    )
    assert mu == pytest.approx(shift / 0.7, rel=1e-15)
    assert mu > shift / 0.7


@pytest.mark.parametrize(
    ("batch_size", "dataset_size", "steps_per_pass", "reason"),
    [
        (10, 101, 11, "a batch less"),
        (10, 100, 10, "full"),
        (10, 109, 10, "another full batch"),
        (2, 101, 50, "another full batch"),
        (1, 100, 100, "full"),
        (10, 100, 11, "as many as batches"),
        (10, 100, 0, "at least one step"),
    ],
)
def test_a_pass_whose_neighbours_have_other_numbers_of_batches_is_refused(
    batch_size: int, dataset_size: int, steps_per_pass: int, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        shuffle_add_remove_mu(
            noise_multiplier=1.0,
            batch_size=batch_size,
            dataset_size=dataset_size,
            steps_per_pass=steps_per_pass,
        )


@PROPERTY
@given(batch_size=st.integers(1, 30), dataset_size=st.integers(2, 200), steps=st.integers(1, 200))
def test_what_is_accepted_leaves_every_neighbour_the_same_batches(
    batch_size: int, dataset_size: int, steps: int
) -> None:
    def released(records: int) -> list[int]:
        """Sizes of the released batches; a loader that drops its last batch has floor(n/b)."""
        dropping = steps <= dataset_size // batch_size
        most = records // batch_size if dropping else -(-records // batch_size)
        # A pass that stops earlier is stopped on purpose, whatever the number of records.
        most = min(most, steps) if steps < dataset_size // batch_size else most
        return [min(batch_size, records - k * batch_size) for k in range(most)]

    sizes = [released(dataset_size + change) for change in (-1, 0, 1)]
    try:
        mu = shuffle_add_remove_mu(
            noise_multiplier=1.0,
            batch_size=batch_size,
            dataset_size=dataset_size,
            steps_per_pass=steps,
        )
    except ValueError:
        assert len({len(one) for one in sizes}) > 1 or len(sizes[1]) != steps
    else:
        assert {len(one) for one in sizes} == {steps}
        assert (mu > 2.1) == (len({tuple(one) for one in sizes}) > 1)


@pytest.mark.parametrize("steps", [0, 11])
def test_a_pass_releases_some_of_its_batches(steps: int) -> None:
    with pytest.raises(ValueError, match="at least one and at most all"):
        largest_pair(noise_multiplier=1.0, batches=10, steps=steps, relation=SPECIAL)


def test_questions_out_of_range_are_refused() -> None:
    for wrong in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="finite and not negative"):
            delta_at(wrong, 1.0, 10, 10, SPECIAL)
    for wrong in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="lies in"):
            epsilon(1.0, 10, delta=wrong)


def test_the_theorem_of_this_file_is_listed() -> None:
    assert [one.id for one in THEOREMS] == ["shuffle-add-remove"]
