"""Document 000: a test for each row."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from accounting.events import Reshuffle, Shuffle
from accounting.literature.subsampled_renyi import weighted_rdp
from accounting.literature.toy_shuffle import toy_epsilon
from accounting.renyi.conversion import classical_rdp_epsilon, rdp_epsilon
from accounting.rounding import Array
from accounting.shuffling.partial import partial_shuffle_rdp
from examples.partial_shuffle.algorithm import Schedule, private_sgd
from tests.accounting.quarantined import said
from tests.accounting.test_quarantine_counterexamples import star_pair_rdp


def proved(order: float, *, steps: int = 500) -> float:
    (found,) = partial_shuffle_rdp(
        noise_multiplier=2.0,
        batch_size=1,
        dataset_size=1000,
        steps_per_pass=steps,
        orders=np.array([order]),
    )
    return float(found)


def test_row_000_a1__each_pass_takes_floor_tau_n_records_in_a_uniform_order() -> None:
    schedule = Schedule(tau=Fraction(2, 3), records=4, epochs=3)
    assert (schedule.steps_per_pass, schedule.passes, schedule.steps) == (2, 4, 8)
    firsts: Counter[int] = Counter()
    once = Schedule(tau=Fraction(1, 2), records=4, epochs=1)
    for seed in range(600):
        steps = private_sgd(
            np.eye(4), once, learning_rate=1.0, noise_multiplier=0.0,
            orders=np.random.default_rng(seed), noise=np.random.default_rng(0),
        )  # fmt: skip
        moved = [np.flatnonzero(weights).tolist() for weights in (w.copy() for w in steps)]
        assert [len(coordinates) for coordinates in moved[:2]] == [1, 2]
        firsts[moved[0][0]] += 1
    assert min(firsts.values()) > 100  # 150 of each are expected
    event = Shuffle(batch_size=1, steps_per_pass=2, reshuffle=Reshuffle.EACH_PASS, dataset_size=4)
    assert event.stops_early


def test_row_000_t2_1__a_step_loses_more_than_was_claimed_and_no_more_than_is_proved() -> None:
    claimed = said(
        "partial-shuffle-retracted-step",
        noise_multiplier=2.0, dataset_size=1000, steps_before=0, orders=[49.0],
    )  # fmt: skip
    attained = star_pair_rdp(49, n=1000, k=1, sigma=2.0)
    assert claimed < attained <= proved(49.0, steps=1)


def test_row_000_t2_2__the_noise_claimed_for_all_passes_is_too_little() -> None:
    noise = said(
        "partial-shuffle-retracted-noise",
        dataset_size=1000, fraction=0.5, epochs=0.5, order=14.0, rdp=0.056,
    )  # fmt: skip
    assert noise == pytest.approx(2)
    assert 0.056 < star_pair_rdp(14, n=1000, k=500, sigma=2.0) < proved(14.0)


def test_row_000_t3_1__weights_that_depend_on_the_data_amplify_nothing() -> None:
    # Weights on one of two groups, as the differing record says: 2 apart, whatever their largest.
    apart = 2 * 2**2 / (2 * 2.0**2)
    assert said("data-dependent-weights", noise_multiplier=2.0, max_weight=0.002, order=2) < apart
    rdp: Array = np.arange(2.0, 9.0) * 0.5
    fixed = weighted_rdp(max_weight=0.01, rdp=rdp, epsilon=math.inf, weights_depend_on_data=False)
    assert fixed[0] < rdp[0]
    with pytest.raises(ValueError, match="no bound holds"):
        weighted_rdp(max_weight=0.01, rdp=rdp, epsilon=math.inf, weights_depend_on_data=True)


def test_row_000_s4__the_toy_example_loses_log_seven_quarters_or_log_four() -> None:
    assert toy_epsilon(keep_probability=0.5, replacement=True) == pytest.approx(math.log(1.75))
    assert toy_epsilon(keep_probability=0.5, replacement=False) == pytest.approx(math.log(4))


def test_row_000_conv__the_conversion_is_the_classical_one_and_may_be_improved() -> None:
    rdp, orders = np.array([0.5]), np.array([10.0])
    classical, order = classical_rdp_epsilon(rdp=rdp, orders=orders, delta=1e-5)
    assert (classical, order) == pytest.approx((1.7792139405522476, 10), rel=1e-9)
    improved, _ = rdp_epsilon(rdp=rdp, orders=orders, delta=1e-5)
    assert improved == pytest.approx(1.4180106367839718, rel=1e-9)
