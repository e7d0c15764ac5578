import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.last_iterate import shift
from accounting.last_iterate.blocks import Blocks
from accounting.last_iterate.closed_forms import shift_share, single_use_mu
from accounting.last_iterate.shift import best_start_mu, released_mu, shift_mu
from accounting.rounding import Array
from tests.accounting.shifts import (
    NOISES,
    Steps,
    mu_of,
    over_all_starts,
    over_reset_sets,
    pooled,
    repeated,
    runs,
)

TIGHT = 1 + Fraction(1, 10**12)
CLOSE = 1 + 1e-11
FEW = settings(max_examples=60, deadline=None)


def arrays(steps: Steps) -> dict[str, Any]:
    names = ("lipschitz", "sensitivities", "noises")
    return {name: np.array(each, float) for name, each in zip(names, steps, strict=True)}


def blocks_of(**values: Array) -> Blocks:
    fresh = np.zeros(len(values["shifts"]), dtype=bool)
    fresh[0] = True
    return Blocks.of_steps(**values, fresh=fresh)


@given(steps=runs(most=7))
@FEW
def test_the_engine_is_the_least_over_all_reset_sets_and_never_below(steps: Steps) -> None:
    exact = over_reset_sets(steps)
    assert exact == pooled(steps)
    assert exact <= Fraction(mu_of(steps)) ** 2 <= exact * TIGHT or exact == mu_of(steps) == 0


@given(steps=runs(least=8, most=40), start=st.floats(0.0, 5.0))
@FEW
def test_longer_runs_and_other_starts_are_exact_and_never_below(steps: Steps, start: float) -> None:
    exact = pooled(steps, start=start)
    assert exact <= Fraction(mu_of(steps, start=start)) ** 2 <= exact * TIGHT


@pytest.mark.parametrize("seed", range(4))
def test_blocks_pooled_one_after_the_other_are_the_same(seed: int) -> None:
    # Rates rise to the end, where idle steps undo them one by one: few violators in each round.
    random = np.random.default_rng(seed)
    shifts = np.concatenate((np.arange(1.0, 61.0), np.zeros(40)))
    steps = (random.uniform(0.99, 1.02, 100), shifts, random.uniform(0.9, 1.1, 100))
    exact = pooled(steps)
    assert exact <= Fraction(mu_of(steps)) ** 2 <= exact * TIGHT
    blocks = blocks_of(lipschitz=steps[0], shifts=steps[1], noises=steps[2])
    assert len(blocks.pooled_in_turn()) == len(blocks.pooled()) > 1


def test_what_is_pooled_in_turn_keeps_to_releases_and_to_what_has_no_noise() -> None:
    shifts = np.concatenate((np.arange(1.0, 41.0), np.zeros(20)))
    noises = np.ones(60)
    noises[[10, 55]] = 0.0
    run: dict[str, Any] = repeated(60, lipschitz=1.0)
    run |= {"sensitivities": shifts, "noises": noises}
    parts = [
        pooled((run["lipschitz"][a:b], shifts[a:b], noises[a:b])) for a, b in ((0, 50), (50, 60))
    ]
    found = Fraction(released_mu(**run, releases=[50])) ** 2
    assert sum(parts) <= found <= sum(parts) * TIGHT


def test_equal_rates_stay_apart_so_that_rounding_never_pools_wrongly() -> None:
    equal = repeated(9, lipschitz=1.0, shifts=0.3, noises=0.7)
    assert len(blocks_of(**equal).pooled()) == 9
    falling = blocks_of(**(equal | {"lipschitz": np.full(9, 0.9)}))
    assert len(falling.pooled()) == 1
    barely = blocks_of(**(equal | {"lipschitz": np.full(9, 1 - 1e-15)}))
    assert len(barely.pooled()) == 9


@pytest.mark.parametrize(("lipschitz", "count"), [(1.01, 20_000), (0.97, 20_000), (1.0, 20_000)])
def test_a_long_way_back_nothing_overflows(lipschitz: float, count: int) -> None:
    run = repeated(count, lipschitz=lipschitz, sensitivities=0.0, noises=0.5)
    run["sensitivities"][0] = 0.3
    share = shift_share(lipschitz=lipschitz, steps=count)
    found = shift_mu(**run)
    assert 0 < found <= 0.6 * math.sqrt(share) * (1 + 1e-8)
    assert found == pytest.approx(0.6 * math.sqrt(share), rel=1e-8, abs=1e-150)


