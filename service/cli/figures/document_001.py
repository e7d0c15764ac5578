"""Figures 1 to 4 of document 001 at the parameters of its Appendix G.

The document does not say how far its axes reach, nor by what its rates were scaled: both are ours.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np

from accounting.literature.contraction.contraction import Lipschitz, ProjectedNoisySgd
from accounting.literature.contraction.kernels import Noise
from accounting.literature.contraction.online import Online, OnlineLimit, online_delta, online_limit
from accounting.literature.contraction.schedules import (
    Schedule,
    half_shift,
    laplace_gap,
    limit_delta,
    loss_rate,
    scheduled_delta,
)
from service.cli.figures.figure import DrawnCurve, Figure, FigureKind, Panel, level

_EPSILON: Final = 1.0
RECORD: Final = 100  # the one that the online bounds are for
SHUFFLED: Final = {
    Noise.LAPLACE: Schedule(c1=1e5, c2=2.0),
    Noise.GAUSSIAN: Schedule(c1=1e5, c2=100.0),
}
ONLINE: Final = Online(schedule=Schedule(c1=100.0, c2=100.0), alpha=1.5)
ONLINE_LEARNING_RATE: Final = 0.01
_PER_DECADE: Final = 4  # lengths
_AGREED: Final = 10_000  # where the document's rate is made to meet the difference
_LENGTH: Final = "n, records of the pass"
_ARRIVED: Final = "n, records so far"


def projected_run(noise: Noise, learning_rate: float) -> ProjectedNoisySgd:
    """The document's run; schedules set its noise, so that the scale here is of no account."""
    return ProjectedNoisySgd(
        learning_rate=learning_rate,
        smoothness=0.5,
        convexity=0.0,
        gradient_bound=10.0,
        diameter=1.0,
        dimension=1,
        clip_can_be_active=False,
        noise=noise,
        noise_scale=1.0,
        batch_size=1,
        lipschitz=Lipschitz.DOCUMENT,
    )


def lengths(first: int, last: int) -> list[int]:
    """Numbers of records from 10^first to 10^last, evenly spaced by their logarithms."""
    exponents = range(first * _PER_DECADE, last * _PER_DECADE + 1)
    return [round(10 ** (exponent / _PER_DECADE)) for exponent in exponents]


def _curve(
    label: str, kind: FigureKind, at: Callable[[int], float], places: Sequence[int]
) -> DrawnCurve:
    return DrawnCurve(label=label, kind=kind, points=[(n, at(n)) for n in places])


def shuffled(noise: Noise, learning_rate: float, places: Sequence[int]) -> list[float]:
    """Delta of a shuffled pass of each length, under the schedule of its noise."""
    run = projected_run(noise, learning_rate)
    return [
        scheduled_delta(run, SHUFFLED[noise], epsilon=_EPSILON, steps=steps).delta
        for steps in places
    ]


def _shuffled_panel(noise: Noise, learning_rates: Sequence[float], last: int) -> Panel:
    places = lengths(3, last)
    limit = limit_delta(noise, SHUFFLED[noise], epsilon=_EPSILON)
    curves = [
        DrawnCurve(
            label=f"delta, learning rate {rate:g}",
            kind=FigureKind.BOUND,
            points=list(zip(places, shuffled(noise, rate, places), strict=True)),
        )
        for rate in learning_rates
    ]
    return Panel(
        title=f"Shuffled pass, {noise.capitalize()} noise",
        x_name=_LENGTH,
        y_name="delta at epsilon 1",
        curves=(*curves, level("its limit; bounds no run", FigureKind.LIMIT, limit, among=places)),
    )


def laplace_rate() -> Panel:
    """N times the distance of delta from its limit, which tends to a constant."""
    run, schedule = projected_run(Noise.LAPLACE, 0.1), SHUFFLED[Noise.LAPLACE]
    places = lengths(3, 9)
    limit = limit_delta(Noise.LAPLACE, schedule, epsilon=_EPSILON)
    power, constant = laplace_gap(run, schedule, epsilon=_EPSILON)
    deltas = shuffled(Noise.LAPLACE, 0.1, places)
    gaps = [(n, n**power * (delta - limit)) for n, delta in zip(places, deltas, strict=True)]
    return Panel(
        title="How fast: like 1/n",
        x_name=_LENGTH,
        y_name="n (delta - limit)",
        curves=(
            DrawnCurve(label="n (delta - limit)", kind=FigureKind.DIFFERENCE, points=gaps),
            level("what it tends to", FigureKind.LIMIT, constant, among=places),
        ),
        log_y=False,
    )


