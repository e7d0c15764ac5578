"""Every e-value has expectation 1 or less, by adding over all sizes with exact chances."""

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from itertools import combinations, product
from typing import Any

import mpmath
import pytest
from dpledger_client.sampling_check import Evidence, log_e_values, observe, start

EXACT = {"constant", "cut at the maximum", "adds up in a pass"}  # bets that give nothing away
Sampling = dict[str, Any]


def binomial(trials: int, probability: Fraction, size: int) -> Fraction:
    misses = trials - size
    return math.comb(trials, size) * probability**size * (1 - probability) ** misses


def law_of(sampling: Sampling, n: int, past: tuple[int, ...]) -> dict[int, Fraction]:
    """The chance of each next size, from the definition of the sampling."""
    if sampling["kind"] == "balls_and_bins":
        step = len(past) % sampling["steps_per_pass"]
        rest = n - sum(past[len(past) - step :])
        share = Fraction(1, sampling["steps_per_pass"] - step)
        return {size: binomial(rest, share, size) for size in range(rest + 1)}
    q = Fraction(sampling["sampling_probability"])
    cap = min(n, sampling.get("max_batch_size", n))
    law = {size: binomial(n, q, size) for size in range(cap)}
    return {**law, cap: sum((binomial(n, q, size) for size in range(cap, n + 1)), Fraction(0))}


def after(sampling: Sampling, n: int, sizes: Iterable[int]) -> Evidence:
    evidence = start(sampling, dataset_size=n)
    for size in sizes:
        evidence = observe(evidence, size)
    return evidence


def e_values(evidence: Evidence) -> dict[str, float]:
    return {name: math.exp(value) for name, value in log_e_values(evidence).items()}


def expected_growth(sampling: Sampling, n: int, past: tuple[int, ...]) -> dict[str, float]:
    """Of each e-value, the mean after one more step over the value before."""
    before = after(sampling, n, past)
    values = [
        (mpmath.mpf(p.numerator) / p.denominator, log_e_values(observe(before, size)))
        for size, p in law_of(sampling, n, past).items()
        if p
    ]
    return {
        name: float(mpmath.fsum(p * mpmath.exp(ends[name] - value) for p, ends in values))
        for name, value in log_e_values(before).items()
    }


def poisson(probability: float, cap: int | None = None) -> Sampling:
    if cap is None:
        return {"kind": "poisson", "sampling_probability": probability}
    kind = "truncated_poisson"
    return {"kind": kind, "sampling_probability": probability, "max_batch_size": cap}


def balls(steps: int) -> Sampling:
    return {"kind": "balls_and_bins", "steps_per_pass": steps}


CASES: list[tuple[Sampling, int, list[tuple[int, ...]]]] = [
    (poisson(0.3), 7, [(), (2,), (2, 2), (7, 0), (0, 0, 0), (3, 3, 3, 3, 1), (1, 6, 6, 2, 6)]),
    (poisson(0.05), 9, [(), (0,) * 20, (1, 1), (9, 9), (0,) * 19 + (9,), (2, 2, 0, 1, 3, 3)]),
    (poisson(0.5), 12, [(), (6,), (6, 6), (12,), (9, 2), (4, 8, 4, 8, 8)]),
    (poisson(0.9), 5, [(), (5,), (5, 5, 5), (4, 4), (0, 1)]),
    (poisson(1e-3), 4, [(), (0,) * 30, (1,), (4, 4, 0)]),
    (poisson(0.02), 200, [(), (4,), (4, 4, 4), (7, 3, 5, 7, 7), (200,)]),
    (poisson(0.3, 3), 7, [(), (3,), (3, 3), (2, 2), (0, 1, 2, 3), (1, 1, 1)]),
    (poisson(0.3, 1), 7, [(), (1,), (0, 0), (1, 1, 1, 0)]),
    (poisson(0.5, 11), 12, [(), (6, 6), (11, 11), (10, 10), (5, 9, 9)]),
    (poisson(0.2, 6), 6, [(), (6,), (2, 2), (1, 0, 3)]),
    (poisson(0.25, 40), 200, [(), (40, 40), (38, 38, 30)]),
    (balls(3), 6, [(), (2,), (2, 2), (2, 2, 2), (6, 0, 0), (0, 0), (1, 4, 1, 2), (0,)]),
    (balls(2), 9, [(), (4,), (4, 5), (9, 0), (9, 0, 3)]),
    (balls(10), 5, [(), (0,) * 8, (1, 1, 1, 1, 1), (0, 0, 0, 5)]),
]
STEPS = [(sampling, n, past) for sampling, n, pasts in CASES for past in pasts]


@pytest.mark.parametrize(("sampling", "n", "past"), STEPS, ids=str)
def test_no_e_value_is_expected_to_grow(sampling: Sampling, n: int, past: tuple[int, ...]) -> None:
    for name, growth in expected_growth(sampling, n, past).items():
        assert 0 < growth <= 1 + 1e-12, name


