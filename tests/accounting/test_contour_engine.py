"""The contour engine as a whole: what it refuses, how its answers move, what its caches hold."""

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.events import Direction
from accounting.pld.contour import (
    complex_moments,
    contour_bounds,
    inversion,
    real_moments,
    tilted_grids,
)
from accounting.pld.contour.complex_moments import line_of, log_modulus
from accounting.pld.contour.contour_bounds import contour_delta, contour_epsilon, failure_of, invert
from accounting.pld.contour.inversion import (
    Guess,
    Inversion,
    NoDecayError,
    epsilon_of,
    guess_at_delta,
    guess_at_epsilon,
    guess_near,
    log_total_moments,
    place,
)
from accounting.pld.contour.real_moments import LADDER, NoMomentsError, log_moments
from accounting.pld.contour.tilted_grids import grid_of
from accounting.pld.pairs import (
    DensePair,
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
    Units,
)

REMOVE, ADD = Direction.REMOVE, Direction.ADD
PROPERTY = settings(deadline=None, max_examples=12)
WIDTH = 1e-6


def sampled(sigma: float, q: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


UNITS: Units = [(sampled(1.0, 0.01), 1000)]
HALF_LAPLACE = LaplacePair(scale=1.0, sampling_probability=0.5)
SYMMETRIC = SymmetricPair(
    near=GaussianPair(noise_multiplier=1.0),
    far=GaussianPair(noise_multiplier=0.5),
    sampling_probability=0.1,
)
DENSE = DensePair(first=(0.6, 0.4), second=(0.5, 0.5))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """No patched line or grid outlives its test."""
    yield
    complex_moments.forget()
    log_moments.cache_clear()


def inverted(units: Units = UNITS, epsilon: float = 1.8, share: float = 1e-9) -> Inversion:
    log_total = log_total_moments(units, REMOVE)
    guess = guess_near(log_total, epsilon, math.log(1e-5))
    return invert(units, REMOVE, guess, log_total, share=share)


# ---- what cannot be certified


def test_an_error_that_is_not_small_certifies_nothing_at_any_epsilon() -> None:
    base = dataclasses.replace(inverted(), log_errors=2000.0)
    for epsilon in (1.8, 1e3, 1e5, 1e9):  # far out the value itself underflows
        assert base.read(epsilon) == (0, 1)
    unknown = dataclasses.replace(inverted(), log_moment=math.nan)
    assert unknown.read(1.8) == (0, 1)
    assert epsilon_of(unknown, delta=1e-5, start=1.8)[:2] == (0.0, math.inf)


@pytest.mark.parametrize("field", ["log_moment", "moments_off", "truncated", "log_errors"])
def test_an_error_that_is_not_a_number_certifies_nothing(field: str) -> None:
    base = dataclasses.replace(inverted(), **{field: math.nan})  # type: ignore[arg-type]
    assert base.read(1.8) == (0, 1)
    assert epsilon_of(base, delta=1e-5, start=1.8)[:2] == (0.0, math.inf)


def test_a_scale_out_of_range_certifies_nothing() -> None:
    base = dataclasses.replace(inverted(), log_moment=1e4)
    assert base.read(1.8) == (0, 1)
    assert np.all(np.isnan(base.estimate(1.8)))
    unknown = dataclasses.replace(inverted(), log_moment=math.nan)
    assert unknown.read(1.8) == (0, 1)
    assert epsilon_of(unknown, delta=1e-5, start=1.8)[:2] == (0.0, math.inf)


def test_a_delta_too_small_for_a_double_is_not_said_to_be_zero() -> None:
    base = inverted()
    assert base.read(1e6)[1] > 0


def test_a_sum_cut_too_short_to_know_the_moment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilted_grids, "NEGLIGIBLE", 1.0)
    with pytest.raises((NoMomentsError, NoDecayError)):
        line_of(sampled(1.0, 0.3), REMOVE, order=float(LADDER[70]), spacing=0.3, nodes=20)


