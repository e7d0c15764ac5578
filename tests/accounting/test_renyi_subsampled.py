"""Renyi curves of any mechanism on a batch, and the classical conversion."""

import json
import math
from itertools import combinations
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from accounting.literature.subsampled_renyi import subsampled_rdp, weighted_rdp
from accounting.renyi.conversion import classical_rdp_epsilon, rdp_delta, rdp_epsilon
from accounting.renyi.pure import pure_dp_rdp
from accounting.rounding import Array

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_models.json").read_text(encoding="utf-8")
)
PROPERTY = settings(deadline=None, max_examples=40)


def _orders(alpha: float) -> Array:
    return np.arange(2.0, alpha + 1)


@pytest.mark.parametrize("row", GOLDEN["C.wbk"], ids=lambda row: f"{row['alpha']}")
def test_a_gaussian_on_a_batch_is_the_reference(row: dict[str, float]) -> None:
    curve = _orders(row["alpha"]) * row["mu"] ** 2 / 2
    found = subsampled_rdp(rate=row["gamma"], rdp=curve, epsilon=math.inf)[-1]
    assert found == pytest.approx(row["full"], rel=1e-9)
    assert found <= row["seed"] * (1 + 1e-12)  # the terms that later restatements dropped
    weighted = weighted_rdp(
        max_weight=row["gamma"], rdp=curve, epsilon=math.inf, weights_depend_on_data=False
    )[-1]
    assert weighted == found
    assert weighted <= row["misprint_j1"] * (1 + 1e-12)


@pytest.mark.parametrize("row", GOLDEN["C.wbk_pure"], ids=lambda row: f"{row['alpha']}")
def test_a_pure_mechanism_on_a_batch_is_the_reference(row: dict[str, float]) -> None:
    pure = row["pure_eps"]
    curve = np.minimum(pure, 0.5 * pure * pure * _orders(row["alpha"]))
    found = subsampled_rdp(rate=row["gamma"], rdp=curve, epsilon=pure)[-1]
    assert found == pytest.approx(row["full"], rel=1e-9)
    assert found < row["seed"]


def _definition(rate: float, rdp: Array, epsilon: float) -> mp.mpf:
    """The theorem, term by term, to fifty digits; at the last order."""
    with mp.workdps(50):
        g, alpha = mp.mpf(rate), len(rdp) + 1
        gain = mp.expm1(mp.mpf(epsilon)) if math.isfinite(epsilon) else mp.inf
        two = mp.exp(mp.mpf(float(rdp[0])))
        first = min(4 * (two - 1), two * min(mp.mpf(2), gain**2))
        total = g**2 * mp.binomial(alpha, 2) * first
        for j in range(3, alpha + 1):
            share = mp.exp((j - 1) * mp.mpf(float(rdp[j - 2]))) * min(mp.mpf(2), gain**j)
            total += g**j * mp.binomial(alpha, j) * share
        return mp.log1p(total) / (alpha - 1)


@PROPERTY
@given(
    rate=st.floats(1e-6, 1),
    cost=st.floats(1e-9, 60),
    epsilon=st.one_of(st.just(math.inf), st.floats(1e-6, 30)),
    alpha=st.integers(2, 200),
)
def test_the_bound_is_its_definition_rounded_up(
    rate: float, cost: float, epsilon: float, alpha: int
) -> None:
    curve = cost * _orders(alpha)
    found = subsampled_rdp(rate=rate, rdp=curve, epsilon=epsilon)[-1]
    exact = _definition(rate, curve, epsilon)
    assert exact <= found <= exact * (1 + 1e-10)


def test_very_large_curves_are_not_cut_off() -> None:
    found = subsampled_rdp(rate=0.5, rdp=np.array([1000.0, math.inf, 2000.0]), epsilon=math.inf)
    assert found[0] == pytest.approx(1000 + math.log(0.5), rel=1e-12)
    assert found[0] >= 1000 + math.log(0.5)
    assert found[1] == found[2] == math.inf


