"""NaN is refused wherever a number is given: each comparison of a range is false of it."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pytest

from accounting import composition, gaussian
from accounting.binomial import window
from accounting.filters import integer_totals, selection, theorems
from accounting.filters.closed_form import _gaussian_limits
from accounting.filters.renyi import UnionFilter
from accounting.last_iterate import closed_forms, lipschitz, random_order, shift
from accounting.last_iterate.declared import DataOrder, Declared, Stage
from accounting.last_iterate.sampled import sampled_bound
from accounting.last_iterate.sampled_run import SampledRun
from accounting.renyi import allocation, conversion, orders, poisson
from accounting.shuffling import allocation as shuffled_allocation
from accounting.shuffling import clones

NAN: Final = math.nan
ORDERS: Final = np.array([2.0, 8.0])
RUN: Final = {"lipschitz": 0.9, "sensitivity": 1.0, "noise": 2.0}
STEPS: Final = {
    "lipschitz": np.array([0.9, 0.9]),
    "sensitivities": np.array([1.0, 1.0]),
    "noises": np.array([2.0, 2.0]),
}
LOSS: Final = {"learning_rate": 0.1, "smoothness": 1.0, "convexity": 0.1}
MUS: Final = np.array([0.5, 0.7])
COMPOSED: Final = {"epsilon": 0.1, "delta": 1e-6, "steps": 3}
SAMPLED: Final[dict[str, Any]] = {
    "steps": 4, "step_lipschitz": 0.9, "sensitivity": 1.0, "noise": 2.0, "rate": 0.1,
    "diameter": 1.0,
}  # fmt: skip
RUN_OF: Final = SampledRun(sampling=DataOrder.POISSON, **SAMPLED)
# What may be called, and arguments that it takes: each number of them becomes NaN in turn.
CALLS: Final[dict[str, tuple[Callable[..., object], dict[str, Any]]]] = {
    "binomial": (window, {"trials": 10, "odds": 0.5, "cut": 1e-9}),
    "basic_composition": (
        composition.basic_composition,
        {"epsilons": (0.1, 0.2), "deltas": (0.0, 1e-6)},
    ),
    "advanced_composition": (composition.advanced_composition, COMPOSED | {"delta_slack": 1e-6}),
    "optimal_delta": (composition.optimal_composition_delta, COMPOSED | {"total_epsilon": 0.2}),
    "optimal_epsilon": (composition.optimal_composition_epsilon, COMPOSED | {"delta_total": 1e-4}),
    "group_privacy": (composition.group_privacy, {"epsilon": 0.1, "delta": 1e-6, "size": 2}),
    "gaussian_delta": (gaussian.gaussian_delta, {"epsilon": 1.0, "mu": 0.5}),
    "gaussian_epsilon": (gaussian.gaussian_epsilon, {"delta": 1e-5, "mu": 0.5}),
    "gaussian_mu": (gaussian.gaussian_mu, {"epsilon": 1.0, "delta": 1e-5}),
    "classical_noise": (
        gaussian.classical_gaussian_noise,
        {"epsilon": 0.5, "delta": 1e-5, "sensitivity": 1.0},
    ),
    "trade_off": (gaussian.gaussian_trade_off, {"false_positive_rate": 0.1, "mu": 0.5}),
    "single_use_mu": (closed_forms.single_use_mu, RUN | {"steps_left": 3}),
    "cyclic_mus": (closed_forms.cyclic_mus, RUN | {"steps_per_pass": 2, "passes": 3}),
    "unbounded_cyclic_mu": (
        closed_forms.unbounded_cyclic_mu,
        RUN | {"steps": 6, "steps_per_pass": 2},
    ),
    "worst_cyclic_mu": (
        closed_forms.worst_cyclic_mu,
        RUN | {"steps": 6, "steps_per_pass": 2, "diameter": 1.0},
    ),
    "horizon": (closed_forms.horizon, {"lipschitz": 1.1, "factor": 1.5}),
    "nearly_convex_steps": (closed_forms.nearly_convex_steps, {"lipschitz": 1.1, "factor": 1.5}),
    "step_lipschitz": (lipschitz.step_lipschitz, LOSS),
    "clipped_step_lipschitz": (lipschitz.clipped_step_lipschitz, LOSS),
    "regularized_lipschitz": (lipschitz.regularized_step_lipschitz, LOSS | {"regularization": 0.1}),
    "glm_step_lipschitz": (lipschitz.glm_step_lipschitz, LOSS | {"regularization": 0.1}),
    "averaged_delta": (random_order.averaged_gaussian_delta, {"epsilon": 1.0, "mus": MUS}),
    "averaged_epsilon": (
        random_order.averaged_gaussian_epsilon,
        {"delta": 1e-5, "mus": MUS, "weights": np.array([0.5, 0.5])},
    ),
    "fresh_passes_delta": (
        random_order.fresh_passes_delta,
        {"epsilon": 1.0, "mus": MUS, "passes": 2},
    ),
    "fresh_passes_epsilon": (
        random_order.fresh_passes_epsilon,
        {"delta": 1e-5, "mus": MUS, "passes": 2},
    ),
    "sampled_run": (lambda **given: SampledRun(sampling=DataOrder.POISSON, **given), SAMPLED),
    "sampled_bound_epsilon": (
        lambda epsilon: sampled_bound(RUN_OF, epsilon=epsilon),
        {"epsilon": 1.0},
    ),
    "sampled_bound_delta": (lambda delta: sampled_bound(RUN_OF, delta=delta), {"delta": 1e-5}),
    "shift_mu": (shift.shift_mu, STEPS | {"start": 1.0}),
    "best_start_mu": (shift.best_start_mu, STEPS | {"diameter": 1.0}),
    "released_mu": (shift.released_mu, STEPS | {"releases": (1,), "diameter": 1.0}),
    "rdp_epsilon": (conversion.rdp_epsilon, {"rdp": MUS, "orders": ORDERS, "delta": 1e-5}),
    "rdp_delta": (conversion.rdp_delta, {"rdp": MUS, "orders": ORDERS, "epsilon": 1.0}),
    "classical_rdp": (
        conversion.classical_rdp_epsilon,
        {"rdp": MUS, "orders": ORDERS, "delta": 1e-5},
    ),
    "orders": (orders.checked_orders, {"orders": ORDERS}),
    "allocation_rdp": (
        allocation.random_allocation_rdp,
        {"noise_multiplier": 2.0, "steps_per_pass": 4, "participations": 2, "orders": ORDERS},
    ),
    "allocation_pair": (
        shuffled_allocation.allocation_pair,
        {"noise_multiplier": 2.0, "steps_per_pass": 4},
    ),
    "allocation_pairs": (
        shuffled_allocation.random_allocation_pairs,
        {"noise_multiplier": 2.0, "steps_per_pass": 4, "participations": 2},
    ),
    "allocation_lower_pair": (
        shuffled_allocation.allocation_lower_pair,
        {"noise_multiplier": 2.0, "steps_per_pass": 4, "steps": 4},
    ),
    "clones": (clones.clones_epsilon, {"epsilon0": 0.1, "delta": 1e-5, "steps_per_pass": 1000}),
    "union_filter": (
        lambda **given: selection.choose(UnionFilter.kind, epsilon=1.0, delta=1e-5, **given),
        {"orders": (2.0, 8.0)},
    ),
}


def numbers(given: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments with NaN for each number in turn, within sequences, too."""
    for name, value in given.items():
        if isinstance(value, int | float):
            yield given | {name: NAN}
            continue
        for place in range(len(value)):
            changed = list(value)
            changed[place] = NAN
            yield given | {name: np.array(changed) if isinstance(value, np.ndarray) else changed}


