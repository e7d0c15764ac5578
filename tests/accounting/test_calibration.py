"""Calibration: what is returned was evaluated to be safe, and its neighbour not to be."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accounting import calibration
from accounting.accountants import best_bound as best_bound_module
from accounting.accountants.best_bound import guarantee
from accounting.calibration import (
    RANGES,
    TOLERANCE,
    Calibrated,
    Parameter,
    UnreachableError,
    calibrate,
    fill_spans,
    frontier,
    least_noise,
    louder,
)
from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    ApproximateDp,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    NoNoise,
    Poisson,
    RandomizedResponse,
    Sampling,
    Span,
    Zcdp,
)
from accounting.gaussian import gaussian_mu
from accounting.work_limit import TooMuchWorkError, limit_work

NOISE, STEPS, RATE = Parameter
DELTA = 1e-5
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE
FULL = Full()


def gaussian(noise: float = 1.0, q: float = 1.0, *, steps: int = 1) -> Span:
    return span(Gaussian(noise_multiplier=noise), q, steps=steps)


def span(mechanism: Mechanism, q: float = 1.0, *, steps: int = 1) -> Span:
    sampling: Sampling = FULL if q == 1 else Poisson(sampling_probability=q)
    return Span(event=Event(mechanism=mechanism, sampling=sampling), steps=steps)


def at(spans: Sequence[Span], parameter: Parameter, *places: int) -> Callable[[float], EventCounts]:
    chosen = places or (0,)
    return lambda value: count_events(
        [fill_spans(spans, places=chosen, parameter=parameter, value=value)]
    )


def solve(
    spans: Sequence[Span], parameter: Parameter, *places: int, epsilon: float, **given: Any
) -> Calibrated:
    """Calibrate, and hold the answer against the accountant."""
    given.setdefault("relation", RELATION)
    given.setdefault("delta", DELTA)
    counts_at = at(spans, parameter, *places)
    found = calibrate(counts_at, parameter=parameter, epsilon=epsilon, **given)
    assert found.parameter is parameter
    assert found.guarantee == guarantee(
        counts_at(found.value), **{key: given[key] for key in given if key != "spend"}
    )
    assert found.guarantee.epsilon is not None
    assert found.guarantee.epsilon <= epsilon
    return found


def epsilon_of(counts: EventCounts) -> float:
    found = guarantee(counts, relation=RELATION, delta=DELTA).epsilon
    return math.inf if found is None else found


@pytest.mark.no_cover
@settings(max_examples=15, deadline=None)
@given(
    epsilon=st.floats(0.3, 8),
    q=st.sampled_from([1e-3, 0.01, 0.05, 1.0]),
    steps=st.integers(300, 20_000),
)
def test_the_noise_found_keeps_to_the_target_and_hardly_less_does(
    epsilon: float, q: float, steps: int
) -> None:
    spans = [gaussian(q=q, steps=steps)]
    found = solve(spans, NOISE, epsilon=epsilon)
    assert found.guarantee.epsilon is not None
    assert found.guarantee.epsilon >= epsilon * (1 - 1e-4)
    less = at(spans, NOISE)(found.value * (1 - 4 * TOLERANCE))
    assert epsilon_of(less) > epsilon


@settings(max_examples=15, deadline=None)
@given(
    epsilon=st.floats(0.5, 8),
    noise=st.floats(0.8, 3),
    q=st.sampled_from([1e-3, 0.01, 0.05, 1.0]),
)
def test_one_step_more_would_pass_the_target(epsilon: float, noise: float, q: float) -> None:
    spans = [gaussian(noise, q)]
    try:
        found = solve(spans, STEPS, epsilon=epsilon)
    except UnreachableError:
        assert epsilon_of(at(spans, STEPS)(1)) > epsilon
        return
    assert isinstance(found.value, int)
    assert epsilon_of(at(spans, STEPS)(found.value + 1)) > epsilon


@settings(max_examples=10, deadline=None)
@given(epsilon=st.floats(0.5, 5), noise=st.floats(0.9, 2), steps=st.integers(500, 5000))
def test_the_rate_found_keeps_to_the_target_and_hardly_more_does(
    epsilon: float, noise: float, steps: int
) -> None:
    spans = [gaussian(noise, 0.5, steps=steps)]
    found = solve(spans, RATE, epsilon=epsilon)
    if found.value < 1:
        more = at(spans, RATE)(min(1.0, found.value * (1 + 4 * TOLERANCE)))
        assert epsilon_of(more) > epsilon


def test_a_known_plan() -> None:
    found = solve([gaussian(q=0.01, steps=5000)], NOISE, epsilon=3.0)
    assert found.value == pytest.approx(1.210886, abs=2e-6)


def test_a_search_takes_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    evaluated = best_bound_module.best_bound

    def best_bound(*args: Any, **given: Any) -> Any:
        asked.append(given["delta"])
        return evaluated(*args, **given)

    monkeypatch.setattr("accounting.calibration.best_bound", best_bound)
    solve([gaussian(q=0.01, steps=5000)], NOISE, epsilon=3.0)
    assert len(asked) <= 10


def test_full_batches_need_the_analytic_noise() -> None:
    found = solve([gaussian(steps=1)], NOISE, epsilon=1.0)
    assert found.value == pytest.approx(1 / gaussian_mu(1.0, delta=DELTA), rel=2 * TOLERANCE)


def test_replacing_needs_twice_the_noise() -> None:
    one, two = (
        solve([gaussian(steps=10)], NOISE, epsilon=1.0, relation=relation).value
        for relation in (NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE)
    )
    assert two == pytest.approx(2 * one, rel=1e-6)


def test_one_value_goes_into_every_open_place() -> None:
    spans = [gaussian(q=0.01, steps=1000), gaussian(3.0, 0.02, steps=500), gaussian(steps=2)]
    found = solve(spans, NOISE, 0, 2, epsilon=2.0)
    put = fill_spans(spans, places=(0, 2), parameter=NOISE, value=found.value)
    noises = [one.event.mechanism.noise_multiplier for one in put]  # type: ignore[union-attr]
    assert noises == [found.value, 3.0, found.value]


def test_steps_are_found_before_later_events() -> None:
    spans = [gaussian(1.0, 0.01), gaussian(2.0, 0.01, steps=1000)]
    alone = solve(spans[:1], STEPS, epsilon=2.0).value
    assert 1 <= solve(spans, STEPS, epsilon=2.0).value < alone


def test_passes_are_counted_whole() -> None:
    event = Event(
        mechanism=Gaussian(noise_multiplier=4.0), sampling=Cyclic(batch_size=10, steps_per_pass=100)
    )
    special = NeighboringRelation.REPLACE_SPECIAL
    found = solve([Span(event=event, steps=1)], STEPS, epsilon=5.0, relation=special)
    assert found.value % 100 == 0


@pytest.mark.no_cover
@pytest.mark.parametrize(
    "other",
    [
        span(RandomizedResponse(probability_of_truth=0.51, categories=2), steps=3),
        span(ApproximateDp(epsilon=0.1, delta=1e-9), steps=3),
        span(Zcdp(rho=1e-3), steps=3),
        Span(
            event=Event(
                mechanism=Gaussian(noise_multiplier=20.0),
                sampling=FixedSize(batch_size=10, dataset_size=1000),
            ),
            steps=3,
        ),
    ],
    ids=lambda one: type(one.event.mechanism).__name__,
)
def test_other_events_take_their_part_of_the_target(other: Span) -> None:
    special = NeighboringRelation.REPLACE_SPECIAL
    alone = solve([gaussian(steps=100)], NOISE, epsilon=2.0, relation=special).value
    beside = solve([gaussian(steps=100), other], NOISE, epsilon=2.0, relation=special).value
    assert beside > alone


def test_a_laplace_mechanism_is_calibrated() -> None:
    spans = [span(Laplace(noise_multiplier=1.0), 0.05, steps=20)]
    assert solve(spans, NOISE, epsilon=1.0, accountant="rdp").value > 0


@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_a_looser_accountant_needs_more_noise(accountant: str) -> None:
    spans = [gaussian(q=0.01, steps=1000)]
    best = solve(spans, NOISE, epsilon=1.0).value
    assert solve(spans, NOISE, epsilon=1.0, accountant=accountant).value >= best


def test_what_is_safe_everywhere_is_answered_by_the_end_of_the_range() -> None:
    assert solve([gaussian(1e5, 1e-6)], STEPS, epsilon=5.0).value == RANGES[STEPS].riskiest
    assert solve([gaussian(100.0, 0.1)], RATE, epsilon=5.0).value == RANGES[RATE].riskiest


@pytest.mark.parametrize(
    ("spans", "parameter", "named"),
    [
        ([gaussian(q=0.01), gaussian(0.3, 0.5, steps=100)], NOISE, "1e\\+06"),
        ([gaussian(0.01)], STEPS, "steps that is tried, 1,"),
        ([gaussian(1.0, 0.5), gaussian(0.1)], RATE, "1e-12"),
        ([gaussian(q=0.01), span(NoNoise())], NOISE, "noise_multiplier"),
    ],
)
def test_what_is_safe_nowhere_is_refused_with_the_end_that_fails(
    spans: list[Span], parameter: Parameter, named: str
) -> None:
    with pytest.raises(UnreachableError, match=named):
        solve(spans, parameter, epsilon=1.0)


def test_the_work_can_be_stopped() -> None:
    with pytest.raises(TooMuchWorkError), limit_work(10_000):
        solve([gaussian(q=0.02)], NOISE, epsilon=1.0)


def test_louder_keeps_ratios() -> None:
    spans = [gaussian(2.0), span(Laplace(noise_multiplier=6.0)), span(Zcdp(rho=0.1))]
    scaled = louder(spans, value=1.0)
    assert least_noise(scaled) == 1.0
    assert [one.event.mechanism for one in scaled[1:]] == [
        Laplace(noise_multiplier=3.0),
        Zcdp(rho=0.1),
    ]
    assert louder(spans, value=2.0) == spans


@pytest.mark.parametrize(
    ("parameter", "wrong"),
    [(NOISE, span(Zcdp(rho=0.1))), (RATE, gaussian()), (RATE, span(NoNoise()))],
)
def test_a_value_is_put_only_where_it_belongs(parameter: Parameter, wrong: Span) -> None:
    with pytest.raises(ValueError, match=parameter):
        fill_spans([wrong], places=[0], parameter=parameter, value=0.5)


@settings(max_examples=200, deadline=None)
@given(
    root=st.floats(math.log(0.02), math.log(1e5)),
    power=st.sampled_from([0.3, 1.0, 3.0]),
    guess=st.floats(0.01, 1e6),
    kink=st.floats(-1, 1),
    infinite=st.booleans(),
)
def test_the_search_ends_beside_any_crossing(
    root: float, power: float, guess: float, kink: float, infinite: bool
) -> None:
    tried = []

    def excess(value: float) -> float:
        tried.append(value)
        distance = root - math.log(value)
        if infinite and distance > 1:
            return math.inf
        slope = power * (3 if distance > kink else 1)
        return slope * math.copysign(abs(distance) ** power, distance) if distance else -1e-9

    found = frontier(excess, parameter=NOISE, guess=guess)
    assert found in tried
    # A root below 1e-100 or so cannot be told from zero by its cube.
    assert -1e-100 <= math.log(found) - root <= 2 * TOLERANCE
    assert len(tried) <= 130  # a quarter of them bisects, whatever the curve


@settings(max_examples=200, deadline=None)
@given(last=st.integers(1, 10**9 - 1), guess=st.floats(0.1, 1e10))
def test_whole_numbers_are_told_apart(last: int, guess: float) -> None:
    def excess(value: float) -> float:
        assert value == int(value)
        return 0.5 * math.log(value / (last + 0.5))

    assert frontier(excess, parameter=STEPS, guess=guess) == last


def test_a_value_that_is_no_number_is_not_safe() -> None:
    with pytest.raises(UnreachableError):
        frontier(lambda _: math.nan, parameter=NOISE, guess=1.0)


@pytest.mark.parametrize(
    ("sampling", "relation"),
    [
        (FULL, RELATION),
        (Poisson(sampling_probability=0.01), NeighboringRelation.REPLACE_ONE),
        (FixedSize(batch_size=256, dataset_size=60_000), RELATION),
        (FixedSize(batch_size=256, dataset_size=60_000), NeighboringRelation.REPLACE_ONE),
    ],
    ids=repr,
)
def test_the_search_takes_few_evaluations(
    sampling: Sampling, relation: NeighboringRelation, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def counted(*args: Any, **given: Any) -> Any:
        nonlocal asked
        asked += 1
        return best_bound_module.best_bound(*args, **given)

    monkeypatch.setattr(calibration, "best_bound", counted)
    event = Event(mechanism=Gaussian(noise_multiplier=1.0), sampling=sampling)
    solve([Span(event=event, steps=2000)], NOISE, epsilon=3.0, relation=relation)
    assert asked <= 7


def test_steps_that_spend_nothing_are_unlimited() -> None:
    nothing = [span(ApproximateDp(epsilon=0.0, delta=0.0))]
    assert solve(nothing, STEPS, epsilon=1.0).value == RANGES[STEPS].riskiest
