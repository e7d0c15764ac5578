import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.last_iterate import sampled
from accounting.last_iterate.declared import DataOrder
from accounting.last_iterate.sampled import (
    sampled_bound,
    sampled_last_iterate,
    sampled_last_iterate_sharp,
    sampled_rdp,
)
from accounting.last_iterate.sampled_run import (
    Constant,
    SampledChoice,
    SampledRun,
    carried_share,
    shift_of,
    units_of,
)
from accounting.last_iterate.sampled_search import NEAR, Aim, choices
from accounting.pld.certified_composition import epsilon_bracket
from accounting.pld.pairs import GaussianPair, SampledGaussianPair, SymmetricPair
from accounting.renyi.conversion import rdp_epsilon
from accounting.renyi.orders import ORDERS

GOLDEN = Path(__file__).parents[1] / "golden" / "last_iterate.json"
POISSON, FIXED = DataOrder.POISSON, DataOrder.FIXED_SIZE
SHARP, CONSERVATIVE = Constant.SHARP, Constant.CONSERVATIVE

RUN = SampledRun(
    steps=2000,
    step_lipschitz=0.99,
    sensitivity=0.1,
    noise=0.2,
    sampling=POISSON,
    rate=0.05,
    constant=SHARP,
)
RUNS = st.builds(
    SampledRun,
    steps=st.integers(1, 3000),
    step_lipschitz=st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0, 1.01]),
    sensitivity=st.just(1.0),
    noise=st.floats(0.7, 20.0),
    sampling=st.just(POISSON),
    rate=st.floats(1e-3, 0.5),
    diameter=st.sampled_from([0.5, 5.0, 100.0, math.inf]),
    constant=st.sampled_from(Constant),
)


def epsilon(run: SampledRun, *, delta: float = 1e-5) -> float:
    return sampled_bound(run, delta=delta).epsilon


def composed(run: SampledRun, *, delta: float = 1e-5) -> float:
    every = SampledChoice(last_steps=run.steps, noise_share=1.0)
    return epsilon_bracket(units_of(run, every), delta=delta).upper


# The parts of the theorem


@settings(max_examples=60, deadline=None)
@given(c=st.floats(0.01, 3.0), count=st.integers(1, 5000))
def test_what_is_carried_is_not_rounded_down(c: float, count: int) -> None:
    found = carried_share(c, count)
    with mpmath.workdps(60):
        square, exact = mpmath.mpf(c) ** 2, 1 / mpmath.mpf(count)
        if c != 1:
            exact = square**count * (square - 1) / (square**count - 1)
        assert exact <= found <= exact * (1 + mpmath.mpf(10) ** -11) + mpmath.mpf(10) ** -299


@pytest.mark.parametrize("count", [3, 7, 11, 49, 1000])
def test_what_is_carried_by_steps_that_keep_distances_is_not_rounded_down(count: int) -> None:
    assert Fraction(carried_share(1.0, count)) >= Fraction(1, count)


def test_steps_that_forget_everything_carry_nothing() -> None:
    assert carried_share(0.0, 1) == 0.0
    assert carried_share(1.0, 4) == pytest.approx(0.25)
    run = replace(RUN, step_lipschitz=0.0, rate=1.0)
    assert run.distance(1) == pytest.approx(0.1 / 0.2)
    # Only the last step counts: one Gaussian release.
    assert epsilon(run) == pytest.approx(epsilon(replace(run, steps=1)), rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    c=st.sampled_from([0.3, 0.97, 1.0, 1.0001, 1.2]),
    steps=st.integers(2, 400),
    diameter=st.floats(0.01, 100.0),
)
def test_the_distance_is_the_sum_of_powers_or_the_diameter(
    c: float, steps: int, diameter: float
) -> None:
    run = replace(RUN, step_lipschitz=c, steps=steps, diameter=diameter)
    last = max(1, steps // 3)
    with mpmath.workdps(50):
        rho, before = mpmath.mpf(c), steps - last
        moved = 0.1 * (before if c == 1 else (rho**before - 1) / (rho - 1))
        exact = min(mpmath.mpf(diameter), moved) / mpmath.mpf(0.2)
        assert exact <= run.distance(last)
        assert run.distance(last) <= exact * (1 + 1e-10)
    assert run.distance(steps) == 0.0


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0.01, 0.99), c=st.sampled_from([0.9, 1.0, 1.02]))
def test_the_noise_is_split_and_never_counted_twice(share: float, c: float) -> None:
    run = replace(RUN, step_lipschitz=c, diameter=3.0)
    (step, count), (rest, once) = units_of(run, SampledChoice(last_steps=100, noise_share=share))
    assert isinstance(step, SampledGaussianPair)
    assert isinstance(rest, GaussianPair)
    assert (count, once) == (100, 1)
    with mpmath.workdps(50):
        noise, square = mpmath.mpf(run.noise), mpmath.mpf(c) ** 2
        powers = mpmath.fsum(square**i for i in range(100))
        # After 1900 steps either the set or, at c = 0.9, the sum of all powers is the limit.
        apart = min(mpmath.mpf(3), run.sensitivity / (1 - mpmath.mpf(c)) if c < 1 else 3)
        moved = apart * mpmath.sqrt(square**100 / powers)
        batch = (step.noise_multiplier * mpmath.mpf(run.sensitivity) / noise) ** 2
        move = (rest.noise_multiplier * moved / noise) ** 2
        assert share * (1 - 1e-10) <= batch <= share
        assert (1 - mpmath.mpf(share)) * (1 - 1e-10) <= move <= 1 - mpmath.mpf(share)


