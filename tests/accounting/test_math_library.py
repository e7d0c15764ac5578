"""The mathematical library is compared with mpmath before anything is bounded."""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

import accounting
from accounting import math_library
from accounting.accountants.best_bound import best_bound
from accounting.event_counts import count_events
from accounting.events import Event, Full, Gaussian, NeighboringRelation, Span
from accounting.gaussian import log_gaussian_delta
from accounting.math_library import FUNCTIONS, POINTS, InaccurateLibraryError, inaccuracies
from accounting.rounding import ERFCX_UNITS, UNIT_ROUNDOFF

# Sums of logarithms whose error is stated beside them, from those of exp and log.
STATED = {"special.logsumexp", "special.xlogy", "special.xlog1py"}
# Functions of math and numpy that IEEE arithmetic does not round correctly.
ELEMENTARY = {
    "acos", "arccos", "arcsin", "arctan", "arctan2", "asin", "atan", "atan2", "cbrt", "cos", "cosh",
    "erf", "erfc", "exp", "exp2", "expm1", "gamma", "hypot", "lgamma", "log", "log10", "log1p",
    "log2", "logaddexp", "logaddexp2", "pow", "power", "sin", "sinh", "tan", "tanh",
}  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    math_library.require_accurate_library.cache_clear()
    yield
    math_library.require_accurate_library.cache_clear()


def test_the_library_of_this_machine_is_accurate() -> None:
    assert inaccuracies() == []
    assert len(POINTS) >= 40


def used_functions() -> set[str]:
    """Every function of math, numpy and scipy.special that the accounting calls by name."""
    found = set()
    for path in Path(accounting.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name, module = node.attr, node.value.id
                if (module == "special" and name.islower()) or (
                    module in ("math", "np") and name in ELEMENTARY
                ):
                    found.add(f"{module}.{name}")
    return found


def test_every_function_that_a_bound_rests_on_is_looked_at() -> None:
    assert used_functions() - STATED - set(FUNCTIONS) == set()
    assert {point.function for point in POINTS} == set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_that_is_off_is_found_wherever_in_an_array(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = FUNCTIONS[name]
    units = max(point.units for point in POINTS if point.function == name)

    def off(*arguments: Any) -> Any:
        value = honest(*arguments)
        wrong = value * (1 + 3 * units * UNIT_ROUNDOFF)
        if np.ndim(value) == 0:
            return wrong
        return np.concatenate([value[:-1], wrong[-1:]])

    monkeypatch.setitem(FUNCTIONS, name, off)
    found = inaccuracies()
    assert found
    assert all(text.startswith(name) for text in found)


def test_nothing_is_bounded_with_a_library_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: Callable[..., Any] = lambda x: np.exp(x) * (1 + 1e-12)  # noqa: E731
    monkeypatch.setitem(FUNCTIONS, "np.exp", wrong)
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=Full())
    counts = count_events([[Span(event=event, steps=1)]])
    with pytest.raises(InaccurateLibraryError, match=r"np\.exp\(0\.1\) is off by"):
        best_bound(counts, relation=NeighboringRelation.ADD_OR_REMOVE_ONE, delta=1e-5)


def test_a_value_that_is_not_finite_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, "math.log", lambda x: float("nan"))
    assert inaccuracies()


def test_the_error_of_a_profile_covers_a_scaled_error_function_that_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = special.erfcx
    for sign in (-1, 1):
        monkeypatch.setattr(
            special, "erfcx", lambda x, s=sign: honest(x) * (1 + s * ERFCX_UNITS * UNIT_ROUNDOFF)
        )
        for mu in (1e-3, 0.1, 0.49, 0.5, 1.0, 3.0):
            for epsilon in (0.0, 0.5 * mu * mu, mu * (mu / 2 + 1), mu * (mu / 2 + 4.8), 9 * mu):
                found, error = log_gaussian_delta(epsilon, mu=mu)
                with mpmath.workdps(60):
                    a = mpmath.mpf(epsilon) / mu - mpmath.mpf(mu) / 2
                    delta = mpmath.ncdf(-a) - mpmath.exp(epsilon) * mpmath.ncdf(-a - mu)
                    assert abs(found - mpmath.log(delta)) <= error
