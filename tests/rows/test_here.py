"""What the documents ask for and is proved here: a test for each row."""

import numpy as np
import pytest

from accounting.literature.contraction.contraction import record_delta, shuffled_delta
from accounting.literature.contraction.refined import (
    refined_contraction_delta,
    refined_shuffled_delta,
)
from accounting.shuffling.partial import partial_shuffle_pairs, partial_shuffle_rdp
from tests.accounting.test_quarantine_counterexamples import star_pair_rdp
from tests.rows.runs import projected


def test_row_x_c9__a_pass_that_stops_early_is_drawn_afresh_at_rising_rates() -> None:
    pairs = partial_shuffle_pairs(
        noise_multiplier=2.0, batch_size=1, dataset_size=10, steps_per_pass=4
    )
    rates = [pair.sampling_probability for pair, count in pairs for _ in range(count)]
    assert rates == pytest.approx([1 / 10, 1 / 9, 1 / 8, 1 / 7])
    (proved,) = partial_shuffle_rdp(
        noise_multiplier=2.0,
        batch_size=1,
        dataset_size=1000,
        steps_per_pass=500,
        orders=np.array([14.0]),
    )
    assert proved > star_pair_rdp(14, n=1000, k=500, sigma=2.0)
    with pytest.raises(ValueError, match="steps_per_pass"):
        partial_shuffle_pairs(
            noise_multiplier=2.0, batch_size=1, dataset_size=10, steps_per_pass=10
        )


def test_row_x_a8__the_refined_chain_is_never_larger_and_far_smaller_for_early_records() -> None:
    run = projected(noise_scale=2.0, learning_rate=0.5)
    for record in (1, 3, 5):
        plain = record_delta(run, epsilon=1.0, steps=5, record=record)
        refined = refined_contraction_delta(run, epsilon=1.0, steps=5, record=record)
        assert refined.log_delta <= plain.log_delta + 1e-9
    early = refined_contraction_delta(run, epsilon=1.0, steps=5, record=1)
    assert early.log_delta < record_delta(run, epsilon=1.0, steps=5, record=1).log_delta - 5
    # At epsilon = 0 a divergence is a total variation, which contracts the same wherever it is.
    zero = [
        one(run, epsilon=0.0, steps=5, record=1)
        for one in (record_delta, refined_contraction_delta)
    ]
    assert zero[1].log_delta == pytest.approx(zero[0].log_delta, rel=1e-6)
    whole = [one(run, epsilon=1.0, steps=50) for one in (shuffled_delta, refined_shuffled_delta)]
    assert whole[1].log_delta <= whole[0].log_delta + 1e-9
