"""The numbers that capabilities.py compares: what is asked of us, and what of a peer."""

import contextlib
import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from accounting import Event, NeighboringRelation, Span, Status, count_events, guarantee
from accounting.accountants.unit_bound import unit_bound
from accounting.auditing.one_run import epsilon_at_least, one_run_p_value, printed_p_value
from accounting.correlated_noise import (
    BandedRows,
    BufferedToeplitz,
    Identity,
    Participation,
    Strategy,
    Toeplitz,
    Tree,
    sensitivity_of,
)
from accounting.events import (
    CyclicPoisson,
    Full,
    Gaussian,
    MatrixGaussian,
    MinSeparation,
    NegativeBinomialTrials,
    Placement,
    Poisson,
    PoissonTrials,
    PrivateSelection,
)
from accounting.renyi.selection import negative_binomial_of_mean

ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
SPECIAL: Final = NeighboringRelation.REPLACE_SPECIAL
ACCEPT: Final = frozenset({Status.PUBLISHED, Status.DECLARED, Status.DERIVED})
DELTA: Final = 1e-5
LONGEST: Final = 1_000_000  # steps of a Toeplitz strategy
LONGEST_SECONDS: Final = 1.0
UNIT_SECONDS: Final = 0.050
SIGNIFICANCE: Final = 0.05

# What is timed, from a factor near 1 that differs in each turn.
Call = Callable[[float], float]
Peers = dict[str, Any]  # modules by name; empty where they are not installed


@dataclass(frozen=True)
class Line:
    """One number, ours and a peer's."""

    name: str
    ours: Call
    theirs: Call | None = None
    most: float | None = None  # seconds of ours


def peers() -> Peers:
    """The libraries, as far as they are there."""
    found: Peers = {}
    with contextlib.suppress(ImportError):
        importlib.import_module("jax").config.update("jax_enable_x64", True)
        for name in ("toeplitz", "banded", "buffered_toeplitz", "sensitivity"):
            found[name] = importlib.import_module(f"jax_privacy.matrix_factorization.{name}")
        found["auditing"] = importlib.import_module("jax_privacy.auditing")
        found["bandmf"] = importlib.import_module("jax_privacy.experimental.accounting")
        found["jnp"] = importlib.import_module("jax.numpy")
        found["dp"] = importlib.import_module("dp_accounting.dp_event")
        found["relations"] = importlib.import_module("dp_accounting").NeighboringRelation
        found["pld"] = importlib.import_module("dp_accounting.pld").PLDAccountant
        found["rdp"] = importlib.import_module("dp_accounting.rdp").RdpAccountant
        logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it gives up
    return found


def composed(
    library: Peers, accountant: str, event: Any, relation: NeighboringRelation, *, delta: float
) -> float:
    """Epsilon of a peer's accountant."""
    ledger = library[accountant](neighboring_relation=library["relations"][relation.name])
    return float(ledger.compose(event).get_epsilon(delta))


def epsilon_of(event: Event, relation: NeighboringRelation, *, delta: float = DELTA) -> float:
    """Ours, of one pass or selection."""
    steps = 1
    if isinstance(event.sampling, MinSeparation | CyclicPoisson):
        steps = event.sampling.steps_per_pass
    counts = count_events([[Span(event=event, steps=steps)]])
    found = guarantee(counts, relation=relation, delta=delta, accept=ACCEPT)
    return math.nan if found.epsilon is None else found.epsilon


# Correlated noise


def square_root(steps: int) -> list[float]:
    """Coefficients of the square root of prefix sums: 1, 1/2, 3/8, ..."""
    places = np.arange(1, steps)
    return [1.0, *np.cumprod((2 * places - 1) / (2 * places)).tolist()]


def scaled(coefficients: list[float], factor: float) -> tuple[float, ...]:
    """The coefficients times a factor."""
    return tuple(factor * one for one in coefficients)


def squared_of(strategy: Strategy, n: int, b: int, k: int) -> float:
    """Our squared sensitivity."""
    schema = Participation(steps=n, min_separation=b, participations=k)
    return sensitivity_of(strategy, schema).squared


