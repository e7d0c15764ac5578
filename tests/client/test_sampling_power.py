"""How soon a wrong declaration is refuted. Sizes are drawn with fixed seeds."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, cycle, islice, repeat
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from dpledger_client import poisson
from dpledger_client.sampling_check import binomial, log_e_values, observe, start, verdict
from dpledger_client.sampling_check.batch_size_laws import Law
from dpledger_client.sampling_check.betting_alternatives import EachOncePerPass, Repeats

N, B, T = 60_000, 256, 234
Q = B / N
SD = math.sqrt(N * Q * (1 - Q))
POISSON = {"kind": "poisson", "sampling_probability": Q}
Sampling = dict[str, Any]
Draw = Callable[[np.random.Generator], Iterable[int]]


def steps_until_refuted(
    sampling: Sampling, sizes: Iterable[int], *, n: int = N, level: float = 1e-6
) -> int:
    """Steps, at most 5000, which stands for never."""
    evidence = start(sampling, dataset_size=n)
    for step, size in enumerate(islice(sizes, 5000), start=1):
        evidence = observe(evidence, size)
        if verdict(evidence, level=level) == "refuted":
            return step
    return 5000


def without_end(draw: Draw, seed: int) -> Iterator[int]:
    random = np.random.default_rng(seed)
    return chain.from_iterable(iter(lambda: draw(random), None))


def binomial_sizes(probability: float = Q, n: int = N) -> Draw:
    return lambda random: random.binomial(n, probability, 64).tolist()


def balls(random: np.random.Generator) -> list[int]:
    return list(map(int, random.multinomial(N, [1 / T] * T)))


@pytest.mark.parametrize(
    ("n", "batch_size", "most"), [(60_000, 256, 6), (50_000, 4096, 5), (10_000, 64, 8)]
)
def test_shuffled_batches_are_not_poisson(n: int, batch_size: int, most: int) -> None:
    declared = poisson(sampling_probability=batch_size / n)
    whole, rest = divmod(n, batch_size)
    epoch = [batch_size] * whole + [rest] * (rest > 0)
    for offset in (0, 1, whole - 4, whole - 1):
        sizes = islice(cycle(epoch), offset, None)
        steps = steps_until_refuted(declared, sizes, n=n)
        assert steps <= (most if offset <= 1 else 10)


@pytest.mark.parametrize(("n", "batch_size"), [(60_000, 256), (50_000, 4096), (10_000, 64)])
def test_shuffled_batches_are_not_truncated_poisson(n: int, batch_size: int) -> None:
    cap = round(batch_size + 2 * math.sqrt(batch_size))
    q = batch_size / n
    declared = {"kind": "truncated_poisson", "sampling_probability": q, "max_batch_size": cap}
    assert steps_until_refuted(declared, repeat(batch_size), n=n) <= 10


def test_shuffled_batches_are_not_balls_in_bins() -> None:
    declared = {"kind": "balls_and_bins", "steps_per_pass": T + 1}
    assert steps_until_refuted(declared, cycle([B] * T + [96])) <= 10


@pytest.mark.parametrize(("n", "batch_size"), [(60_000, 256), (10_000, 64), (50_000, 4096)])
def test_a_size_that_comes_again_gains_what_the_formula_says(n: int, batch_size: int) -> None:
    law = Law.binomial(n, batch_size / n)
    factor, after = Repeats(batch_size).play(batch_size, law, law.log_mass(batch_size))
    normal = math.sqrt(2 * math.pi) * law.sd
    assert factor == pytest.approx(math.log(0.3 + 0.7 * normal), abs=2e-3)
    assert after == Repeats(batch_size)


def test_the_first_constant_size_already_counts() -> None:
    law = Law.binomial(N, Q)
    factor, _ = Repeats(B).play(B, law, law.log_mass(B))
    assert factor == pytest.approx(3.3437, abs=1e-4)
    evidence = observe(start(POISSON, dataset_size=N), B)
    # Half of the money is bet on the first size; half is kept for later.
    want = math.log(0.5 * math.exp(factor) + 0.5)
    assert log_e_values(evidence)["constant"] == pytest.approx(want, abs=1e-10)


def test_a_pass_of_balls_in_bins_gains_the_chance_that_poisson_sizes_add_up() -> None:
    chance = binomial.log_mass(N, trials=N * T, probability=1 / T)
    assert -chance == pytest.approx(6.4178, abs=1e-4)
    law, random, gains = Law.binomial(N, 1 / T), np.random.default_rng(5), []
    for _ in range(30):
        bet, value = EachOncePerPass(N, T, T, N), 0.0
        for size in balls(random):
            factor, bet = bet.play(size, law, law.log_mass(size))
            value += factor
        assert bet == EachOncePerPass(N, T, T, N)
        gains.append(math.log((math.exp(value) - 0.3) / 0.7))  # of the bet without the hedge
    assert mean(gains) == pytest.approx(6.4178, abs=0.03)
    assert stdev(gains) < 0.1


def test_balls_in_bins_are_not_poisson_for_three_passes() -> None:
    declared = {"kind": "poisson", "sampling_probability": 1 / T}
    for seed in range(3):
        assert steps_until_refuted(declared, without_end(balls, seed)) == 3 * T


@pytest.mark.parametrize("kind", ["balls_and_bins", "random_allocation"])
def test_poisson_does_not_add_up_in_a_pass(kind: str) -> None:
    declared: Sampling = {"kind": kind, "steps_per_pass": T}
    if kind == "random_allocation":
        declared["participations"] = 2
    for seed in range(5):
        sizes = without_end(binomial_sizes(declared.get("participations", 1) / T), seed)
        evidence = start(declared, dataset_size=N)
        for size in islice(sizes, T):
            evidence = observe(evidence, size)
        assert log_e_values(evidence)["mixture"] == math.inf


def near(random: np.random.Generator) -> list[int]:
    return list(map(int, B + random.integers(-1, 2, 64)))


def spread(factor: float) -> Draw:
    return lambda random: random.normal(B, SD * math.sqrt(factor), 64).round().astype(int).tolist()


def cut(cap: int) -> Draw:
    return lambda random: np.minimum(random.binomial(N, Q, 64), cap).tolist()


@pytest.mark.parametrize(
    ("draw", "name", "most"),
    [
        (lambda _: [B] * 64, "constant", 7),
        (near, "nearly constant", 15),
        (spread(1 / 64), "variance/64", 40),
        (spread(1 / 16), "variance/16", 60),
        (spread(1 / 4), "variance/4", 150),
        (spread(1 / 2), "variance/2", 400),
        (spread(2), "variance*2", 350),
        (spread(4), "variance*4", 100),
        (spread(16), "variance*16", 30),
        (binomial_sizes(Q - 4 * SD / N), "mean-4sd", 5),
        (binomial_sizes(Q - SD / N), "mean-1sd", 70),
        (binomial_sizes(Q - SD / 4 / N), "mean-0.25sd", 1000),
        (binomial_sizes(Q + SD / 4 / N), "mean+0.25sd", 1000),
        (binomial_sizes(Q + SD / N), "mean+1sd", 70),
        (binomial_sizes(Q + 4 * SD / N), "mean+4sd", 5),
        (cut(B), "cut at the maximum", 35),
        (cut(round(B + SD)), "cut at the maximum", 120),
    ],
)
def test_each_alternative_is_found_by_its_own_bet(draw: Draw, name: str, most: int) -> None:
    for seed in range(3):
        steps = steps_until_refuted(POISSON, without_end(draw, seed))
        evidence = start(POISSON, dataset_size=N)
        for size in islice(without_end(draw, seed), steps):
            evidence = observe(evidence, size)
        assert steps <= most
        assert log_e_values(evidence)[name] > 5  # near misses gain too, so that others help


@pytest.mark.parametrize(("error", "most"), [(0.1, 40), (0.02, 1000)])
def test_a_wrong_probability_is_found(error: float, most: int) -> None:
    for seed, sign in enumerate((-1, 1)):
        sizes = without_end(binomial_sizes(Q * (1 + sign * error)), seed)
        assert steps_until_refuted(POISSON, sizes) <= most


@pytest.mark.parametrize("honest", [0, 30, 300, 3000])
def test_what_begins_late_is_found_almost_as_soon(honest: int) -> None:
    sizes = np.random.default_rng(honest).binomial(N, Q, honest).tolist()
    steps = steps_until_refuted(POISSON, chain(sizes, repeat(B)))
    assert honest < steps <= honest + 13


def test_leaving_out_empty_batches_is_found() -> None:
    declared = {"kind": "poisson", "sampling_probability": 1 / N}
    drawn = without_end(binomial_sizes(1 / N), 0)
    assert steps_until_refuted(declared, (size for size in drawn if size)) <= 300


def test_equal_sizes_are_not_a_random_allocation() -> None:
    declared = {"kind": "random_allocation", "steps_per_pass": 20, "participations": 4}
    assert steps_until_refuted(declared, repeat(200), n=1000) <= 20 * 12


def test_what_is_repeated_is_the_last_size() -> None:
    law, away = Law.binomial(N, Q), B + 30
    lost, bet = Repeats(B).play(away, law, law.log_mass(away))
    assert lost == pytest.approx(math.log(0.3))
    assert bet == Repeats(away)
    evidence = start(POISSON, dataset_size=N)
    for _ in range(4):
        evidence = observe(evidence, away)
    values = log_e_values(evidence)
    assert values["constant"] > 10
    assert values["nearly constant"] > 8


def test_an_allocation_bets_on_the_size_that_ended_the_pass_before() -> None:
    declared = {"kind": "random_allocation", "steps_per_pass": 4, "participations": 2}
    values = {}
    for last in (57, 53):
        evidence = start(declared, dataset_size=100)
        for size in (45, 45, 110 - last, last, 57, 43, 57, 43):
            evidence = observe(evidence, size)
        values[last] = log_e_values(evidence)["constant"]
    assert values[57] > values[53]


def test_an_allocation_gains_nothing_before_a_pass_ends() -> None:
    declared = {"kind": "random_allocation", "steps_per_pass": 20, "participations": 4}
    evidence = start(declared, dataset_size=1000)
    for step in range(1, 21):
        evidence = observe(evidence, 200)
        assert (log_e_values(evidence)["constant"] > 0) == (step == 20)


def test_a_long_honest_run_is_not_refuted() -> None:
    evidence = start(POISSON, dataset_size=N)
    for step, size in zip(count(1), without_end(binomial_sizes(), 1), strict=False):
        evidence = observe(evidence, size)
        if step == 5_000:
            break
    assert verdict(evidence, level=0.1) == "not refuted"
    # No more can be lost than all but what is kept: 1/2 / steps.
    assert min(log_e_values(evidence).values()) >= -math.log(10_000) - 1e-9
