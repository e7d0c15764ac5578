"""What sampling makes of a guarantee, sampled answers, and errors of means."""

import json
import math
from fractions import Fraction
from itertools import product
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accounting.events import FixedSize, Full, NeighboringRelation, Poisson
from accounting.gaussian import gaussian_delta
from accounting.literature.local_dp import (
    ADD_OR_REMOVE_ONE,
    REPLACE_ONE,
    central_mean_error,
    coin_response_epsilon,
    local_mean_error,
    sampled_dp,
    sampled_profile,
    sampled_response_epsilon,
)

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_models.json").read_text(encoding="utf-8")
)
PROPERTY = settings(deadline=None, max_examples=40)
TINY = 1e-320


@pytest.mark.parametrize("row", GOLDEN["B.subsample"], ids=lambda row: f"{row['eps']}x{row['p']}")
def test_sampling_is_the_reference(row: dict[str, float]) -> None:
    epsilon, p = row["eps"], row["p"]
    for sampling, relation in (
        (Poisson(sampling_probability=p), ADD_OR_REMOVE_ONE),
        (FixedSize(batch_size=round(100 * p), dataset_size=100), REPLACE_ONE),
    ):
        found, delta = sampled_dp(epsilon=epsilon, delta=1e-5, sampling=sampling, relation=relation)
        assert found == pytest.approx(row["theorem"], rel=1e-9)
        assert delta == pytest.approx(p * 1e-5, rel=1e-12)
    response = sampled_response_epsilon(epsilon=epsilon, participation=p)
    assert response == pytest.approx(row["rr_exact"], rel=1e-9)
    assert response <= row["theorem"] * (1 + 1e-12)
    # The lecture's own response is kept with chance p epsilon / (2 + epsilon), and loses this.
    kept = coin_response_epsilon(heads=p * epsilon / (2 + epsilon))
    assert kept == pytest.approx(row["rrprime_exact_dp"], rel=1e-9)
    parameter = 2 * p * epsilon / (2 + (1 - p) * epsilon)
    assert parameter == pytest.approx(row["rrprime_true_param"], rel=1e-9)
    assert kept == pytest.approx(math.log1p(parameter), rel=1e-9)
    assert parameter < row["rrprime_lecture_param"] or p == 1


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (FixedSize(batch_size=1, dataset_size=9), ADD_OR_REMOVE_ONE),
        (FixedSize(batch_size=1, dataset_size=9), NeighboringRelation.REPLACE_SPECIAL),
        (Poisson(sampling_probability=0.1), REPLACE_ONE),
        (Poisson(sampling_probability=0.1), NeighboringRelation.REPLACE_SPECIAL),
        (Full(), REPLACE_ONE),
    ],
)
def test_other_pairs_of_sampling_and_relation_are_refused(
    sampling: FixedSize | Poisson, relation: NeighboringRelation
) -> None:
    with pytest.raises(ValueError, match="mplified"):
        sampled_dp(epsilon=1.0, delta=0.0, sampling=sampling, relation=relation)
    with pytest.raises(ValueError, match="mplified"):
        sampled_profile(1.0, profile=lambda _: 0.0, sampling=sampling, relation=relation)


def test_poisson_batches_exceed_the_formula_when_a_record_is_replaced() -> None:
    # Answers of one record by randomized response; without it, "nobody", which anyone can tell.
    # With it the step is epsilon-DP under replace_one, and so is the sampled one: no more.
    epsilon, q = 1.0, 0.25
    truth = 1 / (1 + math.exp(-epsilon))
    exact = math.log(q * truth / (q * (1 - truth)))
    claimed, _ = sampled_dp(
        epsilon=epsilon,
        delta=0.0,
        sampling=Poisson(sampling_probability=q),
        relation=ADD_OR_REMOVE_ONE,
    )
    assert exact == pytest.approx(1.0)
    assert claimed < 0.4