def toeplitz_line(
    library: Peers, name: str, coefficients: list[float], n: int, b: int, most: float | None = None
) -> Line:
    """A monotone Toeplitz strategy, all participations."""
    k = -(-n // b)

    def ours(factor: float) -> float:
        return squared_of(Toeplitz(coefficients=scaled(coefficients, factor)), n, b, k) / factor**2

    def theirs(factor: float) -> float:
        given = library["jnp"].asarray(np.asarray(coefficients) * factor)
        found = library["toeplitz"].minsep_sensitivity_squared(given, b, k, n=n)
        return float(found) / factor**2

    return Line(name, ours, theirs if library else None, most)


def buffered_line(library: Peers) -> Line:
    """A BLT of two buffers."""
    decay, scale, n, b, k = (0.99, 0.8), (0.2, 0.3), 2052, 342, 6

    def ours(factor: float) -> float:
        strategy = BufferedToeplitz(
            buffer_decay=decay, output_scale=tuple(one * factor for one in scale)
        )
        return squared_of(strategy, n, b, k)

    def theirs(factor: float) -> float:
        of = library["buffered_toeplitz"].BufferedToeplitz
        made = of.build(list(decay), [one * factor for one in scale])
        coefficients = made.toeplitz_coefs(n)
        return float(library["toeplitz"].minsep_sensitivity_squared(coefficients, b, k, n=n))

    return Line(f"buffered Toeplitz, n {n}, b {b}", ours, theirs if library else None)


def banded_line(library: Peers) -> Line:
    """A matrix that is given row by row."""
    n, bands, b = 512, 8, 8
    drawn = np.random.default_rng(1).uniform(0.1, 1.0, (n, bands))
    rows = [drawn[i, bands - 1 - min(i, bands - 1) :] for i in range(n)]
    k = -(-n // b)

    def ours(factor: float) -> float:
        given = tuple(tuple((factor * row).tolist()) for row in rows)
        return squared_of(BandedRows(rows=given), n, b, k) / factor**2

    def theirs(factor: float) -> float:
        matrix = np.zeros((n, n))
        for i, row in enumerate(rows):
            matrix[i, i + 1 - len(row) : i + 1] = factor * row
        found = library["sensitivity"].get_sensitivity_banded(library["jnp"].asarray(matrix), b, k)
        return float((found / factor) ** 2)

    return Line(f"banded rows, n {n}, {bands} bands", ours, theirs if library else None)


def sensitivities(library: Peers) -> list[Line]:
    """Squared sensitivities: exact whole numbers, rounded up once, beside double precision."""
    return [
        toeplitz_line(library, "Toeplitz, n 2,048, b 128", square_root(2048), 2048, 128),
        toeplitz_line(library, "Toeplitz, n 100,000, b 1,000", square_root(10**5), 10**5, 1000),
        toeplitz_line(
            library, "Toeplitz, n 1,000,000, b 1,000", square_root(LONGEST), LONGEST, 1000,
            LONGEST_SECONDS,
        ),
        buffered_line(library),
        banded_line(library),
    ]  # fmt: skip


def pass_of(strategy: Strategy, noise: float, n: int, b: int, k: int) -> Event:
    """One pass of n steps."""
    return Event(
        mechanism=MatrixGaussian(
            noise_multiplier=noise, strategy="a", sensitivity_squared=squared_of(strategy, n, b, k)
        ),
        sampling=MinSeparation(
            steps_per_pass=n, min_separation=b, participations=k, placement=Placement.BY_RECORD,
            noise_restarts_each_pass=False,
        ),
    )  # fmt: skip


def passes(library: Peers) -> list[Line]:
    """Epsilon of passes, sensitivity included."""
    n, b = 2048, 128
    k, coefficients, delta = n // b, square_root(n), 1e-6

    def ours(factor: float) -> float:
        strategy = Toeplitz(coefficients=tuple(coefficients))
        return epsilon_of(pass_of(strategy, 4.0 * factor, n, b, k), SPECIAL, delta=delta)

    def theirs(factor: float) -> float:
        given = library["jnp"].asarray(coefficients)
        squared = library["toeplitz"].minsep_sensitivity_squared(given, b, k, n=n)
        event = library["dp"].GaussianDpEvent(4.0 * factor / float(squared) ** 0.5)
        return composed(library, "pld", event, SPECIAL, delta=delta)

    found = [Line("Toeplitz pass, n 2,048, b 128, noise 4", ours, theirs if library else None)]
    found += [tree_line(library, *given) for given in ((255, 4.0), (1000, 10.0))]
    sampled = ((1000, 10, 0.1, 1.0), (2000, 16, 0.16, 2.0), (5000, 50, 0.25, 0.8))
    return [*found, *(sampled_line(library, *given) for given in sampled)]


def tree_line(library: Peers, n: int, noise: float) -> Line:
    """A tree in which each record is once; the peer has Renyi moments alone."""

    def ours(factor: float) -> float:
        return epsilon_of(pass_of(Tree(), noise * factor, n, n, 1), SPECIAL, delta=1e-6)

    def theirs(factor: float) -> float:
        event = library["dp"].SingleEpochTreeAggregationDpEvent(noise * factor, [n])
        return composed(library, "rdp", event, SPECIAL, delta=1e-6)

    return Line(
        f"tree of {n} steps, noise {noise:g} (peer: RDP)", ours, theirs if library else None
    )


def sampled_line(library: Peers, n: int, b: int, q: float, noise: float) -> Line:
    """BandMF with groups that are sampled in turn, columns of norm 1."""

    def ours(factor: float) -> float:
        event = Event(
            mechanism=MatrixGaussian(
                noise_multiplier=noise * factor, strategy="a",
                sensitivity_squared=squared_of(Identity(), n, 1, 1),
            ),
            sampling=CyclicPoisson(
                sampling_probability=q, cycle_length=b, steps_per_pass=n,
                placement=Placement.BY_RECORD, noise_restarts_each_pass=False,
            ),
        )  # fmt: skip
        return epsilon_of(event, ADD)

    def theirs(factor: float) -> float:
        event = library["bandmf"].amplified_bandmf_event(
            noise * factor, n, num_bands=b, sampling_prob=q
        )
        return composed(library, "pld", event, ADD, delta=DELTA)

    name = f"BandMF, n {n:,}, {b} groups, rate {q:g}, noise {noise:g}"
    return Line(name, ours, theirs if library else None)


# Selections, units, audits


def selections(library: Peers) -> list[Line]:
    """The best of a random number of trainings of 1,000 Poisson steps."""
    noise, rate, steps = 1.0, 0.01, 1000

    def ours(shape: float, mean: float, factor: float) -> float:
        law: NegativeBinomialTrials | PoissonTrials = PoissonTrials(mean=mean)
        if math.isfinite(shape):
            law = negative_binomial_of_mean(shape=shape, mean=mean)
        base = Event(
            mechanism=Gaussian(noise_multiplier=noise * factor),
            sampling=Poisson(sampling_probability=rate),
        )
        chosen = PrivateSelection(repetitions=law, base=base, steps=steps)
        return epsilon_of(Event(mechanism=chosen, sampling=Full()), ADD)

    def theirs(shape: float, mean: float, factor: float) -> float:
        of = library["dp"]
        step = of.PoissonSampledDpEvent(rate, of.GaussianDpEvent(noise * factor))
        event = of.RepeatAndSelectDpEvent(of.SelfComposedDpEvent(step, steps), mean, shape)
        return composed(library, "rdp", event, ADD, delta=DELTA)

    laws = {"logarithmic": 0.0, "shape .5": 0.5, "geometric": 1.0, "Poisson": math.inf}
    return [
        Line(
            f"{name}, {mean:g} trials on average",
            partial(ours, shape, mean),
            partial(theirs, shape, mean) if library else None,
        )
        for mean in (10.0, 100.0)
        for name, shape in laws.items()
    ]


def units(library: Peers) -> list[Line]:
    """A person with up to so many records, by Poisson steps."""

    def ours(k: int, q: float, noise: float, steps: int, factor: float) -> float:
        event = Event(
            mechanism=Gaussian(noise_multiplier=noise * factor),
            sampling=Poisson(sampling_probability=q),
        )
        counts = count_events([[Span(event=event, steps=steps)]])
        return unit_bound(counts, rows=k, relation=ADD, delta=DELTA, accept=ACCEPT).epsilon

    def theirs(k: int, q: float, noise: float, steps: int, factor: float) -> float:
        of = library["dp"]
        chances = [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
        step = of.MixtureOfGaussiansDpEvent(noise * factor, list(range(k + 1)), chances)
        event = of.SelfComposedDpEvent(step, steps)
        return composed(library, "pld", event, ADD, delta=DELTA)

    cases = [
        (2, 0.01, 1.0, 1000),
        (4, 0.01, 1.0, 1000),
        (16, 0.001, 1.0, 2000),
        (4, 0.01, 4.0, 1000),
    ]
    return [
        Line(
            f"{k} records, rate {q:g}, noise {noise:g}, {steps:,} steps",
            partial(ours, k, q, noise, steps),
            partial(theirs, k, q, noise, steps) if library else None,
            UNIT_SECONDS,
        )
        for k, q, noise, steps in cases
    ]


def audits(library: Peers) -> list[Line]:
    """Epsilon at least, at significance .05; the peer's counts are fixed beforehand as ours are."""

    def ours(bound: Any, m: int, r: int, v: int, delta: float, factor: float) -> float:
        return epsilon_at_least(
            bound, canaries=m, guesses=r, correct=v, delta=delta * factor, level=SIGNIFICANCE
        )

    def theirs(m: int, r: int, v: int, delta: float, factor: float) -> float:
        inside, outside = np.zeros(v), np.zeros(m - v)
        inside[:], outside[: r - v] = 1.0, 1.0
        found = (
            library["auditing"]
            .CanaryScoreAuditor(inside, outside)
            .epsilon_one_run(
                SIGNIFICANCE, delta * factor, threshold_strategy=library["auditing"].Explicit(0.5)
            )
        )
        return float(found)

    cases = [(1000, 100, 95, 1e-5), (1000, 1000, 700, 1e-5), (10_000, 500, 480, 1e-5)]
    return [
        Line(
            f"{v} of {r} guesses, {m:,} canaries, {name}",
            partial(ours, bound, m, r, v, delta),
            partial(theirs, m, r, v, delta) if library else None,
        )
        for m, r, v, delta in cases
        for name, bound in (("as printed", printed_p_value), ("sharper", one_run_p_value))
    ]