@pytest.mark.parametrize("name", CALLS)
def test_a_bound_of_no_number_is_refused_for_that_reason(name: str) -> None:
    function, given = CALLS[name]
    function(**given)
    cases = list(numbers(given))
    assert cases
    for case in cases:
        with pytest.raises(ValueError, match=r".") as refused:
            function(**case)
        assert "convert" not in str(refused.value), case  # nothing looked at it before


DECLARED: Final[dict[str, Any]] = {
    "loss_smoothness": 1.0,
    "loss_convexity": 0.1,
    "max_grad_norm": 1.0,
    "gradient_divisor": 10.0,
    "projection_diameter": 1.0,
    "learning_rate": 0.1,
}


@pytest.mark.parametrize("name", [None, *DECLARED])
def test_a_declared_run_is_refused_with_nan(name: str | None) -> None:
    def declared(*, learning_rate: float, **given: float) -> Declared:
        return Declared(
            data_order=DataOrder.POISSON,
            learning_rate=(Stage(first_step=0, learning_rate=learning_rate),),
            clipping_can_be_active=False,
            generalized_linear_model=False,
            **given,  # type: ignore[arg-type]
        )

    if name is None:
        declared(**DECLARED)
        return
    with pytest.raises(ValueError, match=rf"^{name} (lies|above)"):
        declared(**DECLARED | {name: NAN})


@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_probability"])
def test_a_curve_of_no_number_is_an_error(name: str) -> None:
    given = {"noise_multiplier": 2.0, "sampling_probability": 0.1, name: NAN}
    with np.errstate(invalid="ignore"), pytest.raises(ArithmeticError, match="not negative"):
        poisson.poisson_gaussian_rdp(**given, orders=ORDERS)  # type: ignore[arg-type]


def test_what_is_computed_of_no_number_is_none() -> None:
    for given in (
        {"noise_multiplier": NAN, "sensitivity": 1.0},
        {"noise_multiplier": 2.0, "sensitivity": NAN},
    ):
        assert math.isnan(gaussian.gaussian_dp(**given))
        assert np.isnan(poisson.gaussian_rdp(**given, orders=ORDERS)).all()
    assert np.isnan(conversion.conversion_costs(ORDERS, delta=NAN)).all()


def test_what_is_no_number_admits_nothing_and_proves_no_lower_end() -> None:
    assert integer_totals.limit_units(NAN) == -1
    assert integer_totals.delta_limit(NAN) == -1
    assert integer_totals.loss_units(NAN) == integer_totals.CEILING
    assert gaussian.gaussian_bracket_epsilon(1e-5, mu=(NAN, 0.5))[0] == 0.0
    assert gaussian.gaussian_bracket_delta(1.0, mu=(NAN, 0.5))[0] == 0.0
    for total in ((NAN, 0), (0, NAN)):
        assert not integer_totals.within(total, (0, 5))  # type: ignore[arg-type]
    assert theorems.conversion_cost(2.0, NAN) == math.inf
    assert theorems.squares_limit(epsilon=NAN, delta_slack=1e-5) == -1.0
    for epsilon, delta in ((NAN, 1e-5), (1.0, NAN)):
        assert _gaussian_limits(epsilon, delta) == (0, -1)