def test_each_sampling_has_its_pair() -> None:
    choice = SampledChoice(last_steps=2000, noise_share=1.0)
    ((pair, count),) = units_of(replace(RUN, sampling=FIXED), choice)
    assert isinstance(pair, SymmetricPair)
    assert pair.near == pair.far
    assert pair.sampling_probability == RUN.rate
    assert count == 2000
    for sampling in (POISSON, FIXED):
        ((pair, _),) = units_of(replace(RUN, sampling=sampling, rate=1.0), choice)
        assert isinstance(pair, GaussianPair)


def test_the_conservative_constant_doubles_what_hides_the_batch_and_nothing_else() -> None:
    doubled = replace(RUN, constant=CONSERVATIVE)
    choice = SampledChoice(last_steps=100, noise_share=0.6)
    (sharp, _), (rest, _) = units_of(RUN, choice)
    (loose, _), (same, _) = units_of(doubled, choice)
    assert isinstance(sharp, SampledGaussianPair)
    assert isinstance(loose, SampledGaussianPair)
    assert loose.noise_multiplier == pytest.approx(0.5 * sharp.noise_multiplier, rel=1e-15)
    assert rest == same
    every = SampledChoice(last_steps=2000, noise_share=1.0)
    assert units_of(RUN, every) == units_of(doubled, every)


def test_at_an_even_split_the_conservative_constant_is_the_one_of_public_software() -> None:
    """G(sqrt(2) D / (eta sigma sqrt(R))) and C_q(G(2 sqrt(2) G / (b sigma)))^R; s = eta G / b."""
    run = SampledRun(
        steps=500,
        step_lipschitz=1.0,
        sensitivity=0.01,
        noise=0.1,
        sampling=FIXED,
        rate=0.02,
        diameter=0.3,
    )
    (step, count), (rest, _) = units_of(run, SampledChoice(last_steps=50, noise_share=0.5))
    assert isinstance(step, SymmetricPair)
    assert isinstance(rest, GaussianPair)
    assert isinstance(step.near, GaussianPair)
    assert 1 / step.near.noise_multiplier == pytest.approx(2 * math.sqrt(2) * 0.1, rel=1e-9)
    assert 1 / rest.noise_multiplier == pytest.approx(math.sqrt(2) * 3 / math.sqrt(50), rel=1e-9)
    assert count == 50


# Answers


def test_the_renyi_form_agrees_with_the_reference() -> None:
    rows = json.loads(GOLDEN.read_text(encoding="utf-8"))
    (row,) = [row for row in rows if row["name"] == "theoremR_fixed"]
    run = replace(RUN, step_lipschitz=1.0, sensitivity=0.05, rate=0.01, diameter=0.5, steps=1000)
    choice = SampledChoice(last_steps=40, noise_share=0.6)
    (found,) = sampled_rdp(run, choice, orders=np.array([4.0]))
    assert found == pytest.approx(float(row["value"]), rel=1e-9)
    assert found >= float(row["value"])