@PROPERTY
@given(epsilon=st.floats(0, 2000), delta=st.floats(0, 1), rate=st.floats(1e-9, 1))
def test_a_sampled_guarantee_is_rounded_up(epsilon: float, delta: float, rate: float) -> None:
    found, lost = sampled_dp(
        epsilon=epsilon,
        delta=delta,
        sampling=Poisson(sampling_probability=rate),
        relation=ADD_OR_REMOVE_ONE,
    )
    with mp.workdps(900):
        exact = mp.log1p(mp.mpf(rate) * mp.expm1(mp.mpf(epsilon)))
        assert exact <= found <= exact * (1 + 1e-11) + TINY
        assert mp.mpf(rate) * mp.mpf(delta) <= lost <= rate * delta * (1 + 1e-15) + TINY


def test_the_rate_of_a_subset_is_rounded_up() -> None:
    for batch, size, delta in product(range(1, 12), range(12, 40), (0.1, 0.3, 0.7, 1.0)):

        def constant(_: float, delta: float = delta) -> float:
            return delta

        sampling = FixedSize(batch_size=batch, dataset_size=size)
        _, lost = sampled_dp(epsilon=1.0, delta=delta, sampling=sampling, relation=REPLACE_ONE)
        whole = sampled_profile(0.5, profile=constant, sampling=sampling, relation=REPLACE_ONE)
        exact = Fraction(batch, size) * Fraction(delta)
        assert exact <= Fraction(lost) <= 1
        assert exact <= Fraction(whole) <= 1


@PROPERTY
@given(epsilon=st.floats(0, 30), mu=st.floats(0.1, 5), rate=st.floats(1e-6, 1))
def test_a_sampled_profile_is_the_definition(epsilon: float, mu: float, rate: float) -> None:
    # A Gaussian under Poisson sampling: the divergence of the mixture is the scaled one.
    found = sampled_profile(
        epsilon,
        profile=lambda one: gaussian_delta(one, mu=mu),
        sampling=Poisson(sampling_probability=rate),
        relation=ADD_OR_REMOVE_ONE,
    )
    with mp.workdps(60):
        g = 1 + mp.expm1(mp.mpf(epsilon)) / mp.mpf(rate)
        a = mp.log(g) / mp.mpf(mu)
        exact = mp.ncdf(mp.mpf(mu) / 2 - a) - g * mp.ncdf(-mp.mpf(mu) / 2 - a)
        exact *= mp.mpf(rate)
        assert exact <= found <= exact * (1 + 1e-8) + 1e-300


def test_a_profile_beats_its_best_single_point() -> None:
    ask = {"sampling": Poisson(sampling_probability=0.01), "relation": ADD_OR_REMOVE_ONE}
    whole = sampled_profile(0.1, profile=lambda one: gaussian_delta(one, mu=1.0), **ask)  # type: ignore[arg-type]
    for one in np.linspace(0.5, 5, 40):
        epsilon, delta = sampled_dp(
            epsilon=float(one),
            delta=gaussian_delta(float(one), mu=1.0),
            **ask,  # type: ignore[arg-type]
        )
        assert delta >= whole or epsilon > 0.1


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_guarantees_out_of_range_are_refused(value: float) -> None:
    sampling = Poisson(sampling_probability=0.1)
    with pytest.raises(ValueError, match="epsilon is finite"):
        sampled_dp(epsilon=value, delta=0.1, sampling=sampling, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="delta lies"):
        sampled_dp(epsilon=0.1, delta=value, sampling=sampling, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="epsilon is finite"):
        sampled_profile(value, profile=lambda _: 0.0, sampling=sampling, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="A profile lies"):
        sampled_profile(0.1, profile=lambda _: value, sampling=sampling, relation=ADD_OR_REMOVE_ONE)
    with pytest.raises(ValueError, match="epsilon is finite"):
        sampled_response_epsilon(epsilon=value, participation=0.1)
    with pytest.raises(ValueError, match="participation lies"):
        sampled_response_epsilon(epsilon=0.1, participation=value)


