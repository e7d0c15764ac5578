"""Shuffled answers: clones for any randomizer, for a class, and exact counts of yes and no."""

import json
import math
from itertools import combinations, permutations, product
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.binomial import Window
from accounting.events import NeighboringRelation
from accounting.literature import local_randomizers, shuffled_responses
from accounting.literature.local_randomizers import (
    EPSILON0_MAX,
    Randomizer,
    clones_class_delta,
    clones_class_epsilon,
    clones_general_delta,
    clones_general_epsilon,
    least_epsilon,
)
from accounting.literature.shuffled_responses import (
    RECORDS_MAX,
    shuffled_response_delta,
    shuffled_response_epsilon,
)
from accounting.rounding import Array
from accounting.shuffling.clones import clones_epsilon
from tests.accounting.shuffle_floors import shuffle_lower_epsilon

GOLDEN = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_models.json").read_text(encoding="utf-8")
)
ROWS = pytest.mark.parametrize(
    "row", GOLDEN["B.shuffle"], ids=lambda row: f"{row['eps0']}-{row['n']}"
)
PROPERTY = settings(deadline=None, max_examples=25)
BINARY = Randomizer.BINARY_RR


@ROWS
def test_epsilons_are_the_references(row: dict[str, float]) -> None:
    epsilon0, records, delta = row["eps0"], int(row["n"]), row["delta"]
    general = clones_general_epsilon(epsilon0=epsilon0, records=records, delta=delta)
    assert general == pytest.approx(row["clone21"], rel=1e-8)
    special = clones_class_epsilon(
        epsilon0=epsilon0, records=records, delta=delta, randomizer=BINARY
    )
    assert special == pytest.approx(row["clone23_class_only"], rel=1e-8)
    closed = clones_epsilon(epsilon0=epsilon0, delta=delta, steps_per_pass=records)
    if row["closed_valid_4"]:
        assert closed == pytest.approx(row["closed"], rel=1e-9)
    assert special <= general <= closed <= epsilon0
    if row["rr_exact_max_over_k0_mid_last"] is not None:
        exact = shuffled_response_epsilon(epsilon0=epsilon0, records=records, delta=delta)
        known = row["rr_exact_max_over_k0_mid_last"]
        assert exact == pytest.approx(known, rel=row["tol"])
        assert known * (1 - 1e-10) <= exact <= special


def test_a_published_implementation_brackets_the_general_bound() -> None:
    found = clones_general_epsilon(epsilon0=4.0, records=10**5, delta=1e-6)
    assert 0.16754 < found < 0.17279


def _binomial(trials: int, chance: mp.mpf) -> list[mp.mpf]:
    return [
        mp.binomial(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)
    ]


def _clones_by_definition(epsilon: float, epsilon0: float, records: int, copies: int) -> mp.mpf:
    """The divergence of the two laws of (zeros, ones), every pair of counts at its turn."""
    with mp.workdps(60):
        power = mp.exp(mp.mpf(epsilon0))
        chance = mp.mpf(copies) / (power + copies - 1)
        truth, found = power / (1 + power), mp.mpf(0)
        for clones, weight in enumerate(_binomial(records - 1, chance)):
            ones = [*_binomial(clones, mp.mpf("0.5")), mp.mpf(0)]
            for x in range(clones + 2):
                before = ones[x - 1] if x else mp.mpf(0)
                p = truth * before + (1 - truth) * ones[x]
                q = (1 - truth) * before + truth * ones[x]
                found += weight * max(mp.mpf(0), p - mp.exp(mp.mpf(epsilon)) * q)
        return found