def test_the_rounding_of_long_products_is_paid_for() -> None:
    # One block whose logarithms reach thousands: the bound exceeds the closed form by its errors.
    count = 30_000
    run = repeated(count, lipschitz=1.1, sensitivities=0.0, noises=1.0)
    run["sensitivities"][0] = 1.0
    exact = single_use_mu(lipschitz=1.1, sensitivity=1.0, noise=1.0, steps_left=count)
    assert exact * (1 + 1e-13) < shift_mu(**run) < exact * (1 + 1e-8)


@given(steps=runs(), factor=st.floats(1.01, 3.0), where=st.integers(0, 11))
@FEW
def test_more_noise_never_costs_more_and_more_of_anything_else_never_less(
    steps: Steps, factor: float, where: int
) -> None:
    constants, shifts, noises = (list(each) for each in steps)
    index, least = where % len(noises), mu_of(steps)
    louder = list(noises)
    louder[index] *= factor
    assert mu_of((constants, shifts, louder)) <= least * CLOSE
    wider = list(shifts)
    wider[index] += factor
    assert mu_of((constants, wider, noises)) * CLOSE >= least
    steeper = list(constants)
    steeper[index] *= factor
    assert mu_of((steeper, shifts, noises)) * CLOSE >= least
    assert mu_of(steps, start=factor) * CLOSE >= least


@given(steps=runs(), constant=st.floats(0.1, 3.0), noise=NOISES)
@FEW
def test_a_further_step_that_does_not_use_the_record_never_costs(
    steps: Steps, constant: float, noise: float
) -> None:
    longer = ([*steps[0], constant], [*steps[1], 0.0], [*steps[2], noise])
    assert mu_of(longer) <= mu_of(steps) * CLOSE


@given(steps=runs(), unit=st.sampled_from([1e-120, 1e-30, 0.1, 7.0, 1e50, 1e120]))
@FEW
def test_the_unit_of_length_makes_no_difference(steps: Steps, unit: float) -> None:
    other = (steps[0], [unit * s for s in steps[1]], [unit * n for n in steps[2]])
    assert mu_of(other) == pytest.approx(mu_of(steps), rel=1e-11)


@given(steps=runs())
@FEW
def test_the_bound_lies_between_one_block_and_composition(steps: Steps) -> None:
    constants, shifts, noises = (np.array(each) for each in steps)
    after = np.append(np.cumprod(constants[::-1])[::-1][1:], 1.0)
    block = np.sum(shifts * after) / math.sqrt(np.sum((noises * after) ** 2))
    found = mu_of(steps)
    assert max(block, shifts[-1] / noises[-1]) <= found * CLOSE
    assert found <= math.sqrt(np.sum((shifts / noises) ** 2)) * CLOSE


@given(steps=runs(), releases=st.lists(st.integers(1, 12), max_size=4))
@FEW
def test_what_is_hidden_costs_no_more_than_what_is_released(
    steps: Steps, releases: list[int]
) -> None:
    run, count = arrays(steps), len(steps[0])
    shown = [step for step in releases if step <= count]
    some = released_mu(**run, releases=shown)
    every = released_mu(**run, releases=range(1, count + 1))
    assert mu_of(steps) <= some * CLOSE
    assert some <= every * CLOSE
    composition = math.sqrt(np.sum((run["sensitivities"] / run["noises"]) ** 2))
    assert every == pytest.approx(composition, rel=1e-11)


def test_stretches_between_releases_add_up_in_squares() -> None:
    random = np.random.default_rng(5)
    run = arrays((random.uniform(0.8, 1.2, 30), random.uniform(0, 1, 30), random.uniform(1, 2, 30)))
    bounds = [0, 7, 8, 21, 30]
    parts = [{name: each[a:b] for name, each in run.items()} for a, b in pairwise(bounds)]
    found = released_mu(**run, releases=[8, 7, 21, 30, 7])
    assert found == pytest.approx(math.hypot(*(shift_mu(**part) for part in parts)), rel=1e-12)
    bounded = released_mu(**run, releases=[7, 8, 21], diameter=1.0)
    starts = [best_start_mu(**part, diameter=1.0) for part in parts]
    assert bounded == pytest.approx(math.hypot(*starts), rel=1e-12)
    assert bounded < found
    for diameter in np.linspace(0.5, 2.0, 40).tolist():
        each = [Fraction(best_start_mu(**part, diameter=diameter)) for part in parts]
        bounded = released_mu(**run, releases=[7, 8, 21], diameter=diameter)
        assert Fraction(bounded) ** 2 >= sum(mu**2 for mu in each)