@pytest.mark.parametrize("seed", range(20))
def test_the_renyi_form_is_not_rounded_down(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step, shift = np.random.default_rng(seed).uniform(0, 1, 2).tolist()
    monkeypatch.setattr(sampled, "poisson_gaussian_rdp", lambda **_: np.array([step]))
    monkeypatch.setattr(sampled, "shift_of", lambda *_: shift)
    choice = SampledChoice(last_steps=37, noise_share=0.6)
    (found,) = sampled_rdp(RUN, choice, orders=np.array([3.7]))
    exact = 37 * Fraction(step) + Fraction(3.7) * Fraction(shift) ** 2 / 2
    assert exact <= Fraction(float(found)) <= exact * Fraction(1 + 1e-14)


@pytest.mark.parametrize("sampling", [POISSON, FIXED])
def test_the_renyi_form_is_not_below_the_composition(sampling: DataOrder) -> None:
    run = replace(RUN, sampling=sampling)
    choice = SampledChoice(last_steps=400, noise_share=0.9)
    epsilon_rdp, _ = rdp_epsilon(
        rdp=sampled_rdp(run, choice, orders=ORDERS), orders=ORDERS, delta=1e-5
    )
    bracket = epsilon_bracket(units_of(run, choice), delta=1e-5)
    assert bracket.upper <= epsilon_rdp <= 1.5 * bracket.upper


def test_the_theorems_are_the_bounds_of_the_run() -> None:
    given_ = {
        "steps": 2000,
        "step_lipschitz": 0.99,
        "sensitivity": 0.1,
        "noise": 0.2,
        "sampling": POISSON,
        "rate": 0.05,
        "diameter": 2.0,
    }
    sharp = sampled_last_iterate_sharp(delta=1e-5, **given_)  # type: ignore[arg-type]
    loose = sampled_last_iterate(delta=1e-5, **given_)  # type: ignore[arg-type]
    run = replace(RUN, diameter=2.0)
    assert sharp == sampled_bound(run, delta=1e-5)
    assert loose == sampled_bound(replace(run, constant=CONSERVATIVE), delta=1e-5)
    assert sharp.epsilon < loose.epsilon


def test_a_long_run_costs_no_more_than_its_end() -> None:
    sharp = sampled_bound(RUN, delta=1e-5)
    assert sharp.choice.last_steps < RUN.steps
    assert sharp.epsilon < 0.6 * composed(RUN)
    longer = sampled_bound(replace(RUN, steps=10**8), delta=1e-5)
    assert longer.epsilon == pytest.approx(sharp.epsilon, rel=0.02)


def test_delta_and_epsilon_are_read_off_one_curve() -> None:
    found = sampled_bound(RUN, delta=1e-5)
    back = sampled_bound(RUN, epsilon=found.epsilon)
    assert back.epsilon == found.epsilon
    assert back.delta == pytest.approx(1e-5, rel=1e-2)


@settings(max_examples=15, deadline=None)
@given(run=RUNS)
def test_hiding_never_costs_more_than_showing(run: SampledRun) -> None:
    # What is not composed exactly was estimated to be better by some per cent.
    assert epsilon(run) <= composed(run) * (1 + NEAR) + 1e-9


@settings(max_examples=10, deadline=None)
@given(run=RUNS)
def test_the_conservative_constant_never_says_less(run: SampledRun) -> None:
    sharp, loose = (epsilon(replace(run, constant=one)) for one in (SHARP, CONSERVATIVE))
    assert sharp <= loose * (1 + NEAR) + 1e-9


@pytest.mark.parametrize("sampling", [POISSON, FIXED])
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("noise", (0.3, 0.2, 0.15)),
        ("sensitivity", (0.08, 0.1, 0.12)),
        ("rate", (0.03, 0.05, 0.08)),
        ("step_lipschitz", (0.97, 0.99, 1.0)),
        ("steps", (10, 100, 2000)),
        ("diameter", (0.5, 1.0, math.inf)),
    ],
)
def test_more_of_what_tells_costs_more(
    sampling: DataOrder, name: str, values: tuple[float, ...]
) -> None:
    found = [epsilon(replace(RUN, sampling=sampling, **{name: value})) for value in values]  # type: ignore[arg-type]
    assert found[0] <= found[1] <= found[2]
    assert found[0] < found[2]


