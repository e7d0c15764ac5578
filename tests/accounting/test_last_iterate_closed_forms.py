import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.last_iterate import closed_forms
from accounting.last_iterate.closed_forms import (
    cyclic_mus,
    horizon,
    nearly_convex_steps,
    shift_share,
    single_use_mu,
    unbounded_cyclic_mu,
    worst_cyclic_mu,
)
from accounting.last_iterate.geometric import power, rate_of
from accounting.last_iterate.shift import released_mu, shift_mu
from tests.accounting.shifts import COUNT, FEW, LENGTH, LIPSCHITZ, ONE, SAME, cyclic


def exact_share(lipschitz: float, steps: int) -> Any:
    with mpmath.workdps(60):
        c = mpmath.mpf(lipschitz) ** -2
        return mpmath.mpf(1) / steps if c == 1 else (1 - c) / (1 - c**steps)


@pytest.mark.parametrize("lipschitz", [0.3, 0.99, 1 - 1e-13, 1.0, 1 + 1e-13, 1.0001, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 1000, 10**9])
def test_shares_are_rounded_up_and_accurate_up_to_a_billion_steps(
    lipschitz: float, steps: int
) -> None:
    found, exact = shift_share(lipschitz=lipschitz, steps=steps), exact_share(lipschitz, steps)
    assert exact <= found
    assert found <= exact * (1 + 1e-11) or found <= 1e-295


@pytest.mark.parametrize("lipschitz", np.linspace(0.2, 0.9, 29))
def test_large_powers_are_rounded_up(lipschitz: float) -> None:
    count = math.floor(600 / -math.log(lipschitz))
    found = float(power(rate_of(lipschitz), float(count)))
    with mpmath.workdps(40):
        exact = mpmath.mpf(lipschitz) ** count
        assert exact <= found <= exact * (1 + 1e-11)


@given(lipschitz=LIPSCHITZ, steps=st.integers(1, 50), noise=LENGTH, use=LENGTH)
@FEW
def test_one_use_is_the_engine(lipschitz: float, steps: int, noise: float, use: float) -> None:
    run = cyclic(lipschitz=lipschitz, use=use, noise=noise, steps=steps + 3, period=99, first=3)
    found = single_use_mu(lipschitz=lipschitz, sensitivity=use, noise=noise, steps_left=steps)
    assert found == pytest.approx(shift_mu(**run), rel=SAME)
    squared = (mpmath.mpf(use) / mpmath.mpf(noise)) ** 2 * exact_share(lipschitz, steps)
    assert mpmath.sqrt(squared) <= found


@given(lipschitz=LIPSCHITZ, period=COUNT, passes=COUNT, noise=LENGTH, use=LENGTH)
@FEW
def test_cyclic_passes_are_the_engine_in_every_place(
    lipschitz: float, period: int, passes: int, noise: float, use: float
) -> None:
    mus = cyclic_mus(
        lipschitz=lipschitz,
        sensitivity=use,
        noise=noise,
        steps_per_pass=period,
        passes=passes,
    )
    assert mus.shape == (period,)
    assert np.all(np.diff(mus) >= -1e-12 * mus[-1])
    for place, mu in enumerate(mus):
        run = cyclic(
            lipschitz=lipschitz,
            use=use,
            noise=noise,
            steps=period * passes,
            period=period,
            first=place,
        )
        assert mu == pytest.approx(shift_mu(**run), rel=SAME)


@given(lipschitz=st.floats(0.1, 0.999), steps=st.integers(1, 10**12))
def test_every_step_of_a_contraction_is_the_form_with_one_fraction(
    lipschitz: float, steps: int
) -> None:
    # As the public code for noisy gradient descent on strongly convex losses has it.
    found = unbounded_cyclic_mu(lipschitz=lipschitz, **ONE, steps=steps, steps_per_pass=1)
    c, power = lipschitz, math.exp(steps * math.log(lipschitz))
    assert found**2 == pytest.approx((1 + c) / (1 - c) * (1 - power) / (1 + power), rel=1e-9)
    assert found**2 <= (1 + c) / (1 - c) * (1 + 1e-12)


@given(lipschitz=st.floats(0.3, 0.999), period=st.integers(2, 9), passes=st.integers(1, 40))
@FEW
def test_cyclic_contractions_have_the_form_of_the_public_code(
    lipschitz: float, period: int, passes: int
) -> None:
    c, whole, others = lipschitz, lipschitz**period, lipschitz ** (period * (passes - 1))
    earlier = c ** (2 * period - 2) * (1 - c * c) / (1 - whole) ** 2 * (1 - others) / (1 + others)
    found = worst_cyclic_mu(lipschitz=c, **ONE, steps=period * passes, steps_per_pass=period)
    assert found**2 == pytest.approx(1 + earlier, rel=1e-9)