def test_too_many_stretches_are_not_searched_for_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    run = repeated(40, lipschitz=1.0, sensitivities=0.5, noises=1.0)
    free = released_mu(**run, releases=[20])
    assert released_mu(**run, releases=[20], diameter=0.1) < free
    monkeypatch.setattr(shift, "STRETCHES_MAX", 1)
    assert released_mu(**run, releases=[20], diameter=0.1) == free


@given(steps=runs(most=16), diameter=st.floats(1e-3, 30.0))
@FEW
def test_the_best_start_is_the_least_over_all_starts(steps: Steps, diameter: float) -> None:
    found = best_start_mu(**arrays(steps), diameter=diameter)
    assert found == pytest.approx(over_all_starts(steps, diameter), rel=1e-11)
    assert found <= mu_of(steps)


@given(steps=runs(most=10))
@FEW
def test_a_domain_helps_the_more_the_smaller_it_is(steps: Steps) -> None:
    diameters = (0.0, 1e-9, 0.1, 1.0, 10.0, math.inf)
    found = [best_start_mu(**arrays(steps), diameter=diameter) for diameter in diameters]
    assert all(a <= b * CLOSE for a, b in pairwise(found))
    assert found[-1] == mu_of(steps)
    last = steps[1][-1] / steps[2][-1]
    assert last <= found[0] <= found[1] <= last * CLOSE + 1e-6


@pytest.mark.parametrize(("lipschitz", "count"), [(3.0, 200), (0.3, 200), (1.0, 120), (30.0, 100)])
def test_the_search_for_a_start_survives_products_beyond_the_doubles(
    lipschitz: float, count: int
) -> None:
    random = np.random.default_rng(3)
    run = repeated(count, lipschitz=lipschitz)
    run |= {
        "sensitivities": random.uniform(0, 1, count) * (random.random(count) < 0.3),
        "noises": random.uniform(0.5, 2, count),
    }
    steps: Steps = (
        run["lipschitz"].tolist(),
        run["sensitivities"].tolist(),
        run["noises"].tolist(),
    )
    for diameter in (0.3, 20.0):
        found = best_start_mu(**run, diameter=diameter)
        assert found == pytest.approx(over_all_starts(steps, diameter), rel=1e-9)


def test_a_start_long_ago_is_found_across_changes_of_scale() -> None:
    # Uses, then noise, then 2100 steps that hide little and multiply to 1e370.
    run = repeated(2400, lipschitz=1.5, sensitivities=0.0, noises=1e-3)
    run["sensitivities"][:200] = 1.0
    run["noises"][200:300] = 1.0
    found = best_start_mu(**run, diameter=0.01)
    assert found == pytest.approx(0.01 * math.sqrt(1.5**2 - 1), rel=1e-9)


def test_no_start_is_found_where_lengths_are_beyond_the_doubles() -> None:
    run = repeated(3, lipschitz=1.0, sensitivities=1e-200, noises=1e200)
    assert best_start_mu(**run, diameter=1.0) == shift_mu(**run)
    idle = repeated(2, lipschitz=1.0, sensitivities=1.0, noises=0.0)
    assert best_start_mu(**idle, diameter=1.0) == math.inf


def test_a_step_without_noise_hides_nothing_by_itself() -> None:
    assert mu_of(([1, 1], [1, 0], [0, 2])) == pytest.approx(0.5, rel=1e-13)
    assert mu_of(([1, 1], [0, 1], [2, 0])) == math.inf
    assert mu_of(([1, 1, 1], [1, 0, 0], [2, 0, 0])) == pytest.approx(0.5, rel=1e-13)
    assert mu_of(([1, 1], [0, 0], [0, 0])) == 0.0
    assert mu_of(([1], [0], [0]), start=1e-300) == math.inf