def test_the_last_order_there_is() -> None:
    curve = 0.01 * _orders(2048)
    found = subsampled_rdp(rate=0.01, rdp=curve, epsilon=math.inf)
    assert found[-1] == pytest.approx(float(_definition(0.01, curve, math.inf)), rel=1e-11)
    assert found[-1] >= _definition(0.01, curve, math.inf)
    with pytest.raises(ValueError, match="orders 2 to m"):
        subsampled_rdp(rate=0.01, rdp=np.append(curve, 1.0), epsilon=math.inf)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
def test_explicit_subsets_lose_less(epsilon: float) -> None:
    # The batch's answer is a randomized response on whether its records agree.
    records, batch = 5, 2
    truth = 1 / (1 + math.exp(-epsilon))
    curve = pure_dp_rdp(epsilon=epsilon, orders=_orders(8))
    bound = subsampled_rdp(rate=batch / records, rdp=curve, epsilon=epsilon)

    def yes(data: tuple[int, ...]) -> float:
        said = [truth if data[i] == data[j] else 1 - truth for i, j in combinations(range(5), 2)]
        return sum(said) / len(said)

    worst = np.zeros(7)
    for changed in range(16):
        others = tuple(changed >> i & 1 for i in range(4))
        p, q = yes((0, *others)), yes((1, *others))
        for one, other in ((p, q), (q, p)):
            moments = [
                one**a * other ** (1 - a) + (1 - one) ** a * (1 - other) ** (1 - a)
                for a in _orders(8)
            ]
            worst = np.maximum(worst, np.log(moments) / (_orders(8) - 1))
    assert np.all(worst <= bound)
    assert np.any(worst > 0.05 * bound)


@pytest.mark.parametrize("weights", [(0.2, 0.5, 0.3), (0.05, 0.05, 0.9), (1 / 3, 1 / 3, 1 / 3)])
def test_records_drawn_by_weight_lose_less(weights: tuple[float, ...]) -> None:
    epsilon, truth = 1.0, 1 / (1 + math.exp(-1.0))
    curve = pure_dp_rdp(epsilon=epsilon, orders=_orders(6))
    for i, weight in enumerate(weights):
        rest = sum(w for j, w in enumerate(weights) if j != i)
        p, q = rest * truth + weight * truth, rest * truth + weight * (1 - truth)
        bound = weighted_rdp(
            max_weight=weight, rdp=curve, epsilon=epsilon, weights_depend_on_data=False
        )
        for one, other in ((p, q), (q, p)):
            moments = np.array(
                [
                    one**a * other ** (1 - a) + (1 - one) ** a * (1 - other) ** (1 - a)
                    for a in _orders(6)
                ]
            )
            assert np.all(np.log(moments) / (_orders(6) - 1) <= bound)


def test_weights_that_depend_on_the_data_exceed_the_bound_and_are_refused() -> None:
    # Half of n records hold 1. Beside one value of a record they share all of the weight, beside
    # the other the rest do: no weight is above 2/n, yet the answers are as far apart as can be.
    epsilon, truth = 1.0, 1 / (1 + math.exp(-1.0))
    curve = pure_dp_rdp(epsilon=epsilon, orders=_orders(2))
    bound = weighted_rdp(
        max_weight=2 / 1000, rdp=curve, epsilon=epsilon, weights_depend_on_data=False
    )
    moment = truth**2 / (1 - truth) + (1 - truth) ** 2 / truth
    assert math.log(moment) > 1000 * bound[0]
    with pytest.raises(ValueError, match="no bound holds"):
        weighted_rdp(max_weight=2 / 1000, rdp=curve, epsilon=epsilon, weights_depend_on_data=True)