@given(
    gradient_bound=LENGTH,
    sigma=LENGTH,
    step=st.floats(1e-6, 1.0),
    count=st.integers(1, 400),
    data=st.data(),
)
@FEW
def test_one_pass_is_theorem_3_6_of_document_004(
    gradient_bound: float, sigma: float, step: float, count: int, data: st.DataObject
) -> None:
    # Noise is on the gradient there, C = 1 + gamma beta, and alpha times half of mu^2 the RDP.
    place = data.draw(st.integers(1, count))
    eta, c = 0.3, 1 + step
    found = single_use_mu(
        lipschitz=c,
        sensitivity=2 * eta * gradient_bound,
        noise=eta * sigma,
        steps_left=count - place + 1,
    )
    left = -math.expm1(-2 * math.log1p(step)) / -math.expm1(
        -2 * (count - place + 1) * math.log1p(step)
    )
    assert found**2 / 2 == pytest.approx(2 * (gradient_bound / sigma) ** 2 * left, rel=1e-8)
    convex = single_use_mu(
        lipschitz=1.0,
        sensitivity=2 * eta * gradient_bound,
        noise=eta * sigma,
        steps_left=count - place + 1,
    )
    # Feldman et al. 2018, as that document restates them: 2 alpha L^2 / (sigma^2 (n + 1 - t)).
    amplified = 2 * (gradient_bound / sigma) ** 2 / (count + 1 - place)
    assert convex**2 / 2 == pytest.approx(amplified, rel=1e-12)


@given(lipschitz=st.floats(0.5, 1.5), left=st.lists(st.floats(0.0, 2.0), max_size=6))
def test_theorem_3_5_of_document_004_gains_nothing_by_negative_shifts(
    lipschitz: float, left: list[float]
) -> None:
    # The sign of a_t is left open there. For all z_t >= 0 with z_0 = z_n = 0, the squares of
    # a_t = C z_{t-1} + s_t - z_t add up to no less than the best of shifts that are not negative.
    z = np.array([0.0, *left, 0.0])
    uses = np.linspace(1.0, 0.2, len(z) - 1)
    shifts = lipschitz * z[:-1] + uses - z[1:]
    found = shift_mu(
        lipschitz=np.full(len(uses), lipschitz), sensitivities=uses, noises=np.ones(len(uses))
    )
    assert found <= math.sqrt(np.sum(shifts**2)) * (1 + 1e-12)


@given(lipschitz=st.floats(1.0, 1.4), period=COUNT, passes=COUNT, data=st.data())
@FEW
def test_passes_of_an_expansive_step_add_up_as_in_document_002(
    lipschitz: float, period: int, passes: int, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, period - 1))
    mus = cyclic_mus(lipschitz=lipschitz, **ONE, steps_per_pass=period, passes=passes)
    whole = shift_share(lipschitz=lipschitz, steps=period)
    last = shift_share(lipschitz=lipschitz, steps=period - place)
    assert mus[place] ** 2 == pytest.approx((passes - 1) * whole + last, rel=1e-12)


@given(
    steps=st.integers(1, 30),
    batch_size=st.integers(1, 40),
    passes=st.integers(1, 5),
    lipschitz=st.floats(1.0, 1.2),
)
@FEW
def test_without_curvature_nothing_beats_composition(
    steps: int, batch_size: int, passes: int, lipschitz: float
) -> None:
    # Document 002, Theorem 4.3: each clipped step may move two iterates apart by 2 eta C, one that
    # uses the record by 2 eta C / b more. Carrying that on is never worth it.
    noise, whole = 1.0, 2.0
    uses = np.zeros(steps * passes)
    uses[::steps] = whole / batch_size
    found = shift_mu(
        lipschitz=np.full(len(uses), lipschitz),
        sensitivities=uses,
        noises=np.full(len(uses), noise),
        residuals=np.full(len(uses), whole),
    )
    composition = math.sqrt(passes) * whole / batch_size / noise
    assert found == pytest.approx(composition, rel=1e-11)
    carried = single_use_mu(
        lipschitz=1.0,
        sensitivity=whole / batch_size + (steps - 1) * whole,
        noise=noise,
        steps_left=steps,
    )
    assert carried >= whole / batch_size * (1 - 1e-12)


def test_a_constant_step_leaves_the_last_use_alone() -> None:
    assert shift_share(lipschitz=0.0, steps=1) == 1.0
    assert shift_share(lipschitz=0.0, steps=2) == 0.0
    mus = cyclic_mus(lipschitz=0.0, **ONE, steps_per_pass=3, passes=4)
    assert mus == pytest.approx([0.0, 0.0, 1.0], rel=1e-12, abs=1e-320)
    asked: dict[str, Any] = {"lipschitz": 0.0, **ONE, "steps": 12, "steps_per_pass": 3}
    assert worst_cyclic_mu(**asked, diameter=1.0) == pytest.approx(1.0, rel=1e-12)


def test_a_record_that_is_never_used_costs_nothing_and_a_tiny_one_something() -> None:
    asked: dict[str, Any] = {"lipschitz": 1.0, "noise": 1.0, "steps": 12, "steps_per_pass": 3}
    assert worst_cyclic_mu(**asked, sensitivity=0.0, diameter=1.0) == 0.0
    tiny = {"sensitivity": 1e-200, "noise": 1e200}
    assert single_use_mu(lipschitz=1.0, **tiny, steps_left=3) > 0
    assert single_use_mu(lipschitz=0.5, sensitivity=1e-300, noise=1.0, steps_left=10**6) > 0