@pytest.mark.parametrize(("sampling", "n", "past"), STEPS, ids=str)
def test_bets_that_give_nothing_away_are_expected_to_stay(
    sampling: Sampling, n: int, past: tuple[int, ...]
) -> None:
    # The law of a pass that adds up is not cut at the cap, so there it gives something away.
    exact = EXACT - ({"adds up in a pass"} if "max_batch_size" in sampling else set())
    for name, growth in expected_growth(sampling, n, past).items():
        if name in exact or name.startswith("mean"):
            assert growth == pytest.approx(1, abs=1e-10), name


def test_what_a_normal_law_gives_to_sizes_above_the_cap_goes_to_the_cap() -> None:
    growth = expected_growth(poisson(0.5, 105), 200, ())
    for name in ("variance/4", "variance*4", "variance*16"):
        assert growth[name] == pytest.approx(1, abs=1e-4), name


@pytest.mark.parametrize(
    ("sampling", "n", "steps"),
    [(poisson(0.4), 3, 4), (poisson(0.4, 2), 4, 5), (balls(3), 4, 6)],
    ids=str,
)
def test_the_chance_of_ever_being_refuted_is_below_the_level(
    sampling: Sampling, n: int, steps: int
) -> None:
    def ways(past: tuple[int, ...], chance: Fraction) -> Iterator[tuple[float, float, float]]:
        if len(past) == steps:
            trace = [log_e_values(after(sampling, n, past[:end])) for end in range(steps + 1)]
            top = max(values["mixture"] for values in trace)
            yield float(chance), math.exp(trace[-1]["mixture"]), top
            return
        for size, p in law_of(sampling, n, past).items():
            if p:
                yield from ways((*past, size), chance * p)

    paths = list(ways((), Fraction(1)))
    assert math.fsum(chance for chance, _, _ in paths) == pytest.approx(1, abs=1e-12)
    assert math.fsum(chance * e for chance, e, _ in paths) <= 1 + 1e-12
    for level in (0.9, 0.5, 0.2, 0.05):
        tops = math.fsum(chance for chance, _, top in paths if top >= -math.log(level))
        assert tops <= level


def passes(n: int, steps: int, participations: int) -> dict[tuple[int, ...], Fraction]:
    """The chance of each sequence of sizes of one pass, by trying every allocation."""
    rows = [
        tuple(int(step in chosen) for step in range(steps))
        for chosen in combinations(range(steps), participations)
    ]
    law: dict[tuple[int, ...], Fraction] = {}
    for joint in product(rows, repeat=n):
        sizes = tuple(map(sum, zip(*joint, strict=True)))
        law[sizes] = law.get(sizes, Fraction(0)) + Fraction(1, len(rows) ** n)
    return law


@pytest.mark.parametrize(
    ("n", "steps", "participations", "before"),
    [
        (4, 3, 2, ()),
        (4, 3, 2, (4, 2, 2)),
        (3, 4, 2, (0, 3, 3, 0)),
        (5, 3, 2, (4, 3, 3, 3, 3, 4)),
        (3, 4, 3, ()),
        (3, 3, 3, (3, 3, 3)),
    ],
)
def test_a_pass_of_random_allocation_is_not_expected_to_grow(
    n: int, steps: int, participations: int, before: tuple[int, ...]
) -> None:
    kind = "random_allocation"
    sampling = {"kind": kind, "steps_per_pass": steps, "participations": participations}
    values = e_values(after(sampling, n, before))
    law = passes(n, steps, participations)
    ends = {sizes: e_values(after(sampling, n, before + sizes)) for sizes in law}
    for name, value in values.items():
        mean = math.fsum(float(p) * ends[sizes][name] for sizes, p in law.items())
        assert mean <= value * (1 + 1e-12), name
        if name == "constant":
            assert mean == pytest.approx(value, rel=1e-11)


def test_sizes_of_random_allocation_are_possible_exactly_if_an_allocation_has_them() -> None:
    possible = set(passes(3, 4, 2))
    sampling = {"kind": "random_allocation", "steps_per_pass": 4, "participations": 2}
    for sizes in product(range(5), repeat=4):
        contradicted = log_e_values(after(sampling, 3, sizes))["mixture"] == math.inf
        assert contradicted == (sizes not in possible), sizes


def test_an_impossible_size_is_found_as_early_as_it_can_be() -> None:
    possible = set(passes(3, 4, 2))
    sampling = {"kind": "random_allocation", "steps_per_pass": 4, "participations": 2}
    for length in range(1, 4):
        for past in product(range(4), repeat=length):
            can_go_on = any(sizes[:length] == past for sizes in possible)
            contradicted = log_e_values(after(sampling, 3, past))["mixture"] == math.inf
            assert contradicted != can_go_on, past
