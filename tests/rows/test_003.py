"""Document 003: a test for each row."""

import itertools
import math

import numpy as np
import pytest

from accounting.composition import group_privacy
from accounting.events import FixedSize, NeighboringRelation, Poisson
from accounting.last_iterate.closed_forms import bounded_cyclic_mu, single_use_mu
from accounting.literature.contraction.contraction import record_delta
from accounting.literature.local_dp import (
    central_mean_error,
    local_mean_error,
    sampled_dp,
    sampled_response_epsilon,
)
from accounting.literature.local_randomizers import (
    Randomizer,
    clones_class_epsilon,
    clones_general_epsilon,
)
from accounting.literature.shuffled_responses import shuffled_response_epsilon
from accounting.renyi.randomized_response import randomized_response_rdp
from accounting.shuffling.clones import clones_epsilon
from service.schemas.requests import NewDataset
from tests.accounting.quarantined import said
from tests.rows.runs import projected

REPLACE = NeighboringRelation.REPLACE_ONE
HALF = FixedSize(batch_size=50, dataset_size=100)


def test_row_003_t1_1__a_subset_amplifies_under_its_own_relation() -> None:
    found = sampled_dp(epsilon=1.0, delta=1e-6, sampling=HALF, relation=REPLACE)
    assert found == pytest.approx((0.620114506958278, 5e-7), rel=1e-9)
    poisson = Poisson(sampling_probability=0.5)
    added = NeighboringRelation.ADD_OR_REMOVE_ONE
    assert sampled_dp(epsilon=1.0, delta=1e-6, sampling=poisson, relation=added) == (
        pytest.approx(found)
    )
    for sampling, relation in ((HALF, added), (poisson, REPLACE)):
        with pytest.raises(ValueError, match="amplified under"):
            sampled_dp(epsilon=1.0, delta=1e-6, sampling=sampling, relation=relation)


def test_row_003_rr__the_second_parametrisation_is_log_one_plus_epsilon() -> None:
    # RR' tells the truth with chance (1 + e)/(2 + e); as the order grows RDP tends to its epsilon.
    for epsilon in (0.5, 1.0, 2.0):
        (rdp,) = randomized_response_rdp(
            probability_of_truth=(1 + epsilon) / (2 + epsilon),
            categories=2,
            orders=np.array([1024.0]),
        )
        assert rdp == pytest.approx(math.log1p(epsilon), rel=2e-3)
        assert rdp < math.log1p(epsilon)


def test_row_003_rrsub__subsampled_response_is_known_exactly_and_is_not_the_lectures() -> None:
    epsilon, p = math.log(2), 0.5  # RR at log 2 is RR' at 1: the lecture's epsilon
    exact = sampled_response_epsilon(epsilon=epsilon, participation=p)
    assert exact == pytest.approx(2 * math.atanh(p * math.tanh(epsilon / 2)), rel=1e-9)
    assert exact == pytest.approx(math.log(1.4), rel=1e-9)
    kept = said("subsampled-response-as-printed", epsilon=1.0, sampling_probability=p)
    assert (1 + kept) / (1 - kept) == pytest.approx(1.5)  # it says log 1.5, which is log(1 + 1 p)


def test_row_003_dup__the_unit_is_declared_and_copies_cost_more() -> None:
    epsilon, delta = group_privacy(epsilon=0.5, delta=1e-6, size=3)
    assert epsilon == pytest.approx(1.5)
    assert delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.exp(1.0)), rel=1e-9)
    with pytest.raises(ValueError, match="privacy_unit"):
        NewDataset.model_validate(
            {"name": "a", "dataset_size": 3, "neighboring_relation": "replace_one"}
        )


def test_row_003_ldp__a_local_mean_errs_more_by_the_square_root_of_n() -> None:
    central = [central_mean_error(epsilon=0.5, records=n, data_range=1.0) for n in (100, 10_000)]
    local = [local_mean_error(epsilon=0.5, records=n) for n in (100, 10_000)]
    assert central == pytest.approx([1 / 50, 1 / 5000], rel=1e-9)
    assert central[0] / central[1] == pytest.approx(100)
    assert local[0] / local[1] == pytest.approx(10)
    assert central[0] == pytest.approx(
        said("central-mean-of-unbounded-data", epsilon=0.5, dataset_size=100)
    )
    with pytest.raises(ValueError, match="data_range"):
        central_mean_error(epsilon=0.5, records=100, data_range=math.inf)


def test_row_003_t2_1__shuffling_amplifies_and_each_bound_has_its_class() -> None:
    n, delta = 10_000, 1e-6
    exact = shuffled_response_epsilon(epsilon0=1.0, records=n, delta=delta)
    of_class = clones_class_epsilon(
        epsilon0=1.0, records=n, delta=delta, randomizer=Randomizer.BINARY_RR
    )
    general = clones_general_epsilon(epsilon0=1.0, records=n, delta=delta)
    closed = clones_epsilon(epsilon0=1.0, steps_per_pass=n, delta=delta)
    assert exact < of_class < general < closed
    assert general == pytest.approx(0.0530053, rel=1e-3)
    assert closed == pytest.approx(0.214026, rel=1e-5)
    assert of_class == pytest.approx(0.0432062, rel=1e-3)
    # What is withdrawn for all randomizers holds for the class, and there it is the same number.
    withdrawn = said("clones-stronger-general", epsilon0=1.0, epsilon=of_class, steps_per_pass=n)
    assert withdrawn == pytest.approx(delta, rel=1e-4)
    ratios = [clones_epsilon(epsilon0=0.5, steps_per_pass=m, delta=1e-6) for m in (10**6, 10**8)]
    assert ratios[0] / ratios[1] == pytest.approx(10, rel=0.1)  # like 1/sqrt n


def one_pass(records: np.ndarray[tuple[int, ...], np.dtype[np.float64]], batch: int) -> float:
    """Algorithm 1 on x^2/2 - record x, without its noise: a linear function of the records."""
    weight = 0.0
    for first in range(0, len(records), batch):
        weight -= 0.1 * (weight - float(records[first : first + batch].mean()))
    return weight


def test_row_003_a1__one_pass_shows_a_record_less_the_earlier_it_came() -> None:
    zero = np.zeros(20)
    moved = []
    for record in range(20):
        other = zero.copy()
        other[record] = 1.0
        moved.append(one_pass(other, 5) - one_pass(zero, 5))
    assert moved == sorted(moved)
    assert moved[0] == pytest.approx(0.02 * 0.9**3)
    assert moved[-1] == pytest.approx(0.02)


def test_row_003_early__records_that_come_early_are_protected_better() -> None:
    run = projected(noise_scale=5.0)
    deltas = [record_delta(run, epsilon=1.0, steps=8, record=i).delta for i in range(1, 9)]
    mus = [
        single_use_mu(lipschitz=1.05, sensitivity=0.2, noise=1.0, steps_left=8 - i)
        for i in range(8)
    ]
    for found in (deltas, mus):
        assert all(one < other for one, other in itertools.pairwise(found))


def test_row_003_t3_1__on_a_bounded_domain_the_loss_stops_growing() -> None:
    mus = [
        bounded_cyclic_mu(
            lipschitz=1.0, sensitivity=0.01, noise=0.1, steps=steps, steps_per_pass=1, diameter=1.0
        )
        for steps in (10, 100, 1000, 10**6)
    ]
    assert mus[0] < mus[1] < mus[2]
    assert mus[2] == pytest.approx(mus[3])
    assert mus[3] ** 2 == pytest.approx(4 * 1.0 * 0.01 / 0.1**2, rel=0.03)  # 4 D s / sigma^2