def test_the_learning_rate_cancels_where_the_constant_does_not_depend_on_it() -> None:
    # Noise on the gradient: s = 2 eta C / b and sigma = eta sg.
    mus = [
        worst_cyclic_mu(
            lipschitz=1.0, sensitivity=2 * eta, noise=eta * 5, steps=30, steps_per_pass=3
        )
        for eta in (1e-3, 0.5, 20.0)
    ]
    assert mus == pytest.approx([mus[0]] * 3, rel=1e-14)


@pytest.mark.parametrize("lipschitz", [1.0, 1.05])
def test_showing_the_ends_of_passes_costs_the_first_place_nothing_where_steps_do_not_contract(
    lipschitz: float,
) -> None:
    period, passes = 6, 4
    for place in range(period):
        run = cyclic(lipschitz=lipschitz, use=1.0, noise=1.0, steps=24, period=period, first=place)
        shown = released_mu(**run, releases=range(period, 25, period))
        hidden, left = shift_mu(**run), period - place
        whole = shift_share(lipschitz=lipschitz, steps=period)
        last = shift_share(lipschitz=lipschitz, steps=left)
        assert shown**2 == pytest.approx(passes * last, rel=1e-10)
        assert hidden**2 == pytest.approx((passes - 1) * whole + last, rel=1e-10)
        assert (shown == pytest.approx(hidden, rel=1e-10)) == (place == 0)


@given(lipschitz=st.floats(1.0001, 3.0), factor=st.floats(1.001, 50.0))
def test_a_use_beyond_the_horizon_is_within_the_factor_of_its_limit(
    lipschitz: float, factor: float
) -> None:
    # Document 002, Lemma C.1 and Corollary C.2, in a form derived here.
    limit = mpmath.mpf(factor) * (1 - mpmath.mpf(lipschitz) ** -2)
    steps = horizon(lipschitz=lipschitz, factor=factor)
    assert exact_share(lipschitz, steps) <= limit * (1 + mpmath.mpf(10) ** -30)
    assert steps == 1 or exact_share(lipschitz, steps - 1) > limit * (1 - 1e-12)


@given(lipschitz=st.floats(1.0001, 3.0), factor=st.floats(1.0, 50.0))
def test_for_so_many_steps_the_loss_is_as_good_as_convex(lipschitz: float, factor: float) -> None:
    # Document 002, Corollary C.3, in a form derived here.
    steps = nearly_convex_steps(lipschitz=lipschitz, factor=factor)
    assert mpmath.mpf(lipschitz) ** (2 * (steps - 1)) <= factor
    assert exact_share(lipschitz, steps) * steps <= factor * (1 + 1e-15)
    assert mpmath.mpf(lipschitz) ** (2 * steps) > factor * (1 - 1e-10)


@pytest.mark.parametrize("rule", [horizon, nearly_convex_steps])
@pytest.mark.parametrize(
    ("lipschitz", "factor"),
    [(1.0, 2.0), (math.inf, 2.0), (math.nan, 2.0), (1.1, 0.9), (1.1, math.inf), (1.1, math.nan)],
)
def test_a_horizon_needs_expansion_and_a_factor(rule: Any, lipschitz: float, factor: float) -> None:
    with pytest.raises(ValueError, match="lipschitz"):
        rule(lipschitz=lipschitz, factor=factor)


@pytest.mark.parametrize(
    "wrong",
    [
        {"lipschitz": -0.1},
        {"lipschitz": math.inf},
        {"lipschitz": math.nan},
        {"sensitivity": -1.0},
        {"sensitivity": math.inf},
        {"sensitivity": math.nan},
        {"noise": 0.0},
        {"noise": math.inf},
        {"noise": math.nan},
        {"noise": 5e-324},
        {"steps": 0},
        {"steps": 10**13},
        {"steps_per_pass": 0},
        {"steps_per_pass": 10**13},
        {"diameter": -1.0},
        {"diameter": math.nan},
    ],
)
def test_what_is_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    name = next(iter(wrong))
    asked: dict[str, Any] = {"lipschitz": 1.0, **ONE, "steps": 12, "steps_per_pass": 3}
    if name == "noise" and wrong[name] == 5e-324:
        wrong = {**wrong, "sensitivity": 1e10}
    with pytest.raises(ValueError, match=name):
        worst_cyclic_mu(**{**asked, "diameter": 1.0, **wrong})


def test_all_places_of_a_long_pass_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_forms, "POSITIONS_MAX", 3)
    cyclic_mus(lipschitz=1.0, **ONE, steps_per_pass=3, passes=1)
    with pytest.raises(ValueError, match="steps_per_pass"):
        cyclic_mus(lipschitz=1.0, **ONE, steps_per_pass=4, passes=1)