@PROPERTY
@given(epsilon0=st.floats(0.01, 8), share=st.floats(0, 1), records=st.integers(1, 30))
def test_clones_are_counted_by_definition(epsilon0: float, share: float, records: int) -> None:
    epsilon = share * epsilon0
    ask = {"epsilon0": epsilon0, "records": records}
    general = clones_general_delta(epsilon, **ask)  # type: ignore[arg-type]
    exact = _clones_by_definition(epsilon, epsilon0, records, 1)
    assert exact - 1e-40 <= general <= exact * (1 + 1e-8) + 1e-14
    special = clones_class_delta(epsilon, **ask, randomizer=Randomizer.K_RR)  # type: ignore[arg-type]
    exact = _clones_by_definition(epsilon, epsilon0, records, 2)
    assert exact - 1e-40 <= special <= exact * (1 + 1e-8) + 1e-14


# Explicit shuffled protocols, every answer of every user


def _rows(categories: int, epsilon0: float) -> Array:
    """Randomized response: the law of the answer for each record."""
    rows = np.ones((categories, categories))
    np.fill_diagonal(rows, math.exp(epsilon0))
    return np.asarray(rows / rows.sum(axis=1, keepdims=True))


def _shuffled(rows: Array, records: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The law of the collection of messages."""
    law: dict[tuple[int, ...], float] = {}
    for messages in product(range(rows.shape[1]), repeat=len(records)):
        chance = math.prod(rows[x, y] for x, y in zip(records, messages, strict=True))
        seen = tuple(sorted(messages))
        law[seen] = law.get(seen, 0.0) + chance
    return law


def _divergence(
    first: dict[tuple[int, ...], float], second: dict[tuple[int, ...], float], power: float
) -> float:
    return sum(max(0.0, one - power * second[seen]) for seen, one in first.items())


def _worst(rows: Array, users: int, epsilon: float) -> float:
    worst, inputs = 0.0, range(len(rows))
    for others in product(inputs, repeat=users - 1):
        if list(others) != sorted(others):
            continue  # the collection does not tell who is who
        laws = [_shuffled(rows, (mine, *others)) for mine in inputs]
        for a, b in permutations(inputs, 2):
            worst = max(worst, _divergence(laws[a], laws[b], math.exp(epsilon)))
    return worst


@pytest.mark.parametrize(("epsilon0", "users"), [(0.5, 8), (1.0, 7), (3.0, 6), (1.0, 1)])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.9])
def test_yes_and_no_are_counted_exactly(epsilon0: float, users: int, share: float) -> None:
    epsilon = share * epsilon0
    found = [
        shuffled_response_delta(epsilon, epsilon0=epsilon0, records=users, others_with_yes=others)
        for others in range(users)
    ]
    exact = _worst(_rows(2, epsilon0), users, epsilon)
    assert max(found) == pytest.approx(exact, rel=1e-10, abs=1e-15)
    assert max(found) >= exact * (1 - 1e-13)
    bounds = [
        clones_class_delta(epsilon, epsilon0=epsilon0, records=users, randomizer=BINARY),
        clones_general_delta(epsilon, epsilon0=epsilon0, records=users),
    ]
    assert max(found) * (1 - 1e-9) <= bounds[0] <= bounds[1] * (1 + 1e-9)


@pytest.mark.parametrize("epsilon0", [0.5, 2.0])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_categories_are_in_the_class(epsilon0: float, share: float) -> None:
    epsilon, rows = share * epsilon0, _rows(3, epsilon0)
    for a, b in permutations(range(3), 2):
        mixture = (rows[a] + rows[b]) / (math.exp(epsilon0) + 1)
        assert np.all(rows >= mixture * (1 - 1e-12))
    bound = clones_class_delta(epsilon, epsilon0=epsilon0, records=5, randomizer=Randomizer.K_RR)
    assert _worst(rows, 5, epsilon) <= bound


def test_any_randomizer_keeps_the_general_bound() -> None:
    # Four inputs and five outputs, whose chances take one of two values before they are scaled:
    # most are outside the class. No clone is more frequent than e^-epsilon0 allows.
    rng, worst = np.random.default_rng(5), 0.0
    for _ in range(40):
        rows = np.where(rng.random((4, 5)) < 0.5, math.exp(2.0), 1.0)
        rows /= rows.sum(axis=1, keepdims=True)
        level = math.log(float(np.max(rows.max(axis=0) / rows.min(axis=0))))
        for share in (0.1, 0.5):
            bound = clones_general_delta(share * level, epsilon0=level, records=3)
            worst = max(worst, _worst(rows, 3, share * level) / bound)
    assert 0.7 < worst <= 1


@pytest.mark.parametrize(
    ("epsilon0", "records", "delta"), [(0.5, 80, 1e-3), (2.0, 60, 1e-4), (0.3, 101, 1e-2)]
)
def test_the_worst_of_all_that_others_may_hold_is_found(
    epsilon0: float, records: int, delta: float
) -> None:
    epsilon = shuffled_response_epsilon(epsilon0=epsilon0, records=records, delta=delta)

    def worst(at: float) -> float:
        return max(
            shuffled_response_delta(at, epsilon0=epsilon0, records=records, others_with_yes=k)
            for k in range(records)
        )

    assert worst(epsilon) <= delta < worst(epsilon * (1 - 3e-7))


def test_the_worst_case_is_not_always_at_the_ends_or_in_the_middle() -> None:
    ask = {"epsilon0": 0.5, "records": 1000}
    epsilon = shuffled_response_epsilon(**ask, delta=1e-5)  # type: ignore[arg-type]
    deltas = [
        shuffled_response_delta(epsilon, **ask, others_with_yes=k)  # type: ignore[arg-type]
        for k in (997, 999, 500, 0)
    ]
    assert deltas[0] == pytest.approx(1e-5, rel=1e-4)
    assert max(deltas[1:]) < 0.998 * deltas[0]


@PROPERTY
@given(
    epsilon0=st.floats(0.01, 6),
    records=st.integers(1, 3000),
    log_delta=st.floats(-25, -1),
)
def test_the_more_is_known_the_less_is_lost(
    epsilon0: float, records: int, log_delta: float
) -> None:
    ask = {"epsilon0": epsilon0, "records": records, "delta": math.exp(log_delta)}
    exact = shuffled_response_epsilon(**ask)  # type: ignore[arg-type]
    special = clones_class_epsilon(**ask, randomizer=BINARY)  # type: ignore[arg-type]
    general = clones_general_epsilon(**ask)  # type: ignore[arg-type]
    closed = clones_epsilon(epsilon0=epsilon0, delta=math.exp(log_delta), steps_per_pass=records)
    assert exact * (1 - 3e-7) <= special <= general * (1 + 1e-9)
    assert general <= closed * (1 + 1e-9)
    assert max(exact, special, general) <= epsilon0


@PROPERTY
@given(epsilon0=st.floats(0.1, 10), records=st.integers(1, 10**6), log_delta=st.floats(-60, -1))
def test_at_the_epsilon_the_delta_is_small_enough(
    epsilon0: float, records: int, log_delta: float
) -> None:
    delta = math.exp(log_delta)
    found = clones_general_epsilon(epsilon0=epsilon0, records=records, delta=delta)
    at = clones_general_delta(found, epsilon0=epsilon0, records=records)
    assert at <= delta * (1 + 1e-9)
    if 0 < found < epsilon0 * (1 - 1e-8):
        less = clones_general_delta(found * (1 - 1e-6), epsilon0=epsilon0, records=records)
        assert less > delta


def test_a_million_records_take_few_sums_of_few_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    whole = local_randomizers._clones_delta

    def counted(epsilon: float, *, epsilon0: float, clones: Window) -> float:
        counts.append(len(clones.masses))
        return whole(epsilon, epsilon0=epsilon0, clones=clones)

    monkeypatch.setattr(local_randomizers, "_clones_delta", counted)
    for epsilon0 in (0.1, 1.0, 8.0):
        counts.clear()
        found = clones_general_epsilon(epsilon0=epsilon0, records=10**6, delta=1e-6)
        assert found < 0.06 * epsilon0
        assert len(counts) < 40
        assert max(counts) < 20_000


def test_more_records_than_can_be_counted_count_as_fewer() -> None:
    ask = {"epsilon0": 9.0, "delta": 1e-6}
    most = clones_general_epsilon(**ask, records=10**7 + 1)
    assert clones_general_epsilon(**ask, records=10**12) == most


def test_without_a_crowd_or_a_secret_nothing_is_gained() -> None:
    assert clones_general_epsilon(epsilon0=EPSILON0_MAX * 2, records=10, delta=0.1) == 600.0
    assert clones_general_delta(1.0, epsilon0=EPSILON0_MAX * 2, records=10) == 1.0
    assert clones_general_delta(2.0, epsilon0=2.0, records=10) == 0.0
    assert clones_general_epsilon(epsilon0=0.0, records=10, delta=0.1) == 0.0
    assert clones_general_epsilon(epsilon0=1e-300, records=10, delta=1e-310) <= 1e-300
    assert clones_general_epsilon(epsilon0=30.0, records=9, delta=1e-12) == 30.0
    assert shuffled_response_epsilon(epsilon0=0.0, records=10, delta=0.1) == 0.0
    assert shuffled_response_delta(0.0, epsilon0=0.0, records=3, others_with_yes=1) == 0.0


def test_the_general_randomizer_is_refused_for_the_class() -> None:
    ask = {"epsilon0": 1.0, "records": 100, "randomizer": Randomizer.GENERAL}
    with pytest.raises(ValueError, match="withdrew this bound for general randomizers"):
        clones_class_epsilon(**ask, delta=1e-6)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="withdrew this bound for general randomizers"):
        clones_class_delta(0.1, **ask)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, math.inf, math.nan])
def test_epsilons_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="finite and not negative"):
        clones_general_epsilon(epsilon0=value, records=9, delta=0.1)
    with pytest.raises(ValueError, match="finite and not negative"):
        clones_general_delta(value, epsilon0=1.0, records=9)
    with pytest.raises(ValueError, match="epsilon is finite"):
        shuffled_response_delta(value, epsilon0=1.0, records=9, others_with_yes=0)
    with pytest.raises(ValueError, match="epsilon0 lies"):
        shuffled_response_epsilon(epsilon0=value, records=9, delta=0.1)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1, math.nan])
def test_deltas_out_of_range_are_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=r"delta lies in \(0, 1\)"):
        clones_general_epsilon(epsilon0=1.0, records=9, delta=delta)
    with pytest.raises(ValueError, match=r"delta lies in \(0, 1\)"):
        shuffled_response_epsilon(epsilon0=1.0, records=9, delta=delta)


def test_counts_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        clones_general_epsilon(epsilon0=1.0, records=0, delta=0.1)
    for records in (0, RECORDS_MAX + 1):
        with pytest.raises(ValueError, match="records lie in"):
            shuffled_response_epsilon(epsilon0=1.0, records=records, delta=0.1)
    for others in (-1, 9):
        with pytest.raises(ValueError, match="others_with_yes is below"):
            shuffled_response_delta(0.1, epsilon0=1.0, records=9, others_with_yes=others)
    with pytest.raises(ValueError, match="epsilon0 lies"):
        shuffled_response_epsilon(epsilon0=2 * EPSILON0_MAX, records=9, delta=0.1)


def test_a_root_on_the_wrong_side_is_left() -> None:
    # A step: whichever side the root is found on, the answer is on that which holds.
    found = least_epsilon(lambda one: 0.5 if one < 0.3 else 0.01, delta=0.1, high=1.0)
    assert 0.3 <= found <= 0.3 * (1 + 1e-9)
    assert least_epsilon(lambda one: 1.0 - one, delta=1e-12, high=1.0) == 1.0


def test_a_root_near_the_end_stays_below_it() -> None:
    found = least_epsilon(
        lambda one: 0.01 if one == 1 - 1e-9 or one >= 1 else 0.5, delta=0.1, high=1.0
    )
    assert found == 1.0


def test_the_error_of_a_tail_is_added_to_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"epsilon0": 1.0, "records": 100}
    exact = clones_general_delta(0.3, **ask)  # type: ignore[arg-type]
    monkeypatch.setattr(local_randomizers, "TAIL", 0.01)
    assert clones_general_delta(0.3, **ask) >= 1.01 * exact  # type: ignore[arg-type]


def test_both_orders_of_one_composition_are_covered() -> None:
    # All others hold no: to tell a yes from a no is harder than the reverse.
    rows, power = _rows(2, 1.0), math.exp(0.5)
    yes, no = _shuffled(rows, (1, 0, 0, 0, 0)), _shuffled(rows, (0, 0, 0, 0, 0))
    orders = _divergence(yes, no, power), _divergence(no, yes, power)
    assert abs(orders[0] - orders[1]) > 0.1 * max(orders)
    for others in (0, 4):
        found = shuffled_response_delta(0.5, epsilon0=1.0, records=5, others_with_yes=others)
        assert found == pytest.approx(max(orders), rel=1e-10)


def test_many_small_blocks_raise_epsilon_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {"epsilon0": 0.2, "records": 300, "delta": 1e-3}
    exact = shuffled_response_epsilon(**ask)  # type: ignore[arg-type]
    monkeypatch.setattr(shuffled_responses, "BLOCKS", 20)
    hurried = shuffled_response_epsilon(**ask)  # type: ignore[arg-type]
    assert exact < hurried < exact * 1.001


def test_errors_of_a_window_are_added_to_delta() -> None:
    masses = np.array([0.5, 0.5])
    exact, wide = Window(20, masses, 0.0, 0.0), Window(20, masses, 0.25, 1e-3)
    plain = local_randomizers._clones_delta(0.3, epsilon0=1.0, clones=exact)
    found = local_randomizers._clones_delta(0.3, epsilon0=1.0, clones=wide)
    assert found >= (1.25 * plain + 1e-3) * (1 - 1e-12)
    plain = shuffled_responses._delta_behind(0.3, epsilon0=1.0, others=exact)
    found = shuffled_responses._delta_behind(0.3, epsilon0=1.0, others=wide)
    assert found >= (1.25 * plain + 1e-3) * (1 - 1e-12)


@pytest.mark.parametrize("row", GOLDEN["C.star_lower"], ids=lambda row: f"{row['mu']}")
def test_full_shuffles_from_below_are_at_least_the_reference(row: dict[str, float]) -> None:
    if row["delta_lower"] <= 0:
        return
    floor = shuffle_lower_epsilon(
        row["delta_lower"],
        noise_multiplier=2 / row["mu"],
        batches=int(row["n"]),
        steps=int(row["k"]),
        relation=NeighboringRelation.REPLACE_ONE,
    )
    assert floor >= row["eps"] * (1 - 1e-9)


def test_blocks_of_what_others_hold_never_understate() -> None:
    ask = {"epsilon0": 1.0, "records": 40}
    single = [
        shuffled_response_delta(0.4, **ask, others_with_yes=k)  # type: ignore[arg-type]
        for k in range(40)
    ]
    for low, high in combinations(range(40), 2):
        block = shuffled_responses._block(low, high, records=40, epsilon0=1.0, cut=1e-40)
        bound = shuffled_responses._delta_behind(0.4, epsilon0=1.0, others=block)
        mirrored = shuffled_responses._block(
            39 - high, 39 - low, records=40, epsilon0=1.0, cut=1e-40
        )
        bound = max(bound, shuffled_responses._delta_behind(0.4, epsilon0=1.0, others=mirrored))
        assert max(single[low : high + 1]) <= bound