def test_what_tells_nothing_tells_nothing() -> None:
    assert subsampled_rdp(rate=0.1, rdp=np.array([math.inf]), epsilon=0.0)[0] == 0
    assert np.all(subsampled_rdp(rate=0.1, rdp=np.zeros(1), epsilon=1.0) <= 1e-320)


@pytest.mark.parametrize(
    ("rate", "rdp", "epsilon", "message"),
    [
        (0.0, [1.0], 1.0, "rate lies"),
        (1.1, [1.0], 1.0, "rate lies"),
        (math.nan, [1.0], 1.0, "rate lies"),
        (0.1, [], 1.0, "orders 2 to m"),
        (0.1, [-1.0], 1.0, "Neither rdp"),
        (0.1, [math.nan], 1.0, "Neither rdp"),
        (0.1, [1.0], -1.0, "Neither rdp"),
        (0.1, [1.0], math.nan, "Neither rdp"),
    ],
)
def test_curves_out_of_range_are_refused(
    rate: float, rdp: list[float], epsilon: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        subsampled_rdp(rate=rate, rdp=np.array(rdp), epsilon=epsilon)
    with pytest.raises(ValueError, match=message):
        weighted_rdp(
            max_weight=rate, rdp=np.array(rdp), epsilon=epsilon, weights_depend_on_data=False
        )


def test_a_batch_is_of_fixed_size_and_a_record_is_replaced() -> None:
    assert subsampled_rdp.relations == weighted_rdp.relations == (NeighboringRelation.REPLACE_ONE,)
    assert subsampled_rdp.assumptions == (Assumption.FIXED_SIZE_SAMPLING,)
    assert weighted_rdp.assumptions == (Assumption.DATA_INDEPENDENT_WEIGHTS,)
    assert weighted_rdp.status is Status.DERIVED


# Conversions


@pytest.mark.parametrize("row", GOLDEN["C.rdp_to_dp"], ids=lambda row: f"{row['alpha']}")
def test_conversions_are_the_references(row: dict[str, float]) -> None:
    rdp, orders = np.array([row["rdp"]]), np.array([float(row["alpha"])])
    classical, order = classical_rdp_epsilon(rdp=rdp, orders=orders, delta=row["delta"])
    assert classical == pytest.approx(row["mironov"], rel=1e-9)
    assert order == row["alpha"]
    improved, _ = rdp_epsilon(rdp=rdp, orders=orders, delta=row["delta"])
    assert improved == pytest.approx(row["cks"], rel=1e-9)
    delta, _ = rdp_delta(rdp=rdp, orders=orders, epsilon=1.0)
    assert delta == pytest.approx(row["delta_at_eps1_cks"], rel=1e-9)


@PROPERTY
@given(cost=st.floats(0, 3), delta=st.floats(1e-300, 0.999))
def test_the_classical_conversion_is_rounded_up_and_never_the_better(
    cost: float, delta: float
) -> None:
    orders = np.array([1.1, 1.5, 2.0, 8.0, 64.0, 512.0])
    found, order = classical_rdp_epsilon(rdp=cost * orders, orders=orders, delta=delta)
    with mp.workdps(40):
        exact = min(
            mp.mpf(float(one)) + mp.log(1 / mp.mpf(delta)) / (mp.mpf(float(alpha)) - 1)
            for one, alpha in zip(cost * orders, orders, strict=True)
        )
        assert exact <= found <= exact * (1 + 1e-13)
    assert order in orders
    assert rdp_epsilon(rdp=cost * orders, orders=orders, delta=delta)[0] <= found * (1 + 1e-12)


@pytest.mark.parametrize(("delta", "rdp"), [(0.0, 1.0), (1.0, 1.0), (0.1, -1.0), (0.1, math.nan)])
def test_conversions_out_of_range_are_refused(delta: float, rdp: float) -> None:
    with pytest.raises(ValueError, match=r"delta lies|not negative"):
        classical_rdp_epsilon(rdp=np.array([rdp]), orders=np.array([2.0]), delta=delta)
