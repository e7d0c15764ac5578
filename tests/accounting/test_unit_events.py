"""Steps of records with several rows, as a parent's budget counts them."""

import math
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import norm

from accounting.accountants.best_bound import guarantee
from accounting.accountants.unit_bound import unit_bound
from accounting.bounds.dominating_pairs import pld_bounds
from accounting.bounds.gdp_bounds import gdp_bounds
from accounting.bounds.renyi_bounds import renyi_bounds
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Event,
    Gaussian,
    NeighboringRelation,
    Poisson,
    PoissonUnit,
    Sampling,
    Span,
)
from accounting.guarantees import Status
from accounting.initial_guesses import estimated_mu
from accounting.pld.certified_composition import delta_bracket
from accounting.renyi.orders import ORDERS
from accounting.subsampling.curves import poisson_unit_rdp
from accounting.subsampling.units import poisson_unit_replace_pair

ADD, ONE, NULL = NeighboringRelation
ACCEPT = frozenset({Status.PUBLISHED, Status.DERIVED})
Points = npt.NDArray[np.float64]
MANY = PoissonUnit(sampling_probability=0.5, rows=10_000)  # more than are told apart


def step(sampling: Sampling, noise: float = 1.0) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)


def unit(rate: float, rows: int) -> PoissonUnit:
    return PoissonUnit(sampling_probability=rate, rows=rows)


def counts(event: Event, steps: int) -> EventCounts:
    return count_events([[Span(event=event, steps=steps)]])


def mixture(x: Points, vectors: tuple[float, ...], rate: float, noise: float) -> Points:
    """The law of a step whose record has rows of these contributions, on a line."""
    found = np.zeros_like(x)
    for chosen in product((0, 1), repeat=len(vectors)):
        weight = math.prod(rate if one else 1 - rate for one in chosen)
        found += weight * norm.pdf(x, float(np.dot(chosen, vectors)), noise)
    return found


def renyi(first: Points, second: Points, order: float, step: float) -> float:
    logs = order * np.log(first) + (1 - order) * np.log(second)
    return math.log(float(np.sum(np.exp(logs))) * step) / (order - 1)


@pytest.mark.parametrize(("rows", "rate", "noise"), [(2, 0.3, 1.0), (3, 0.05, 2.0), (6, 0.01, 4.0)])
def test_the_curve_is_the_larger_divergence_of_both_orders(
    rows: int, rate: float, noise: float
) -> None:
    x, width = np.linspace(-30 * noise, 30 * noise, 400_001, retstep=True)
    joined, none = mixture(x, (1.0,) * rows, rate, noise), norm.pdf(x, 0, noise)
    orders = np.array([1.5, 2.0, 4.0, 8.0])
    curve = poisson_unit_rdp(
        noise_multiplier=noise, sampling_probability=rate, rows=rows, relation=ADD, orders=orders
    )
    for order, bound in zip(orders, curve, strict=True):
        true = max(renyi(joined, none, order, width), renyi(none, joined, order, width))
        assert true <= bound <= true * 1.001


def test_no_exchange_of_rows_loses_more_than_the_pair_says() -> None:
    x, width = np.linspace(-30.0, 30.0, 60_001, retstep=True)
    for rate, noise in ((0.1, 0.8), (0.5, 1.5)):
        pair = poisson_unit_replace_pair(noise_multiplier=noise, sampling_probability=rate, rows=2)
        for loss in (0.0, 0.2, 1.0):
            most = delta_bracket([(pair, 1)], epsilon=loss).upper
            for one in product((-1.0, 0.0, 1.0), repeat=2):
                for other in product((-1.0, 0.0, 1.0), repeat=2):
                    p, q = (mixture(x, rows, rate, noise) for rows in (one, other))
                    lost = float(np.maximum(p - math.exp(loss) * q, 0.0).sum() * width)
                    assert lost <= most * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("relation", [ADD, NULL])
def test_a_parent_reads_what_a_plan_says_of_a_person(relation: NeighboringRelation) -> None:
    plan = counts(step(Poisson(sampling_probability=0.01)), 1000)
    person = unit_bound(plan, rows=4, relation=relation, delta=1e-5, accept=ACCEPT)
    charged = counts(step(unit(0.01, 4)), 1000)
    found = guarantee(charged, relation=relation, delta=1e-5, accept=ACCEPT)
    assert found.epsilon == pytest.approx(person.epsilon, rel=1e-3)
    assert found.epsilon_lower is not None
    assert person.epsilon_lower is not None
    assert found.epsilon_lower <= 8.89919 <= (found.epsilon or 0.0)  # of another program
    by_curve = guarantee(charged, relation=relation, delta=1e-5, accept=ACCEPT, accountant="rdp")
    assert by_curve.epsilon is not None
    assert person.epsilon < by_curve.epsilon < 1.2 * person.epsilon


def test_one_record_more_costs_more_and_an_exchange_most() -> None:
    found = [
        guarantee(counts(step(unit(0.02, rows), 4.0), 300), relation=of, delta=1e-5, accept=ACCEPT)
        for rows, of in ((2, ADD), (3, ADD), (3, ONE))
    ]
    assert all(one.epsilon is not None for one in found)
    assert found[0].epsilon < found[1].epsilon < found[2].epsilon  # type: ignore[operator]


@pytest.mark.parametrize("relation", [ADD, ONE, NULL])
def test_more_rows_than_are_told_apart_count_as_a_full_batch(relation: NeighboringRelation) -> None:
    event = step(MANY, 1e4)
    (release,) = gdp_bounds(event, relation)
    assert release.loss == pytest.approx(2.0 if relation is ONE else 1.0)
    assert len(renyi_bounds(event, relation)) == len(pld_bounds(event, relation)) == 1
    assert len(renyi_bounds(step(unit(0.1, 2)), relation)) == 2
    found = guarantee(counts(event, 1), relation=relation, delta=1e-5, accept=ACCEPT)
    assert found.epsilon is not None


def test_the_first_guess_counts_every_row() -> None:
    few, many = (counts(step(unit(0.01, rows)), 100) for rows in (2, 4))
    assert estimated_mu(many, ADD) > estimated_mu(few, ADD)


def test_curves_leave_out_a_chance_of_next_to_nothing() -> None:
    for relation in (ADD, ONE, NULL):
        bound = renyi_bounds(step(unit(0.1, 2)), relation)[0]
        assert 0 < bound.delta < 1e-50
        assert len(bound.loss) == len(ORDERS)


@pytest.mark.parametrize(("rate", "rows"), [(0.0, 2), (1.0, 2), (0.1, 1), (0.1, 10_001)])
def test_what_is_out_of_range_is_refused(rate: float, rows: int) -> None:
    with pytest.raises(ValueError, match="Out of range"):
        unit(rate, rows)