def test_a_constant_step_forgets_all_before_it() -> None:
    assert mu_of(([1, 0], [5, 1], [0, 2])) == pytest.approx(0.5, rel=1e-13)
    assert mu_of(([1, 0, 1], [math.inf, 0, 0], [1, 1, 1])) == 0.0
    assert mu_of(([0], [1], [2]), start=7) == pytest.approx(0.5, rel=1e-13)
    twice = arrays(([0, 1, 0], [5, 1, 1], [1, 1, 2]))
    assert best_start_mu(**twice, diameter=3.0) == pytest.approx(0.5, rel=1e-13)


def test_infinite_noise_hides_all_before_it() -> None:
    assert mu_of(([1, 1], [math.inf, 0], [1, math.inf])) == 0.0
    assert mu_of(([1, 1, 1], [3, 9, 1], [1, math.inf, 2])) == pytest.approx(0.5, rel=1e-13)
    assert mu_of(([1, math.inf], [0, 9], [1, math.inf])) == 0.0


def test_nothing_is_known_of_a_step_with_an_infinite_constant() -> None:
    # So nothing may be left before it: composition there.
    found = mu_of(([1, 1, math.inf, 1], [1, 0, 1, 0], [1, 1, 1, 1]))
    assert found == pytest.approx(1.0, rel=1e-13)
    assert mu_of(([math.inf], [1], [2])) == pytest.approx(0.5, rel=1e-13)
    assert mu_of(([math.inf], [0], [2]), start=1e-9) == math.inf
    # What infinite noise hides of the steps before does not reach past that step.
    found = mu_of(([1, math.inf, 1], [1, 1, 1], [2, 1, math.inf]))
    assert found == pytest.approx(0.5, rel=1e-13)


def test_an_unbounded_shift_is_hidden_by_nothing_finite() -> None:
    assert mu_of(([1, 1], [math.inf, 0], [1, 1])) == math.inf
    assert mu_of(([1.0], [1e-300], [1e300])) > 0
    assert mu_of(([1.0], [1e300], [1e-300])) == math.inf
    assert mu_of(([1e308], [0], [1]), start=1e308) == math.inf


@pytest.mark.parametrize("release", [[0], [4], [-1]])
def test_a_release_is_a_step(release: list[int]) -> None:
    with pytest.raises(ValueError, match="releases"):
        released_mu(**repeated(3, lipschitz=1.0, sensitivities=1.0, noises=1.0), releases=release)


@pytest.mark.parametrize("name", ["lipschitz", "sensitivities", "noises", "residuals"])
@pytest.mark.parametrize("value", [[1.0, -1.0], [1.0, math.nan], [1.0], [[1.0, 1.0]], []])
def test_arrays_of_another_shape_or_sign_are_refused(name: str, value: list[float]) -> None:
    run: dict[str, Any] = repeated(2, lipschitz=1.0, sensitivities=1.0, noises=1.0, residuals=0.0)
    run[name] = np.array(value)
    with pytest.raises(ValueError, match=r"lipschitz|sensitivities|noises|residuals"):
        shift_mu(**run)


def test_too_many_steps_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "STEPS_MAX", 3)
    shift_mu(**repeated(3, lipschitz=1.0, sensitivities=1.0, noises=1.0))
    with pytest.raises(ValueError, match="lipschitz"):
        shift_mu(**repeated(4, lipschitz=1.0, sensitivities=1.0, noises=1.0))


@pytest.mark.parametrize("wrong", [-1.0, math.nan])
def test_a_negative_distance_is_refused(wrong: float) -> None:
    run = repeated(2, lipschitz=1.0, sensitivities=1.0, noises=1.0)
    with pytest.raises(ValueError, match="start"):
        shift_mu(**run, start=wrong)
    with pytest.raises(ValueError, match="diameter"):
        best_start_mu(**run, diameter=wrong)
    with pytest.raises(ValueError, match="diameter"):
        released_mu(**run, releases=[1], diameter=wrong)


def with_residuals(steps: Steps, residuals: list[float], start: float = 0.0) -> float:
    return shift_mu(**arrays(steps), residuals=np.array(residuals), start=start)