@PROPERTY
@given(epsilon=st.floats(1e-12, 800), p=st.floats(1e-9, 1))
@example(epsilon=700.3, p=1.0)
def test_a_sampled_response_is_a_response(epsilon: float, p: float) -> None:
    found = sampled_response_epsilon(epsilon=epsilon, participation=p)
    with mp.workdps(700):  # 1 - truth may be e^-800, of which 300 digits are wanted
        truth = 1 / (1 + mp.exp(-mp.mpf(epsilon)))
        says = mp.mpf(p) * truth + (1 - mp.mpf(p)) / 2
        exact = mp.log(says / (1 - says))
        assert exact * (1 - mp.mpf(10) ** -300) <= found <= exact * (1 + 1e-12)
    assert found <= epsilon


def test_sampled_responses_at_the_ends() -> None:
    assert sampled_response_epsilon(epsilon=0.0, participation=0.5) <= TINY
    assert sampled_response_epsilon(epsilon=0.7, participation=0.0) <= TINY
    assert sampled_response_epsilon(epsilon=0.7, participation=1.0) == pytest.approx(0.7, rel=1e-14)
    assert sampled_response_epsilon(epsilon=800.0, participation=1.0) == 800.0
    assert sampled_response_epsilon(epsilon=800.0, participation=0.5) == pytest.approx(math.log(3))


@pytest.mark.parametrize("row", GOLDEN["B.errors"], ids=lambda row: f"{row['n']}")
def test_errors_are_the_references(row: dict[str, float]) -> None:
    records, epsilon = int(row["n"]), row["eps"]
    central = central_mean_error(epsilon=epsilon, records=records, data_range=1.0)
    assert central == pytest.approx(row["central_laplace_mae"], rel=1e-9)
    local = local_mean_error(epsilon=epsilon, records=records)
    assert local == pytest.approx(row["local_rr_sd_mean_half"], rel=1e-9)
    assert local / central == pytest.approx(row["ratio"], rel=1e-9)


@PROPERTY
@given(epsilon=st.floats(1e-3, 30), records=st.integers(1, 60), share=st.floats(0, 1))
def test_the_local_error_is_the_largest_over_populations(
    epsilon: float, records: int, share: float
) -> None:
    found = local_mean_error(epsilon=epsilon, records=records)
    with mp.workdps(40):
        half = mp.tanh(mp.mpf(epsilon) / 2)
        says = mp.mpf("0.5") + (mp.mpf(share) - mp.mpf("0.5")) * half
        exact = mp.sqrt(says * (1 - says) / records) / half
        worst = mp.sqrt(mp.mpf("0.25") / records) / half  # each operation rounds as that above
        assert exact <= worst <= found <= worst * (1 + 1e-13)


@PROPERTY
@given(epsilon=st.floats(1e-3, 30), records=st.integers(1, 10**9), width=st.floats(1e-3, 1e3))
def test_the_central_error_is_rounded_up(epsilon: float, records: int, width: float) -> None:
    found = central_mean_error(epsilon=epsilon, records=records, data_range=width)
    exact = mp.mpf(width) / (records * mp.mpf(epsilon))
    assert exact <= found * (1 + mp.mpf(10) ** -15)
    with mp.workdps(40):
        exact = mp.mpf(width) / (records * mp.mpf(epsilon))
        assert exact <= found <= exact * (1 + 1e-15)


@pytest.mark.parametrize(
    ("epsilon", "records"), [(0.0, 1), (-1.0, 1), (math.inf, 1), (math.nan, 1), (1.0, 0)]
)
def test_errors_out_of_range_are_refused(epsilon: float, records: int) -> None:
    with pytest.raises(ValueError, match="epsilon is positive and finite"):
        local_mean_error(epsilon=epsilon, records=records)
    with pytest.raises(ValueError, match="epsilon is positive and finite"):
        central_mean_error(epsilon=epsilon, records=records, data_range=1.0)


@pytest.mark.parametrize("width", [0.0, -1.0, math.inf, math.nan])
def test_data_without_a_range_have_no_error(width: float) -> None:
    with pytest.raises(ValueError, match="data_range is positive and finite"):
        central_mean_error(epsilon=1.0, records=10, data_range=width)