def test_lengths_have_no_unit() -> None:
    scaled = replace(RUN, sensitivity=1e6 * RUN.sensitivity, noise=1e6 * RUN.noise, diameter=2e6)
    assert epsilon(scaled) == pytest.approx(epsilon(replace(RUN, diameter=2.0)), rel=1e-6)


def test_a_set_of_one_point_leaves_the_last_step() -> None:
    run = replace(RUN, diameter=0.0)
    found = sampled_bound(run, delta=1e-5)
    assert found.choice.last_steps == 1
    assert found.epsilon == pytest.approx(composed(replace(run, steps=1)), rel=1e-3)


# The search


@pytest.mark.parametrize("sampling", [POISSON, FIXED])
@pytest.mark.parametrize("constant", Constant)
def test_the_search_is_close_to_the_best_choice(sampling: DataOrder, constant: Constant) -> None:
    run = replace(RUN, steps=20000, sampling=sampling, constant=constant)
    found = sampled_bound(run, delta=1e-5)
    r, share = found.choice.last_steps, found.choice.noise_share
    for factor in (0.6, 0.8, 1.25, 1.6):
        for log_odds in (-0.5, 0.0, 0.5):
            odds = share / (1 - share) * math.exp(log_odds)
            choice = SampledChoice(last_steps=round(r * factor), noise_share=odds / (1 + odds))
            other = epsilon_bracket(units_of(run, choice), delta=1e-5).upper
            assert found.epsilon <= 1.02 * other


def test_where_steps_pull_apart_without_a_set_all_are_composed() -> None:
    run = replace(RUN, step_lipschitz=1.5)
    assert sampled_bound(run, delta=1e-5).choice.last_steps == run.steps
    far = SampledChoice(last_steps=1, noise_share=0.5)
    assert shift_of(run, far) == math.inf
    with pytest.raises(ValueError, match="any distance"):
        units_of(run, far)


def test_what_is_about_as_good_is_composed_too() -> None:
    run = replace(RUN, steps=10000, step_lipschitz=1.0, sensitivity=1e-3, noise=0.01, rate=0.01)
    tried = choices(replace(run, diameter=0.065), Aim(delta=1e-5, epsilon=None))
    assert [choice.last_steps == run.steps for choice in tried] == [False, True]
    alone = choices(replace(run, steps=1), Aim(delta=1e-5, epsilon=None))
    assert alone == [SampledChoice(last_steps=1, noise_share=1.0)]


def test_all_noise_for_the_batches_leaves_none_to_move() -> None:
    assert shift_of(RUN, SampledChoice(last_steps=5, noise_share=1.0)) == math.inf
    assert shift_of(RUN, SampledChoice(last_steps=RUN.steps, noise_share=1.0)) == 0.0


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 10**9 + 1}, "steps"),
        ({"step_lipschitz": -0.1}, "step_lipschitz"),
        ({"step_lipschitz": math.inf}, "step_lipschitz"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"sensitivity": math.nan}, "sensitivity"),
        ({"noise": 0.0}, "noise"),
        ({"noise": math.inf}, "noise"),
        ({"noise": 1e200}, "noise"),
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.1}, "rate"),
        ({"diameter": -1.0}, "diameter"),
        ({"diameter": math.nan}, "diameter"),
        ({"sampling": DataOrder.CYCLIC}, "sampling"),
    ],
)
def test_runs_out_of_range_are_refused(changed: dict[str, float], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        replace(RUN, **changed)  # type: ignore[arg-type]


def test_choices_out_of_range_are_refused() -> None:
    for last in (0, 2001):
        with pytest.raises(ValueError, match="last_steps"):
            units_of(RUN, SampledChoice(last_steps=last, noise_share=0.5))
    for share in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="noise_share"):
            units_of(RUN, SampledChoice(last_steps=5, noise_share=share))


def test_questions_out_of_range_are_refused() -> None:
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="delta lies"):
            sampled_bound(RUN, delta=delta)
    for value in (-1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon is finite"):
            sampled_bound(RUN, epsilon=value)
    with pytest.raises(ValueError, match="Either"):
        sampled_bound(RUN)
    with pytest.raises(ValueError, match="Either"):
        sampled_bound(RUN, delta=1e-5, epsilon=1.0)
