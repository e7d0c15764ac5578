"""What hiding every iterate but the last is worth, as training goes on."""

import math
from collections.abc import Sequence
from typing import Final

from accounting.accountants.queries import Query
from accounting.bounds.event_bounds import sensitivity_of
from accounting.events import Cyclic, Event, Full, Gaussian, NeighboringRelation, Sampling, Span
from accounting.gaussian import gaussian_epsilon
from accounting.guarantees import ACCEPTABLE
from accounting.hidden_state import hidden_bound
from accounting.hidden_state_runs import HiddenRun
from accounting.last_iterate.declared import DataOrder, Declared, Stage
from accounting.rounding import rounded_up
from service.cli.figures.figure import DrawnCurve, Figure, FigureKind, Panel

_DATASET_SIZE: Final = 5000
CYCLIC: Final = Cyclic(batch_size=50, steps_per_pass=100)
DELTA: Final = 1e-5
CURVATURE: Final = 0.02  # with the learning rate, a step's constant is 1 - 0.01, 1 or 1 + 0.01
_LEARNING_RATE: Final = 0.5
DIAMETER: Final = 1.0
CYCLIC_NOISE: Final = 4.0
FULL_NOISE: Final = 100.0
RELATION: Final = NeighboringRelation.REPLACE_ONE
PASSES: Final = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1000)
_STEPS: Final = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 20_000, 50_000, 100_000)
# A loss's least curvature, and the diameter of the set onto which each step projects.
CASES: Final = (
    ("last shown, weakly convex (L = 1.01)", -CURVATURE, None),
    ("last shown, convex (L = 1)", 0.0, None),
    ("last shown, convex, bounded domain", 0.0, DIAMETER),
    # Where the norm bound, 1, holds without clipping: within a set that hides nothing itself.
    ("last shown, strongly convex (L = 0.99)", CURVATURE, 2 / CURVATURE),
)


def plan(sampling: Sampling, noise: float, steps: int) -> Span:
    """Equal steps with Gaussian noise."""
    mechanism = Gaussian(noise_multiplier=noise)
    return Span(event=Event(mechanism=mechanism, sampling=sampling), steps=steps)


def every_step(span: Span) -> float:
    """Epsilon where every iterate is shown: a Gaussian release each time a record is used. Upper.

    accounting.guarantee says the same, but also what other samplings would.
    """
    mechanism, sampling = span.event.mechanism, span.event.sampling
    assert isinstance(mechanism, Gaussian)  # noqa: S101 (plan says so)
    per_pass = sampling.steps_per_pass if isinstance(sampling, Cyclic) else 1
    uses = -(-span.steps // per_pass)
    mu = sensitivity_of(RELATION) * math.sqrt(uses) / mechanism.noise_multiplier
    return gaussian_epsilon(DELTA, mu=rounded_up(mu, ulps=4))


def last_iterate(span: Span, *, convexity: float, diameter: float | None) -> float:
    """Epsilon where the last iterate alone is shown. Upper."""
    cyclic = isinstance(span.event.sampling, Cyclic)
    declared = Declared(
        data_order=DataOrder.CYCLIC if cyclic else DataOrder.FULL,
        loss_smoothness=1.0,
        loss_convexity=convexity,
        learning_rate=(Stage(first_step=0, learning_rate=_LEARNING_RATE),),
        max_grad_norm=1.0,
        gradient_divisor=CYCLIC.batch_size if cyclic else _DATASET_SIZE,
        projection_diameter=diameter,
        clipping_can_be_active=False,
        generalized_linear_model=False,
    )
    run = HiddenRun(spans=(span,), declared=declared, dataset_size=_DATASET_SIZE)
    question = Query(relation=RELATION, accept=ACCEPTABLE, delta=DELTA, epsilon=None)
    return hidden_bound(run, question).epsilon


def _panel(title: str, x_name: str, spans: Sequence[tuple[int, Span]]) -> Panel:
    shown = DrawnCurve(
        label="every step shown",
        kind=FigureKind.BOUND,
        points=[(x, every_step(span)) for x, span in spans],
    )
    hidden = (
        DrawnCurve(
            label=label,
            kind=FigureKind.BOUND,
            points=[
                (x, last_iterate(span, convexity=convexity, diameter=diameter)) for x, span in spans
            ],
        )
        for label, convexity, diameter in CASES
    )
    return Panel(
        title=title, x_name=x_name, y_name="epsilon at delta 1e-5", curves=(shown, *hidden)
    )


def last_iterate_figure() -> Figure:
    """Epsilon by training time, every step shown against the last iterate alone."""
    turns = [(e, plan(CYCLIC, CYCLIC_NOISE, e * CYCLIC.steps_per_pass)) for e in PASSES]
    whole = [(steps, plan(Full(), FULL_NOISE, steps)) for steps in _STEPS]
    return Figure(
        name="last_iterate",
        title="What hiding all iterates but the last is worth, for the record that is worst off",
        panels=(
            _panel("Batches in a fixed order, noise 4", "passes of 100 steps", turns),
            _panel("All records in every step, noise 100", "steps", whole),
        ),
    )