def test_infinite_losses_alone_that_reach_delta_are_refused() -> None:
    pair = DiscretePair(first=(0.1, 0.9, 0.0), second=(0.0, 0.9, 0.1))
    with pytest.raises(NoDecayError, match="alone"):
        contour_epsilon([(pair, 2)], REMOVE, delta=0.19, width=WIDTH)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_a_step_that_tells_all_is_refused_as_what_it_is(direction: Direction) -> None:
    pair = DiscretePair(first=(1.0, 0.0), second=(0.0, 1.0))
    assert failure_of([(pair, 3)], direction)[1] >= 1
    with pytest.raises((NoDecayError, NoMomentsError)):
        contour_epsilon([(pair, 3)], direction, delta=0.5, width=WIDTH)
    with pytest.raises((NoDecayError, NoMomentsError)):
        contour_delta([(pair, 3), *UNITS], direction, epsilon=0.5, width=WIDTH)


def test_the_failure_of_many_steps_is_one_less_the_chance_that_none_fails() -> None:
    pair = DiscretePair(first=(1e-6, 1 - 1e-6), second=(0.0, 1.0))
    lower, upper = failure_of([(pair, 1000), (pair, 500), *UNITS], REMOVE)
    exact = -math.expm1(1500 * math.log1p(-1e-6))
    assert lower < exact < upper
    assert upper - lower < 1e-14
    assert failure_of([(pair, 1000)], ADD) == (0.0, 0.0)


def test_a_sampled_laplace_pair_has_no_known_moments() -> None:
    with pytest.raises(NoMomentsError):
        log_moments(HALF_LAPLACE, REMOVE)


@pytest.mark.parametrize("pair", [HALF_LAPLACE, SYMMETRIC, DENSE])
def test_pairs_known_by_their_tails_have_no_transform(pair: Pair) -> None:
    with pytest.raises(NoMomentsError):
        line_of(pair, REMOVE, order=1.0, spacing=0.1, nodes=4)
    with pytest.raises((NoMomentsError, NoDecayError)):
        contour_epsilon([(pair, 2)], REMOVE, delta=1e-5, width=WIDTH)


def test_a_symmetrised_pair_has_no_known_decay() -> None:
    with pytest.raises(NoMomentsError):
        log_modulus(SYMMETRIC, REMOVE, order=1.0, offset=0, thetas=np.ones(1))


@pytest.mark.parametrize("delta", [0.3, 1e-2, 1e-3])
def test_atoms_alone_hardly_decay_and_are_bracketed_widely(
    monkeypatch: pytest.MonkeyPatch, delta: float
) -> None:
    monkeypatch.setattr(
        contour_bounds, "_ROUGH_NODES", contour_bounds.NODES_MAX
    )  # else left to the lattice
    first, second = (0.6, 0.4), (0.4, 0.6)
    lower, upper = contour_epsilon(
        [(DiscretePair(first=first, second=second), 5)], REMOVE, delta=delta, width=WIDTH
    )

    def exact(epsilon: float) -> float:
        return math.fsum(
            math.comb(5, n)
            * max(0.0, 0.6**n * 0.4 ** (5 - n) - math.exp(epsilon) * 0.4**n * 0.6 ** (5 - n))
            for n in range(6)
        )

    assert exact(upper) <= delta <= exact(lower)
    assert 1e-5 * upper < upper - lower < 0.1 * upper


def test_the_error_of_a_closed_form_reaches_its_line() -> None:
    line = complex_moments._closed_form_line(
        np.array([1.0 + 0j, 0.5 + 0j]), 0.0, np.array([1e-3, 2e-3])
    )
    assert line.slack[0] >= math.log1p(1e-3)
    assert line.slack[1] >= math.log1p(2e-3 / 0.5)
    assert line.log_moment_error >= -math.log1p(-1e-3)


def test_a_moment_lost_in_rounding_is_refused() -> None:
    pair = DiscretePair(first=(1 - 1e-16, 1e-16), second=(1 - 1e-300, 1e-300))
    with pytest.raises(NoMomentsError, match="rounding"):
        line_of(pair, REMOVE, order=float(LADDER[90]), spacing=0.1, nodes=8)


