"""A search for contradictions: random ledgers over the whole supported domain.

    OPENBLAS_NUM_THREADS=1 PYTHONPATH=. python benchmarks/search.py --ledgers 10000 --seed 1

Each ledger is drawn from noise multipliers of 0.2 to 1e4, rates of 1e-7 to 1, up to 1e9 steps and
deltas of 0.5 to 1e-20, with mixtures of mechanisms. Checked: lower <= upper; more noise, a smaller
rate, fewer steps and a larger delta never cost more; splitting and reordering change nothing beyond
the width; rate 1 is the Gaussian closed form; the brackets of the contour and the lattice meet.
Exits 1 at any violation and prints it.
"""

import argparse
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from accounting.events import Direction
from accounting.gaussian import gaussian_bracket_epsilon
from accounting.pld.certified_composition import Bracket, Engine, epsilon_bracket, forget
from accounting.pld.contour.contour_bounds import contour_epsilon
from accounting.pld.contour.inversion import NoDecayError
from accounting.pld.contour.real_moments import NoMomentsError
from accounting.pld.lattice.lattice_bounds import lattice_epsilon
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
)

FORGET_EVERY: Final = 200
LATTICE_WIDTH: Final = 1e-2


@dataclass(frozen=True)
class Ledger:
    """Pairs, how often each counts, and the delta asked at."""

    units: tuple[tuple[Pair, int], ...]
    delta: float

    def bracket(self) -> Bracket:
        """Epsilon."""
        return epsilon_bracket(list(self.units), delta=self.delta)


