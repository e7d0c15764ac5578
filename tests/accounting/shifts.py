"""The shift problem solved by other means: exact fractions, all reset sets, and every start."""

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from accounting.last_iterate.shift import shift_mu
from accounting.rounding import Array

Values = Sequence[float] | Array
Steps = tuple[Values, Values, Values]  # L, s, sigma

CONSTANTS = st.floats(0.3, 1.7)
LENGTHS = st.one_of(st.just(0.0), st.floats(0.01, 3.0))
NOISES = st.floats(0.05, 3.0)

# Of equal steps, and how closely two ways of working out the same must agree.
LIPSCHITZ = st.one_of(
    st.just(1.0), st.floats(0.3, 1.6), st.floats(0.95, 1.05), st.floats(1 - 1e-5, 1 + 1e-5)
)
COUNT = st.integers(1, 7)
LENGTH = st.floats(0.05, 3.0)
FEW = settings(max_examples=60, deadline=None)
SAME = 1e-10
ONE: dict[str, float] = {"sensitivity": 1.0, "noise": 1.0}


@st.composite
def runs(draw: st.DrawFn, *, least: int = 1, most: int = 12) -> Steps:
    """A few unequal steps."""
    count = draw(st.integers(least, most))

    def many(one: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(one, min_size=count, max_size=count))

    return many(CONSTANTS), many(LENGTHS), many(NOISES)


def mu_of(steps: Steps, *, start: float = 0.0) -> float:
    """The engine's answer."""
    constants, shifts, noises = (np.array(each, dtype=np.float64) for each in steps)
    return shift_mu(lipschitz=constants, sensitivities=shifts, noises=noises, start=start)


def pooled(steps: Steps, *, start: float = 0.0) -> Fraction:
    """mu squared, exactly: blocks pooled one after the other, in fractions."""
    stack: list[tuple[Fraction, Fraction, Fraction]] = []
    for index, values in enumerate(zip(*steps, strict=True)):
        constant, shift, noise = map(Fraction, values)
        shift += constant * Fraction(start) if index == 0 else 0
        block = (shift, noise**2, constant)
        while stack and stack[-1][0] * block[1] >= block[2] * block[0] * stack[-1][1]:
            s, n, c = stack.pop()
            grown = block[2]
            block = (grown * s + block[0], grown**2 * n + block[1], c * grown)
        stack.append(block)
    return sum((s * s / n for s, n, _ in stack if s), Fraction(0))


def one_block(steps: Steps) -> Fraction | None:
    """The cost of one block over all these steps, or None where it would release too early."""
    constants, shifts, noises = ([Fraction(value) for value in each] for each in steps)
    count = len(constants)
    reach = [Fraction(1)] * count  # the product of the constants after each step
    for t in range(count - 2, -1, -1):
        reach[t] = reach[t + 1] * constants[t + 1]
    gathered = sum((s * q for s, q in zip(shifts, reach, strict=True)), Fraction(0))
    variance = sum((n * n * q * q for n, q in zip(noises, reach, strict=True)), Fraction(0))
    apart = Fraction(0)
    for c, s, n, q in zip(constants, shifts, noises, reach, strict=True):
        apart = c * apart + s - n * n * q * gathered / variance
        if apart < 0:
            return None
    return gathered * gathered / variance


def over_reset_sets(steps: Steps) -> Fraction:
    """mu squared, exactly: the least over all ways to cut the run into blocks that are possible."""
    count = len(steps[0])
    costs = []
    for cuts in itertools.product((False, True), repeat=count - 1):
        ends = [index + 1 for index, cut in enumerate(cuts) if cut] + [count]
        parts = zip([0, *ends[:-1]], ends, strict=True)
        blocks = [one_block(tuple(each[a:b] for each in steps)) for a, b in parts]  # type: ignore[arg-type]
        if all(cost is not None for cost in blocks):
            costs.append(sum((cost for cost in blocks if cost is not None), Fraction(0)))
    return min(costs)


def over_all_starts(steps: Steps, diameter: float) -> float:
    """mu from the best start, each tried."""
    found = [mu_of(steps)]
    for first in range(len(steps[0])):
        rest = (steps[0][first:], steps[1][first:], steps[2][first:])
        found.append(mu_of(rest, start=diameter))
    return min(found)


def cyclic(
    *, lipschitz: float, use: float, noise: float, steps: int, period: int, first: int
) -> Any:
    """The arrays of a run that uses the record every `period` steps."""
    run = repeated(steps, lipschitz=lipschitz, sensitivities=0.0, noises=noise)
    run["sensitivities"][first::period] = use
    return run


def repeated(count: int, **values: float) -> dict[str, Any]:
    """Arrays of equal entries."""
    return {name: np.full(count, value) for name, value in values.items()}