def test_a_law_that_turns_too_fast_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(NoMomentsError, match="too fast"):
        grid_of(sampled(1.0, 0.01), REMOVE, float(LADDER[70]), 1e7)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("sigma", [1e-3, 1e-6, 1e-100])
def test_next_to_no_noise_is_refused_before_memory_is_taken(
    sigma: float, direction: Direction
) -> None:
    with pytest.raises((NoMomentsError, NoDecayError)):
        contour_epsilon([(sampled(sigma, 0.01), 2)], direction, delta=1e-5, width=WIDTH)


def test_a_delta_or_epsilon_out_of_the_orders_reach_is_refused() -> None:
    log_total = log_total_moments(UNITS, REMOVE)
    with pytest.raises(NoDecayError):
        guess_at_delta(log_total, -1e9)
    with pytest.raises(NoDecayError):
        guess_at_epsilon(log_total, 1e9)


def test_without_a_window_there_is_no_place() -> None:
    log_total = np.full_like(LADDER, np.inf)
    with pytest.raises(NoDecayError):
        place(log_total, Guess(50, 1.0, -10.0, np.ones_like(LADDER)), share=1e-3, steps=1)


def test_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contour_bounds, "NODES_MAX", 10)
    with pytest.raises(NoDecayError):
        inverted()
    monkeypatch.setattr(contour_bounds, "NODES_MAX", 2)
    with pytest.raises(NoDecayError):
        inverted()
    with pytest.raises(NoDecayError):
        contour_epsilon(UNITS, REMOVE, delta=1e-5, width=WIDTH)


def test_where_no_pass_certifies_an_upper_end_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contour_bounds, "epsilon_of", lambda *_, **__: (0.5, math.inf, 1.8))
    try:
        found = contour_epsilon(UNITS, REMOVE, delta=1e-5, width=WIDTH)
    except NoDecayError:
        return
    assert found == (0.5, math.inf)


def test_what_the_passes_have_found_is_the_answer_however_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = iter([(0.5, 4.0, 1.0), (0.6, 5.0, 2.0), (0.4, 3.0, 4.0)])
    monkeypatch.setattr(contour_bounds, "_PASSES", 3)
    monkeypatch.setattr(contour_bounds, "epsilon_of", lambda *_, **__: next(ends))
    assert contour_epsilon(UNITS, REMOVE, delta=1e-5, width=WIDTH) == (0.6, 3.0)


def test_a_huge_ledger_is_never_said_to_be_free() -> None:
    # Newton's steps once left the range of doubles here, and the upper end came out as zero.
    units: Units = [
        (sampled(45.36554877482602, 0.03086887958775067), 16229),
        (DiscretePair(first=(0.9, 0.1), second=(0.1, 0.9)), 16517),
    ]
    try:
        _, upper = contour_epsilon(units, REMOVE, delta=3.57395536305824e-09, width=1e-7)
    except NoDecayError:
        return
    assert upper > 29_000


# ---- the search for epsilon


def test_the_ends_of_epsilon_were_evaluated() -> None:
    base = inverted()
    lower, upper, middle = epsilon_of(base, delta=1e-5, start=1.0)
    assert lower < middle < upper
    assert base.read(lower)[0] >= 1e-5
    assert base.read(upper)[1] <= 1e-5
    assert upper - lower < 1e-8


def test_where_delta_is_never_reached_epsilon_is_zero() -> None:
    base = inverted(epsilon=0.05)
    lower, upper, _ = epsilon_of(base, delta=0.9, start=0.05)
    assert lower == 0
    assert 0 <= upper < 1e-3
    assert epsilon_of(base, delta=0.9, start=0.0) == (0.0, 0.0, 0.0)


def test_a_search_from_far_off_ends_where_one_from_close_by_does() -> None:
    base = inverted()
    close, far = (epsilon_of(base, delta=1e-5, start=start)[2] for start in (1.82, 0.01))
    assert far == pytest.approx(close, rel=1e-9)


