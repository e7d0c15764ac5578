import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting.last_iterate.closed_forms import (
    bounded_cyclic_mu,
    unbounded_cyclic_mu,
    worst_cyclic_mu,
)
from accounting.last_iterate.domains import domain_mus
from accounting.last_iterate.shift import best_start_mu, shift_mu
from accounting.rounding import Array
from tests.accounting.shifts import COUNT, FEW, LENGTH, LIPSCHITZ, ONE, SAME, cyclic


@given(
    lipschitz=LIPSCHITZ,
    period=COUNT,
    passes=COUNT,
    short=st.integers(0, 6),
    noise=LENGTH,
    use=LENGTH,
    diameter=st.floats(-3, 2).map(lambda power: 10**power),
)
@settings(max_examples=100, deadline=None)
def test_the_worst_place_is_that_of_the_last_step_also_in_a_bounded_domain(
    lipschitz: float,
    period: int,
    passes: int,
    short: int,
    noise: float,
    use: float,
    diameter: float,
) -> None:
    steps = max(1, period * passes - short % period)
    run: dict[str, Any] = {"lipschitz": lipschitz, "noise": noise, "steps": steps, "period": period}
    places = [cyclic(**run, use=use, first=(steps - 1 - back) % period) for back in range(period)]
    plain = [shift_mu(**place) for place in places]
    bounded = [best_start_mu(**place, diameter=diameter) for place in places]
    asked: dict[str, Any] = {
        "lipschitz": lipschitz,
        "sensitivity": use,
        "noise": noise,
        "steps": steps,
        "steps_per_pass": period,
    }
    assert unbounded_cyclic_mu(**asked) == pytest.approx(max(plain), rel=SAME)
    assert worst_cyclic_mu(**asked) == unbounded_cyclic_mu(**asked)
    found = worst_cyclic_mu(**asked, diameter=diameter)
    assert found == bounded_cyclic_mu(**asked, diameter=diameter)
    assert found == pytest.approx(max(bounded), rel=SAME)
    assert max(plain) <= plain[0] * (1 + SAME)
    assert max(bounded) <= bounded[0] * (1 + SAME)


@given(lipschitz=LIPSCHITZ, use=LENGTH, noise=LENGTH, diameter=LENGTH, steps=st.integers(1, 20))
@FEW
def test_the_last_step_alone_is_the_bound_in_the_shape_of_document_002(
    lipschitz: float, use: float, noise: float, diameter: float, steps: int
) -> None:
    found = bounded_cyclic_mu(
        lipschitz=lipschitz,
        sensitivity=use,
        noise=noise,
        steps=steps,
        steps_per_pass=1,
        diameter=diameter,
    )
    assert use / noise <= found <= (lipschitz * diameter + use) / noise * (1 + 1e-12)


def quadratic(diameter: float, use: float, passes: Array, period: int) -> float:
    """At L = 1 and sigma = 1: the last use alone, or in the block of all others."""
    idle = (passes + 1) * period
    with np.errstate(divide="ignore"):
        rates = (diameter + passes * use) / (idle - 1)
    apart = rates * (diameter + passes * use) + use**2
    together = (diameter + (passes + 1) * use) ** 2 / idle
    return float(np.min(np.where(rates >= use, together, apart)))


@pytest.mark.parametrize(
    ("diameter", "use", "period"), [(1.0, 0.05, 1), (0.6, 0.05, 1), (3.0, 0.1, 7), (8.0, 0.3, 3)]
)
def test_a_bounded_domain_at_one_is_below_the_relaxed_forms(
    diameter: float, use: float, period: int
) -> None:
    found = bounded_cyclic_mu(
        lipschitz=1.0,
        sensitivity=use,
        noise=1.0,
        steps=period * 10**6,
        steps_per_pass=period,
        diameter=diameter,
    )
    passes = np.arange(2000.0)
    assert found**2 == pytest.approx(quadratic(diameter, use, passes, period), rel=1e-10)
    # What public code takes, for full batches 3 D s + s^2 ceil(D/s) and for passes the other.
    ceiling = math.ceil(diameter / use)
    relaxed = (3 * diameter * use + use**2 * ceiling) / period + (use**2 if period > 1 else 0)
    assert found**2 <= relaxed * (1 + 1e-12)