def gaussian_rate() -> Panel:
    """W times the relative distance of delta from its limit; W grows like 2 log n."""
    schedule = SHUFFLED[Noise.GAUSSIAN]
    places = lengths(7, 15)
    limit = limit_delta(Noise.GAUSSIAN, schedule, epsilon=_EPSILON)
    deltas = np.array(shuffled(Noise.GAUSSIAN, 0.1, places))
    lambert = half_shift(Noise.GAUSSIAN, schedule, np.log(places)) ** 2
    gaps = lambert * (deltas / limit - 1)
    return Panel(
        title="How fast: like 1/W, W ~ 2 log n",
        x_name=_LENGTH,
        y_name="W (delta / limit - 1)",
        curves=(
            DrawnCurve(
                label="W (delta / limit - 1)",
                kind=FigureKind.DIFFERENCE,
                points=list(zip(places, gaps.tolist(), strict=True)),
            ),
            level("what it tends to", FigureKind.LIMIT, 1 + _EPSILON**2 / 8, among=places),
        ),
        log_y=False,
    )


@cache
def online(noise: Noise, steps: int) -> float:
    """Delta of the hundredth record once `steps` have arrived."""
    run = projected_run(noise, ONLINE_LEARNING_RATE)
    return online_delta(run, ONLINE, epsilon=_EPSILON, steps=steps, record=RECORD).delta


@cache
def limits(noise: Noise) -> OnlineLimit:
    """What that delta tends to, and the document's figure for it."""
    run = projected_run(noise, ONLINE_LEARNING_RATE)
    return online_limit(run, ONLINE, epsilon=_EPSILON, record=RECORD)


def _online_panel(noise: Noise) -> Panel:
    places, found = lengths(2, 10), limits(noise)
    above = 100 * (found.integral / found.upper.delta - 1)
    return Panel(
        title=f"Online, {noise.capitalize()} noise, record {RECORD} alone",
        x_name=_ARRIVED,
        y_name="delta at epsilon 1",
        curves=(
            _curve("delta so far", FigureKind.BOUND, lambda n: online(noise, n), places),
            level(
                f"document's delta*, {above:.2g} % high",
                FigureKind.DOCUMENT,
                found.integral,
                among=places,
            ),
            level("true limit; bounds no run", FigureKind.LIMIT, found.upper.delta, among=places),
        ),
    )


def online_constant(noise: Noise) -> float:
    """K such that n^(alpha - 1) (delta - limit) tends to K: limit c / (alpha - 1)."""
    rate = loss_rate(noise, ONLINE.schedule, epsilon=_EPSILON)
    return limits(noise).upper.delta * rate / (ONLINE.alpha - 1)


def _online_rate_panel(noise: Noise) -> Panel:
    places, found = lengths(2, 12), limits(noise)
    limit, constant = found.upper.delta, online_constant(noise)
    deltas = {n: online(noise, n) for n in places}
    meeting = (deltas[_AGREED] - limit) * math.log(_AGREED)
    return Panel(
        title=f"Online, {noise.capitalize()} noise, record {RECORD} alone",
        x_name=_ARRIVED,
        y_name="distance of delta at epsilon 1",
        curves=(
            _curve("from its limit", FigureKind.DIFFERENCE, lambda n: deltas[n] - limit, places),
            _curve(
                "from the document's delta*, until delta is below it",
                FigureKind.DIFFERENCE,
                lambda n: deltas[n] - found.integral,
                places,
            ),
            _curve(
                "K / sqrt(n), what the first tends to",
                FigureKind.LIMIT,
                lambda n: constant / n**0.5,
                places[4:],
            ),
            _curve(
                "1 / log n, the document's rate, scaled",
                FigureKind.DOCUMENT,
                lambda n: meeting / math.log(n),
                places,
            ),
        ),
    )


def figure_1() -> Figure:
    """Laplace noise: the schedule for shuffled passes, its rate, and the online schedule."""
    return Figure(
        name="document_001_figure_1",
        title="Document 001, Figure 1: noise that falls with the length, Laplace",
        panels=(
            _shuffled_panel(Noise.LAPLACE, [0.1], 9),
            laplace_rate(),
            _online_panel(Noise.LAPLACE),
        ),
    )


def figure_2() -> Figure:
    """Gaussian noise: the schedule for shuffled passes, its rate, and the online schedule."""
    return Figure(
        name="document_001_figure_2",
        title="Document 001, Figure 2: noise that falls with the length, Gaussian",
        panels=(
            _shuffled_panel(Noise.GAUSSIAN, [0.1], 12),
            gaussian_rate(),
            _online_panel(Noise.GAUSSIAN),
        ),
    )


def figure_3() -> Figure:
    """Gaussian noise at lower learning rates, where delta stays below its limit for long."""
    return Figure(
        name="document_001_figure_3",
        title="Document 001, Figure 3: the limit from below",
        panels=(_shuffled_panel(Noise.GAUSSIAN, [0.02, 0.01], 12),),
    )


def figure_4() -> Figure:
    """How fast the online delta meets its limit."""
    return Figure(
        name="document_001_figure_4",
        title="Document 001, Figure 4: the online rate is n^(1 - alpha), not 1 / log n",
        panels=(_online_rate_panel(Noise.LAPLACE), _online_rate_panel(Noise.GAUSSIAN)),
    )
