"""Document 002: a test for each row."""

import math

import numpy as np
import pytest

from accounting.bounds.event_bounds import NoBoundError
from accounting.events import Cyclic, Event, Gaussian, NeighboringRelation, Span
from accounting.hidden_state_runs import HiddenRun, require_bound
from accounting.last_iterate.closed_forms import (
    bounded_cyclic_mu,
    cyclic_mus,
    horizon,
    nearly_convex_steps,
    shift_share,
    single_use_mu,
    unbounded_cyclic_mu,
)
from accounting.last_iterate.declared import DataOrder, Declared, Stage
from accounting.last_iterate.lipschitz import clipped_step_lipschitz, step_lipschitz
from accounting.last_iterate.shift import best_start_mu, shift_mu
from tests.accounting.quarantined import said

STEP = {"sensitivity": 0.3, "noise": 1.5}
RATIO = (0.3 / 1.5) ** 2


def ones(steps: int, value: float = 1.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.full(steps, value)


def test_row_002_l2_1__a_shift_is_paid_for_by_noise_as_it_goes() -> None:
    # One use, then two steps that double distances and halve them: z is carried, and paid once.
    found = shift_mu(
        lipschitz=np.array([1.0, 2.0, 0.5]),
        sensitivities=np.array([0.3, 0.0, 0.0]),
        noises=ones(3, 1.5),
    )
    # a_t of the best schedule: minimize a_1^2 + a_2^2 + a_3^2 with (2 (s - a_1) - a_2)/2 = a_3.
    grid = np.linspace(0, 0.3, 601)
    one, two = np.meshgrid(grid, 2 * grid)
    three = 0.5 * (2 * (0.3 - one) - two)
    paid = np.where(three >= 0, one**2 + two**2 + three**2, np.inf)
    assert found**2 * 1.5**2 == pytest.approx(float(paid.min()), rel=1e-4)
    assert found**2 * 1.5**2 <= float(paid.min())


def test_row_002_p2_2__uses_of_a_cycle_are_paid_within_it() -> None:
    lipschitz, period, passes = 1.1, 4, 3
    mus = cyclic_mus(lipschitz=lipschitz, steps_per_pass=period, passes=passes, **STEP)
    for place, mu in enumerate(mus):
        left = period - place
        share = (passes - 1) * shift_share(lipschitz=lipschitz, steps=period)
        share += shift_share(lipschitz=lipschitz, steps=left)
        assert mu == pytest.approx(math.sqrt(RATIO * share), rel=1e-9)


def test_row_002_p3_4__a_step_without_clipping_is_nonexpansive_one_with_it_is_not() -> None:
    assert step_lipschitz(learning_rate=1.0, smoothness=1.0, convexity=0.0) == pytest.approx(1)
    clipped = clipped_step_lipschitz(learning_rate=1.0, smoothness=1.0, convexity=0.0)
    assert clipped == pytest.approx(2 / math.sqrt(3), rel=1e-9)
    assert clipped > said(
        "proximal-step-with-clipping", learning_rate=1.0, weak_convexity=0.0, smoothness=1.0
    )
    weak = [
        step_lipschitz(learning_rate=0.1, smoothness=1.0, convexity=-m) for m in (0.5, 0.1, 1e-6)
    ]
    assert weak == pytest.approx([1.05, 1.01, 1 + 1e-7])  # tends to the convex constant


def hidden_run(order: DataOrder = DataOrder.CYCLIC) -> HiddenRun:
    event = Event(
        mechanism=Gaussian(noise_multiplier=2.0), sampling=Cyclic(batch_size=5, steps_per_pass=4)
    )
    return HiddenRun(
        spans=(Span(event=event, steps=12),),
        declared=Declared(
            data_order=order,
            loss_smoothness=1.0,
            loss_convexity=0.0,
            learning_rate=(Stage(first_step=0, learning_rate=0.1),),
            max_grad_norm=1.0,
            gradient_divisor=5.0,
            projection_diameter=None,
            clipping_can_be_active=True,
            generalized_linear_model=False,
        ),
        dataset_size=20,
    )


def test_row_002_a1__a_cyclic_run_of_clipped_steps_can_be_declared() -> None:
    run = hidden_run()
    require_bound(run, NeighboringRelation.REPLACE_ONE)
    assert (run.steps, run.steps_per_pass, run.passes, run.ends()) == (12, 4, 3, [12])
    with pytest.raises(NoBoundError, match="add_or_remove_one"):
        require_bound(run, NeighboringRelation.ADD_OR_REMOVE_ONE)
    with pytest.raises(NoBoundError, match="data_order"):
        require_bound(hidden_run(DataOrder.FULL), NeighboringRelation.REPLACE_ONE)


def test_row_002_t4_3__a_residual_in_every_step_is_never_better_than_composition() -> None:
    # Without curvature each step may move two points by 2 eta C apart, whatever they were.
    sensitivities = np.array([0.3, 0.0, 0.0, 0.3, 0.0, 0.0])
    found = shift_mu(
        lipschitz=ones(6), sensitivities=sensitivities, noises=ones(6, 1.5), residuals=ones(6, 0.3)
    )
    composed = math.sqrt(2 * RATIO)
    assert found >= composed * (1 - 1e-9)
    assert found == pytest.approx(composed, rel=1e-9)


def test_row_002_t4_4__a_bounded_domain_caps_what_is_carried() -> None:
    # Of the last step alone: (L D + s)/sigma, whatever came before.
    one = best_start_mu(
        lipschitz=ones(1, 1.1), sensitivities=ones(1, 0.3), noises=ones(1, 1.5), diameter=0.1
    )
    assert one <= (1.1 * 0.1 + 0.3) / 1.5 * (1 + 1e-9)
    many = [
        bounded_cyclic_mu(lipschitz=1.0, steps=steps, steps_per_pass=10, diameter=1.0, **STEP)
        for steps in (100, 10_000, 1_000_000)
    ]
    assert many[1] == pytest.approx(many[2], rel=1e-9)
    assert many[2] < 0.1 * unbounded_cyclic_mu(
        lipschitz=1.0, steps=1_000_000, steps_per_pass=10, **STEP
    )


def test_row_002_t4_5__the_loss_is_linear_in_the_passes_and_tends_to_the_convex_one() -> None:
    def squares(lipschitz: float) -> list[float]:
        return [
            unbounded_cyclic_mu(lipschitz=lipschitz, steps=10 * e, steps_per_pass=10, **STEP) ** 2
            for e in (1, 2, 3, 10)
        ]

    weak = squares(1.05)
    assert weak[1] - weak[0] == pytest.approx(weak[2] - weak[1], rel=1e-9)
    assert weak[3] - weak[0] == pytest.approx(9 * (weak[1] - weak[0]), rel=1e-9)
    convex = squares(1.0)
    assert convex[3] == pytest.approx(RATIO * (9 / 10 + 1), rel=1e-9)
    assert squares(1 + 1e-9) == pytest.approx(convex, rel=1e-6)


def test_row_002_c_2_3__long_cycles_settle_and_short_ones_are_nearly_convex() -> None:
    far = horizon(lipschitz=1.05, factor=1.5)
    limit = 1.5 * (1 - 1.05**-2)
    assert shift_share(lipschitz=1.05, steps=far) <= limit * (1 + 1e-9)
    assert shift_share(lipschitz=1.05, steps=far - 1) > limit
    near = nearly_convex_steps(lipschitz=1.05, factor=2.0)
    assert shift_share(lipschitz=1.05, steps=near) <= 2 / near
    assert 1.05 ** (2 * near) > 2  # one more, and the condition fails


def test_row_002_tab__one_pass_is_amplification_by_iteration_and_more_passes_gain() -> None:
    # Feldman et al.: order alpha of record t is 2 alpha L^2/(sigma^2 (n + 1 - t)), that is alpha
    # mu^2/2 with mu^2 = (2 L/sigma)^2/(n + 1 - t).
    for left in (1, 7, 100):
        single = single_use_mu(lipschitz=1.0, steps_left=left, **STEP)
        assert single**2 == pytest.approx(RATIO / left, rel=1e-9)
    many = unbounded_cyclic_mu(lipschitz=1.0, steps=1000, steps_per_pass=100, **STEP)
    assert many**2 == pytest.approx(RATIO * (9 / 100 + 1), rel=1e-9)
    assert many**2 < 10 * RATIO  # composition of ten passes