def test_a_billion_passes_end_where_they_cost_no_more() -> None:
    asked: dict[str, Any] = {**ONE, "steps_per_pass": 10**6, "steps": 10**12, "lipschitz": 1.0}
    diameter = 1e4
    found = worst_cyclic_mu(**asked, diameter=diameter)
    passes = np.arange(1e6)
    assert found**2 == pytest.approx(quadratic(diameter, 1.0, passes, 10**6), rel=1e-9)
    assert worst_cyclic_mu(**asked) ** 2 == pytest.approx(2 - 1e-6, rel=1e-9)
    asked |= {"steps_per_pass": 1}
    assert worst_cyclic_mu(**asked) == pytest.approx(1e6, rel=1e-12)
    assert worst_cyclic_mu(**asked, diameter=30.0) ** 2 == pytest.approx(120.0, rel=1e-3)


def test_passes_that_make_no_block_are_not_counted() -> None:
    def counted(lipschitz: float, start: float, period: int, passes: int) -> bool:
        mus = domain_mus(lipschitz, start, 1.0, period, np.array([float(passes)]))
        return bool(np.isfinite(mus[0]))

    # From 0.5 apart four idle steps release 0.125 each, and a pass of five steps 0.2 each.
    assert [counted(1.0, 0.5, 5, passes) for passes in (0, 1, 9)] == [True, False, False]
    assert counted(1.0, 0.9, 5, 9)
    # A contraction forgets how little it began with: the second pass would join the first.
    assert not counted(0.9, 0.1, 3, 1)
    assert not counted(0.9, 0.1, 3, 9)
    # An expansive run joins passes until their rate is above that of what is before them.
    assert [counted(1.1, 20.0, 1, passes) for passes in (1, 5, 60)] == [True, True, False]


def test_variances_below_the_normal_doubles_are_not_divided_by() -> None:
    for period, passes in ((1, 0.0), (2, 0.0), (2, 3.0)):
        mus = domain_mus(1e157, 1e-3, 1.0, period, np.array([passes]))
        assert mus[0] == math.inf


@pytest.mark.parametrize("lipschitz", [1e-300, 1e-3, 1e3, 1e300])
def test_extreme_constants_agree_with_the_engine(lipschitz: float) -> None:
    for period, diameter in ((1, 0.5), (3, 0.5), (3, 40.0)):
        asked: dict[str, Any] = {
            "lipschitz": lipschitz,
            **ONE,
            "steps": 9,
            "steps_per_pass": period,
        }
        run = cyclic(
            lipschitz=lipschitz, use=1.0, noise=1.0, steps=9, period=period, first=period - 1
        )
        assert worst_cyclic_mu(**asked) == pytest.approx(shift_mu(**run), rel=1e-9)
        found = worst_cyclic_mu(**asked, diameter=diameter)
        assert found == pytest.approx(best_start_mu(**run, diameter=diameter), rel=1e-9)


@pytest.mark.parametrize("diameter", [0.0, 1e-310, math.inf])
def test_a_domain_that_says_nothing_changes_nothing(diameter: float) -> None:
    asked: dict[str, Any] = {"lipschitz": 1.0, **ONE, "steps": 12, "steps_per_pass": 3}
    assert worst_cyclic_mu(**asked, diameter=diameter) == worst_cyclic_mu(**asked)


@pytest.mark.parametrize("lipschitz", [0.9, 1.0, 1.1])
def test_constants_near_one_change_nothing(lipschitz: float) -> None:
    asked: dict[str, Any] = {**ONE, "steps": 40, "steps_per_pass": 4, "diameter": 2.0}
    low, high = (worst_cyclic_mu(lipschitz=lipschitz + d, **asked) for d in (-1e-12, 1e-12))
    assert low == pytest.approx(high, rel=1e-9)
    middle = worst_cyclic_mu(lipschitz=lipschitz, **asked)
    assert low * (1 - 1e-10) <= middle <= high * (1 + 1e-10)