def log_uniform(source: random.Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return math.exp(source.uniform(math.log(low), math.log(high)))


def noise_of(source: random.Random) -> float:
    """Mostly what training uses, sometimes anything."""
    return log_uniform(source, 0.2, 1e4) if source.random() < 0.3 else log_uniform(source, 0.3, 10)


def rate_of(source: random.Random) -> float:
    """Small rates, and rates next to one."""
    if source.random() < 0.1:
        return 1 - log_uniform(source, 1e-9, 0.5)
    return min(log_uniform(source, 1e-7, 1), 1 - 1e-9)


def steps_of(source: random.Random) -> int:
    """From one to a billion."""
    return int(log_uniform(source, 1, 1e9 if source.random() < 0.2 else 1e6))


def pair_of(source: random.Random) -> Pair:
    """Any pair an event may have."""
    kind = source.random()
    if kind < 0.75:
        return SampledGaussianPair(
            noise_multiplier=noise_of(source), sampling_probability=rate_of(source)
        )
    if kind < 0.85:
        return GaussianPair(noise_multiplier=noise_of(source))
    if kind < 0.95:
        return LaplacePair(scale=log_uniform(source, 0.2, 1e3), sampling_probability=1.0)
    truth = source.uniform(0.5, 0.99)
    return DiscretePair(first=(truth, 1 - truth), second=(1 - truth, truth))


def ledger_of(source: random.Random) -> Ledger:
    """One to three distinct pairs."""
    pairs = {pair_of(source): steps_of(source) for _ in range(source.choice((1, 1, 1, 2, 3)))}
    return Ledger(tuple(pairs.items()), log_uniform(source, 1e-20, 0.5))


def changed(ledger: Ledger, change: Callable[[Pair, int], tuple[Pair, int]]) -> Ledger:
    """The ledger with its first unit changed."""
    first, *rest = ledger.units
    return Ledger((change(*first), *rest), ledger.delta)


def cheaper(ledger: Ledger, source: random.Random) -> tuple[str, Ledger] | None:
    """A ledger that can not cost more, and why."""
    pair, count = ledger.units[0]
    factor = 1 + log_uniform(source, 1e-4, 1)
    kind = source.choice(("noise", "rate", "steps", "delta"))
    if kind == "delta":
        return kind, Ledger(ledger.units, min(0.9, ledger.delta * factor))
    if kind == "steps" and count > 1:
        return kind, changed(ledger, lambda pair, count: (pair, max(1, int(count / factor))))
    if isinstance(pair, SampledGaussianPair):
        noise, rate = pair.noise_multiplier, pair.sampling_probability
        if kind == "noise":
            noise *= factor
        else:
            rate /= factor
        quieter = SampledGaussianPair(noise_multiplier=noise, sampling_probability=rate)
        return kind, changed(ledger, lambda _, count: (quieter, count))
    return None


def violations(ledger: Ledger, source: random.Random, engines: Counter[str]) -> list[str]:
    """What contradicts what."""
    found = []
    whole = ledger.bracket()
    engines[whole.engine] += 1
    if not 0 <= whole.lower <= whole.upper:
        found.append(f"not a bracket: {whole}")
    less = cheaper(ledger, source)
    if less is not None:
        kind, other = less
        if not other.bracket().lower <= whole.upper:
            found.append(f"{kind}: {other.bracket()} above {whole}")
    pair, count = ledger.units[0]
    if count > 1:
        part = source.randint(1, count - 1)
        split = Ledger((*ledger.units[1:], (pair, part), (pair, count - part)), ledger.delta)
        again = split.bracket()
        if not (again.lower <= whole.upper and whole.lower <= again.upper):
            found.append(f"split: {again} apart from {whole}")
    found += _next_to_full(ledger, source)
    found += _engines_apart(ledger, whole, source)
    return found


def _next_to_full(ledger: Ledger, source: random.Random) -> list[str]:
    pair, count = ledger.units[0]
    if not isinstance(pair, SampledGaussianPair) or source.random() < 0.8:
        return []
    full = gaussian_bracket_epsilon(
        ledger.delta, mu=(math.sqrt(count) / pair.noise_multiplier * f for f in (1 - 1e-15, 1 +
        1e-15)),  # type: ignore[arg-type]
    )  # fmt: skip
    sampled = Ledger(((pair, count),), ledger.delta).bracket()
    if not sampled.lower <= full[1]:
        return [f"sampling costs more than the full batch: {sampled}, {full}"]
    return []


def _engines_apart(ledger: Ledger, whole: Bracket, source: random.Random) -> list[str]:
    if whole.engine is not Engine.CONTOUR or source.random() < 0.9:
        return []
    units = list(ledger.units)
    try:
        contour = contour_epsilon(units, Direction.REMOVE, delta=ledger.delta, width=1e-6)
    except (NoDecayError, NoMomentsError):
        return []
    try:
        lattice = lattice_epsilon(
            units, direction=Direction.REMOVE, delta=ledger.delta, width=LATTICE_WIDTH
        )
    except ArithmeticError:  # refused: its losses do not fit in a double
        return []
    if contour[0] <= lattice[1] and lattice[0] <= contour[1]:
        return []
    return [f"the engines do not meet: contour {contour}, lattice {lattice}"]


def main() -> None:
    """Search, and say what was found."""
    parser = argparse.ArgumentParser(description="search for contradictions")
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    source = random.Random(asked.seed)
    engines: Counter[str] = Counter()
    widths: list[float] = []
    failures = 0
    start = time.perf_counter()
    for number in range(1, asked.ledgers + 1):
        ledger = ledger_of(source)
        for violation in violations(ledger, source, engines):
            failures += 1
            print(f"VIOLATION {ledger}: {violation}", flush=True)
        whole = ledger.bracket()
        widths.append((whole.upper - whole.lower) / whole.upper if whole.upper else 0.0)
        if number % FORGET_EVERY == 0:
            forget()
    took = time.perf_counter() - start
    ordered = sorted(widths)
    shares = ", ".join(
        f"{100 * sum(width <= limit for width in widths) / len(widths):.1f} % within {limit:g}"
        for limit in (1e-6, 1e-3, 1e-2)
    )
    print(f"{asked.ledgers} ledgers in {took:.0f} s, engines {dict(engines)}")
    print(f"relative width: median {ordered[len(ordered) // 2]:.1e}; {shares}")
    print(f"{failures} violations")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