def test_a_residual_is_paid_only_while_something_is_left() -> None:
    # Before the first use nothing is; at the use nothing was; then it is paid, or all released.
    once = ([1, 1, 1], [0, 1, 0], [1, 1, 1])
    assert with_residuals(once, [9, 9, 0]) == pytest.approx(math.sqrt(0.5), rel=1e-12)
    assert with_residuals(once, [9, 9, 0.2]) == pytest.approx(math.sqrt(0.72), rel=1e-12)
    assert with_residuals(once, [9, 9, 9]) == pytest.approx(1.0, rel=1e-12)
    # From apart it is paid at once, and before the first use.
    assert with_residuals(([1], [0], [1]), [2], start=1) == pytest.approx(3.0, rel=1e-12)
    constant = ([0, 1], [0, 0], [1, 1])
    assert with_residuals(constant, [1, 1], start=1) == pytest.approx(1.0, rel=1e-12)


def test_residuals_may_be_paid_in_some_passes_only() -> None:
    # Both together before each use: two uses, each hidden by two steps with one residual.
    twice = ([1, 1, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1])
    found = with_residuals(twice, [0, 0.1, 3, 0.1])
    assert found == pytest.approx(math.sqrt(2 * 1.1**2 / 2), rel=1e-12)


@given(steps=runs(most=6), residual=st.floats(0.0, 2.0))
@FEW
def test_residuals_cost_no_more_than_composition_and_no_less_than_none(
    steps: Steps, residual: float
) -> None:
    found = with_residuals(steps, [residual] * len(steps[0]))
    composition = math.sqrt(sum((s / n) ** 2 for s, n in zip(*steps[1:], strict=True)))
    assert mu_of(steps) <= found * CLOSE
    assert found <= composition * CLOSE
    assert with_residuals(steps, [0.0] * len(steps[0])) == pytest.approx(mu_of(steps), rel=1e-11)


@given(steps=runs(least=2, most=25), silent=st.sets(st.integers(0, 24)))
@FEW
def test_blocks_pooled_in_turn_alone_are_exact_with_idle_and_silent_steps(
    steps: Steps, silent: set[int]
) -> None:
    constants, shifts, noises = (np.array(each) for each in steps)
    noises[[step for step in silent if step < len(noises) - 1]] = 0.0
    exact = pooled((constants, shifts, noises))
    blocks = blocks_of(lipschitz=constants, shifts=shifts, noises=noises)
    found = blocks.pooled_in_turn() if blocks.violators().any() else blocks
    assert exact <= Fraction(found.mu()) ** 2 <= exact * TIGHT


def rough(*, error: float, lipschitz_error: float) -> Blocks:
    """Two blocks of falling rates whose logarithms are only roughly known."""
    rough = blocks_of(lipschitz=np.full(2, 0.5), shifts=np.ones(2), noises=np.ones(2))
    rough.error[:] = error
    rough.lipschitz_error[:] = lipschitz_error
    return rough


def test_what_blocks_may_be_off_by_is_paid_for() -> None:
    for how in (Blocks.pooled, Blocks.pooled_in_turn):
        least = how(rough(error=0.0, lipschitz_error=0.0))
        other = how(rough(error=1e-3, lipschitz_error=1e-3))
        assert len(least) == len(other) == 1
        assert other.error[0] >= 2e-3  # the first block's error, and that of what it grew by
        assert other.lipschitz_error[0] >= 2e-3
        assert other.mu() >= least.mu() * math.exp(2 * 2e-3)
        assert 16 * 2.0**-53 <= least.error[0] < 1e-13 > least.lipschitz_error[0] > 0


def test_rates_that_may_be_the_same_stay_apart() -> None:
    # The rates differ by log 2 = 0.69, and may be off by 4 (e + e') + g.
    assert len(rough(error=0.08, lipschitz_error=0.0).pooled()) == 1
    assert len(rough(error=0.09, lipschitz_error=0.0).pooled()) == 2
    assert len(rough(error=0.0, lipschitz_error=0.7).pooled()) == 2
    vague = rough(error=0.09, lipschitz_error=0.0)
    vague.error[:] = 0.0
    vague.shift = np.array([0.0, 0.0])
    assert len(vague.pooled_in_turn()) == 1