def test_newton_gives_up_after_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inversion, "_NEWTON_STEPS", 1)
    lower, upper, _ = epsilon_of(inverted(), delta=1e-5, start=1.7)
    assert lower <= 1.8282366665 <= upper


def test_an_outward_search_that_never_holds_is_infinite_or_zero() -> None:
    assert inversion._outward(lambda _: False, 1.0, 1e-9) == math.inf
    assert inversion._outward(lambda _: False, 1.0, -1e-9) == 0.0
    assert inversion._outward(lambda _: False, 1e300, -1e-300) == 0.0
    assert inversion._outward(lambda e: e < 0.5, 1.0, -0.1) < 0.5


# ---- how answers move


@PROPERTY
@given(sigma=st.floats(0.7, 20), q=st.floats(1e-3, 0.999), part=st.floats(0.01, 2))
def test_more_noise_fewer_steps_lower_rates_and_larger_deltas_never_cost_more(
    sigma: float, q: float, part: float
) -> None:
    steps = max(20, int(part * 100 * (sigma / q) ** 2 / 30))

    def bracket(sigma: float, q: float, steps: int, delta: float) -> tuple[float, float]:
        return contour_epsilon([(sampled(sigma, q), steps)], REMOVE, delta=delta, width=WIDTH)

    try:
        base = bracket(sigma, q, steps, 1e-6)
        lesser = [
            bracket(sigma * 1.01, q, steps, 1e-6),
            bracket(sigma, q * 0.99, steps, 1e-6),
            bracket(sigma, q, int(steps * 0.95), 1e-6),
            bracket(sigma, q, steps, 2e-6),
        ]
    except NoDecayError:
        return
    assert base[0] <= base[1]
    for lower, _ in lesser:
        assert lower <= base[1]


def test_splitting_and_reordering_steps_changes_nothing_beyond_the_width() -> None:
    one, two = sampled(1.2, 0.02), sampled(3.0, 0.1)
    whole = contour_epsilon([(one, 500), (two, 300)], REMOVE, delta=1e-6, width=WIDTH)
    split: list[Units] = [
        [(two, 300), (one, 500)],
        [(one, 100), (two, 300), (one, 400)],
        [(one, 250), (one, 250), (two, 1), (two, 299)],
    ]
    for units in split:
        lower, upper = contour_epsilon(units, REMOVE, delta=1e-6, width=WIDTH)
        assert lower <= whole[1]
        assert whole[0] <= upper
        assert upper == pytest.approx(whole[1], rel=2 * WIDTH)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_epsilon_and_delta_are_inverse_to_each_other(direction: Direction) -> None:
    lower, upper = contour_epsilon(UNITS, direction, delta=1e-6, width=WIDTH)
    assert contour_delta(UNITS, direction, epsilon=lower, width=WIDTH)[1] >= 1e-6
    assert contour_delta(UNITS, direction, epsilon=upper, width=WIDTH)[0] <= 1e-6


@pytest.mark.parametrize("width", [1e-2, 1e-5, 1e-8])
def test_the_bracket_is_as_narrow_as_asked(width: float) -> None:
    lower, upper = contour_epsilon(UNITS, REMOVE, delta=1e-6, width=width)
    assert upper - lower <= width * upper
    lower, upper = contour_delta(UNITS, REMOVE, epsilon=1.0, width=width)
    assert upper - lower <= width * upper


def test_the_ladder_cannot_be_written_to() -> None:
    found = log_moments(sampled(1.0, 0.01), REMOVE)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0.0
    with pytest.raises(ValueError, match="read-only"):
        real_moments.LADDER[0] = 0.0


def test_a_pair_of_infinite_losses_alone_has_a_moment_of_nothing() -> None:
    pair = DiscretePair(first=(1.0, 0.0), second=(0.0, 1.0))
    assert np.all(log_moments(pair, REMOVE) < -1e3)
    with pytest.raises(NoMomentsError, match="infinite"):
        line_of(pair, REMOVE, order=1.0, spacing=0.1, nodes=4)
