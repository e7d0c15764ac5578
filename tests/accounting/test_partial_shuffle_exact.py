"""Every order of a few records, all answers integrated: what a pass tells, against its bound."""

import math
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from accounting.events import NeighboringRelation
from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import GaussianPair, SampledGaussianPair, SymmetricPair
from accounting.rounding import Array, rounded_up
from accounting.shuffling.partial import partial_shuffle_pairs, partial_shuffle_rdp
from tests.accounting.order_games import (
    EPSILONS,
    INTEGRATION,
    Contribution,
    Past,
    Play,
    density,
    hockey_stick,
    random_play,
    star,
)

pytestmark = pytest.mark.no_cover  # of values; other tests reach the lines, and untraced it is fast

REPLACE_ONE, REPLACE_SPECIAL = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL


@lru_cache
def bound(records: int, batch: int, steps: int, noise: float) -> Array:
    """The composed bound at each of EPSILONS."""
    units = partial_shuffle_pairs(
        noise_multiplier=noise, batch_size=batch, dataset_size=records, steps_per_pass=steps
    )
    return np.array([delta_bracket(units, epsilon=epsilon).upper for epsilon in EPSILONS])


def ratio(play: Play) -> float:
    """Exact over bound, the largest over EPSILONS; the integration error added."""
    limit = bound(play.records, play.batch, play.steps, play.noise)
    error = INTEGRATION[play.steps * play.coordinates]
    return float(np.max(hockey_stick(play) * (1 + error) / limit))


TWO_STEPS = [(3, 1, 2), (4, 1, 2), (5, 1, 2), (6, 1, 2), (5, 2, 2), (6, 2, 2)]
THREE_STEPS = [(4, 1, 3), (5, 1, 3), (6, 1, 3)]


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize("sizes", TWO_STEPS)
def test_two_adaptive_steps_stay_below_the_bound(
    sizes: tuple[int, int, int], relation: NeighboringRelation
) -> None:
    rng = np.random.default_rng(sum(sizes))
    for noise in (0.5, 0.7, 1.0, 1.5, 3.0):
        for _ in range(8):
            assert ratio(random_play(rng, sizes=sizes, noise=noise, relation=relation)) < 1


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize("sizes", THREE_STEPS)
def test_three_adaptive_steps_stay_below_the_bound(
    sizes: tuple[int, int, int], relation: NeighboringRelation
) -> None:
    rng = np.random.default_rng(sum(sizes))
    for noise in (0.5, 1.5):
        for _ in range(4):
            assert ratio(random_play(rng, sizes=sizes, noise=noise, relation=relation)) < 1


@pytest.mark.parametrize("sizes", [*TWO_STEPS, *THREE_STEPS])
@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_one_record_against_all_others_stays_below_the_bound(
    sizes: tuple[int, int, int], noise: float
) -> None:
    assert 0.3 < ratio(star(*sizes, noise)) < 1


def test_with_little_noise_the_bound_is_nearly_attained() -> None:
    assert 0.96 < ratio(star(6, 1, 2, 0.5)) < 1
    assert 0.96 < ratio(star(5, 2, 2, 0.5)) < 1


def test_contributions_in_the_plane_stay_below_the_bound() -> None:
    def towards(angle: float) -> Contribution:
        def contribution(_: int, past: Past) -> tuple[Array | float, ...]:
            turned = angle + (np.where(past[0] > past[1], 0.5, -0.5) if past else 0.0)
            return np.cos(turned), np.sin(turned)

        return contribution

    others = tuple(towards(angle) for angle in (0.0, 0.4, -0.4))
    play = Play(4, 1, 2, 1.0, others, towards(math.pi), towards(0.5), coordinates=2)
    assert 0.3 < ratio(play) < 1


def test_the_grid_is_fine_enough() -> None:
    rng = np.random.default_rng(7)
    for sizes in (*TWO_STEPS, *THREE_STEPS[:1]):
        play = random_play(rng, sizes=sizes, noise=0.5, relation=REPLACE_ONE)
        assert float(np.sum(density(play, play.mine))) == pytest.approx(1, abs=1e-8)
        coarse, fine = hockey_stick(play), hockey_stick(play, finer=2)
        tolerance = INTEGRATION[play.steps]
        np.testing.assert_allclose(coarse, fine, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("relation", [REPLACE_ONE, REPLACE_SPECIAL])
@pytest.mark.parametrize("sizes", TWO_STEPS)
def test_renyi_moments_stay_below_the_curve(
    sizes: tuple[int, int, int], relation: NeighboringRelation
) -> None:
    rng = np.random.default_rng(sum(sizes) + 1)
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    records, batch, steps = sizes
    for noise in (1.5, 3.0):
        curve = partial_shuffle_rdp(
            noise_multiplier=noise,
            batch_size=batch,
            dataset_size=records,
            steps_per_pass=steps,
            orders=orders,
        )
        for play in (
            random_play(rng, sizes=sizes, noise=noise, relation=relation),
            star(*sizes, noise),
        ):
            # The moment's weight lies up to twice the order away, where the grid must reach.
            reach = 2 * batch + 2 * orders[-1] + 5 * noise
            one = np.log(density(play, play.mine, reach=reach))
            other = np.log(density(play, play.instead, reach=reach))
            for (p, q), (order, limit) in product(
                ((one, other), (other, one)), zip(orders, curve, strict=True)
            ):
                moment = float(np.sum(np.exp(order * p + (1 - order) * q)))
                assert math.log(moment) / (order - 1) < limit


def test_the_rate_of_the_first_step_does_not_do_for_the_later_ones() -> None:
    def excess(play: Play) -> float:
        half = GaussianPair(noise_multiplier=0.5 * play.noise)
        rate = rounded_up(play.batch / play.records)
        units = ((SymmetricPair(near=half, far=half, sampling_probability=rate), play.steps),)
        limit = [delta_bracket(units, epsilon=epsilon).upper for epsilon in EPSILONS]
        error = INTEGRATION[play.steps]
        return float(np.max(hockey_stick(play) * (1 - error) / np.array(limit)))

    assert excess(star(3, 1, 2, 0.5)) > 1.15
    assert excess(star(5, 2, 2, 0.5)) > 1.2
    assert excess(star(6, 1, 3, 0.5)) > 1.1


def test_one_order_of_the_pair_does_not_do_without_the_other() -> None:
    # Two passes of one step on three records. The replaced record stands out in the first step, and
    # in the second it or its replacement does, as the first answer says.
    noise, cells = 1.5, 600
    line = (np.arange(cells) + 0.5) * (25 / cells) - 12.5

    def normal(mean: float) -> Array:
        scaled = (line - mean) / noise
        weight = 25 / (cells * noise * math.sqrt(2 * math.pi))
        return np.asarray(np.exp(-0.5 * scaled * scaled) * weight)

    out, flat = (2 * normal(-1) + normal(1)) / 3, normal(-1)
    low = line < 0
    one = np.outer(out, out)
    one[~low] = np.outer(out[~low], flat)
    other = np.outer(flat, flat)
    other[~low] = np.outer(flat[~low], out)
    exact = float(np.sum(np.maximum(one - other, 0.0)))

    asymmetric = SampledGaussianPair(noise_multiplier=0.75, sampling_probability=1 / 3)
    ((pair, count),) = partial_shuffle_pairs(
        noise_multiplier=noise, batch_size=1, dataset_size=3, steps_per_pass=1
    )
    assert count == 1
    assert exact > 1.05 * delta_bracket(((asymmetric, 2),), epsilon=0.0).upper
    assert exact < delta_bracket(((pair, 2),), epsilon=0.0).upper
