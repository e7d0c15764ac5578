"""Runs that hide iterates: which bound serves which order, and what it rests on."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from accounting.accountants.best_bound import guarantee
from accounting.accountants.queries import Query
from accounting.bounds.event_bounds import NoBoundError
from accounting.event_counts import count_events
from accounting.events import (
    BallsAndBins,
    Cyclic,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    NeighboringRelation,
    Poisson,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.guarantees import ACCEPTABLE, Assumption, Bound, Status
from accounting.hidden_state import HIDDEN, hidden_bound
from accounting.hidden_state_runs import SHOWN_MAX, HiddenRun, require_bound
from accounting.last_iterate.declared import DataOrder, Declared, Stage
from accounting.last_iterate.random_order import averaged_gaussian_epsilon

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
DELTA = 1e-5
LAPLACE = Laplace(noise_multiplier=1.0)
SIZE = 1000
CYCLIC = Cyclic(batch_size=100, steps_per_pass=10)
ONCE = Shuffle(
    batch_size=100, steps_per_pass=10, reshuffle=Reshuffle.ONCE, dataset_size=SIZE
)  # fmt: skip
FRESH = replace(ONCE, reshuffle=Reshuffle.EACH_PASS)
FIXED = FixedSize(batch_size=100, dataset_size=SIZE)
POISSON = Poisson(sampling_probability=0.1)
ORDERS: dict[DataOrder, Sampling] = {
    DataOrder.FULL: Full(),
    DataOrder.CYCLIC: CYCLIC,
    DataOrder.SHUFFLE_ONCE: ONCE,
    DataOrder.SHUFFLE_EACH_PASS: FRESH,
    DataOrder.FIXED_SIZE: FIXED,
    DataOrder.POISSON: POISSON,
}
DECLARED = Declared(
    data_order=DataOrder.CYCLIC,
    loss_smoothness=1.0,
    loss_convexity=0.0,
    learning_rate=(Stage(first_step=0, learning_rate=0.1),),
    max_grad_norm=1.0,
    gradient_divisor=100.0,
    projection_diameter=None,
    clipping_can_be_active=False,
    generalized_linear_model=False,
)


def span(sampling: Sampling, steps: int, noise: float = 2.0) -> Span:
    mechanism = Gaussian(noise_multiplier=noise)
    return Span(event=Event(mechanism=mechanism, sampling=sampling), steps=steps)


def run_of(order: DataOrder, steps: int = 30, **given: Any) -> HiddenRun:
    fields = {name: given.pop(name) for name in list(given) if name in Declared.__slots__}
    divisor = 1000.0 if order in (DataOrder.FULL, DataOrder.POISSON) else 100.0
    changed: dict[str, Any] = {"data_order": order, "gradient_divisor": divisor} | fields
    declared = replace(DECLARED, **changed)
    whole: dict[str, Any] = {"spans": (span(ORDERS[order], steps),), "dataset_size": SIZE}
    return HiddenRun(declared=declared, **whole | given)


def asked(relation: NeighboringRelation = REPLACE_ONE, **given: Any) -> Query:
    fields: dict[str, Any] = {"accept": ACCEPTABLE, "delta": DELTA, "epsilon": None} | given
    return Query(relation=relation, **fields)


def bound_of(order: DataOrder, steps: int = 30, **given: Any) -> Bound:
    relation = SPECIAL if order is DataOrder.POISSON else REPLACE_ONE
    return hidden_bound(run_of(order, steps, **given), asked(relation))


def shown_epsilon(run: HiddenRun, relation: NeighboringRelation) -> float:
    found = guarantee(
        count_events([run.spans]), relation=relation, delta=DELTA, accept=ACCEPTABLE
    ).epsilon
    assert found is not None
    return found


def test_a_told_order_is_the_shift_bound_of_the_last_record() -> None:
    # Convex, no projection: two earlier uses are hidden by ten steps each, the last by none.
    mu = math.sqrt(2 / 10 + 1)
    bound = bound_of(DataOrder.CYCLIC)
    assert bound.epsilon == pytest.approx(gaussian_epsilon(DELTA, mu=mu), rel=1e-9)
    assert bound.epsilon >= gaussian_epsilon(DELTA, mu=mu * (1 - 1e-12))
    assert (bound.accountant, bound.bound) == (HIDDEN, "shift-mu")
    assert bound.status is Status.CONDITIONAL
    assert {Assumption.DATA_INDEPENDENT_ORDER, Assumption.HIDDEN_ITERATES,
            Assumption.CLIPPING_INACTIVE} <= set(bound.assumptions)  # fmt: skip
    assert Assumption.PROJECTION_EVERY_STEP not in bound.assumptions


def test_a_record_replaced_by_a_null_one_moves_half_as_far() -> None:
    bound = hidden_bound(run_of(DataOrder.CYCLIC), asked(SPECIAL))
    mu = 0.5 * math.sqrt(2 / 10 + 1)
    assert bound.epsilon == pytest.approx(gaussian_epsilon(DELTA, mu=mu), rel=1e-9)


def test_delta_at_an_epsilon_is_the_same_curve() -> None:
    mu = math.sqrt(2 / 10 + 1)
    question = asked(delta=None, epsilon=3.0)
    for order in (DataOrder.CYCLIC, DataOrder.SHUFFLE_ONCE, DataOrder.SHUFFLE_EACH_PASS):
        bound = hidden_bound(run_of(order), question)
        assert bound.epsilon == 3.0
        back = hidden_bound(run_of(order), asked(delta=bound.delta))
        assert back.epsilon == pytest.approx(3.0, rel=1e-3)
    bound = hidden_bound(run_of(DataOrder.CYCLIC), question)
    assert bound.delta == pytest.approx(gaussian_delta(3.0, mu=mu), rel=1e-6)
    bound = hidden_bound(run_of(DataOrder.FIXED_SIZE), question)
    back = hidden_bound(run_of(DataOrder.FIXED_SIZE), asked(delta=bound.delta))
    assert back.epsilon <= 3.0 * (1 + 1e-2)


@pytest.mark.parametrize("order", list(DataOrder))
def test_a_contractive_run_in_a_domain_stops_spending(order: DataOrder) -> None:
    relation = SPECIAL if order is DataOrder.POISSON else REPLACE_ONE
    spent = []
    for steps in (1000, 4000):
        run = run_of(
            order,
            steps,
            loss_convexity=0.5,
            projection_diameter=0.002 if order is DataOrder.POISSON else 0.02,
            learning_rate=(Stage(first_step=0, learning_rate=0.5),),
        )
        bound = hidden_bound(run, asked(relation))
        assert bound.epsilon < shown_epsilon(run, relation)
        assert Assumption.PROJECTION_EVERY_STEP in bound.assumptions
        if order in (DataOrder.FULL, DataOrder.CYCLIC):
            assert bound.bound == "shift-mu-bounded-domain"
        spent.append(bound.epsilon)
    if order is not DataOrder.SHUFFLE_EACH_PASS:  # whose passes compose
        assert spent[1] <= spent[0] * 1.01


def test_a_secret_order_costs_less_than_one_that_is_told() -> None:
    once, told = bound_of(DataOrder.SHUFFLE_ONCE), bound_of(DataOrder.CYCLIC)
    assert once.epsilon < told.epsilon
    assert once.bound == "random-order-average"
    assert Assumption.SECRET_ORDER in once.assumptions
    # Place j of ten: two uses hidden by ten steps, the last by 10 - j + 1.
    places = np.sqrt(2 / 10 + 1 / np.arange(10, 0, -1))
    assert once.epsilon == pytest.approx(averaged_gaussian_epsilon(DELTA, mus=places), rel=1e-9)


def test_an_unfinished_pass_of_one_secret_order_counts_as_told() -> None:
    bound = bound_of(DataOrder.SHUFFLE_ONCE, 25)
    assert bound.bound == "shift-mu"
    assert bound.epsilon == bound_of(DataOrder.CYCLIC, 25).epsilon
    # The record of the last step's batch had 5, 15, 25 as its steps.
    mu = math.sqrt(2 / 10 + 1)
    assert bound.epsilon == pytest.approx(gaussian_epsilon(DELTA, mu=mu), rel=1e-9)


def test_fresh_orders_may_be_shown_between_passes() -> None:
    hidden = bound_of(DataOrder.SHUFFLE_EACH_PASS)
    between = bound_of(DataOrder.SHUFFLE_EACH_PASS, every_pass=True, releases=(9, 19))
    assert hidden.epsilon == between.epsilon
    assert hidden.bound == "random-order-pass"
    within = bound_of(DataOrder.SHUFFLE_EACH_PASS, releases=(4,))
    all_within = bound_of(DataOrder.SHUFFLE_EACH_PASS, releases=(4, 14, 24))
    assert hidden.epsilon < within.epsilon < all_within.epsilon
    # A pass that is told is one Gaussian release.
    assert all_within.epsilon == pytest.approx(gaussian_epsilon(DELTA, mu=math.sqrt(3)), rel=1e-6)


def test_the_last_pass_of_a_fresh_order_may_stop_early() -> None:
    two, some, three = (bound_of(DataOrder.SHUFFLE_EACH_PASS, steps) for steps in (20, 24, 30))
    assert two.epsilon < some.epsilon < three.epsilon * 1.01


@pytest.mark.parametrize("order", [DataOrder.FIXED_SIZE, DataOrder.POISSON])
def test_batches_drawn_afresh_use_the_conservative_constant(order: DataOrder) -> None:
    bound = bound_of(order, 2000, projection_diameter=0.001)
    assert bound.bound == "sampled-last-iterate"
    assert bound.status is Status.CONDITIONAL
    relation = SPECIAL if order is DataOrder.POISSON else REPLACE_ONE
    run = run_of(order, 2000)
    with pytest.raises(NoBoundError, match="derived: not accepted"):
        hidden_bound(run, asked(relation, accept=frozenset({Status.CONDITIONAL})))


def test_the_sharp_constant_is_taken_where_it_is_asked_for_and_named() -> None:
    usual = bound_of(DataOrder.FIXED_SIZE, 4000, projection_diameter=0.001)
    sharp = bound_of(DataOrder.FIXED_SIZE, 4000, projection_diameter=0.001, sharp=True)
    assert sharp.epsilon < usual.epsilon
    assert sharp.bound == "sampled-last-iterate-sharp"


def test_every_shown_iterate_restarts_the_hiding() -> None:
    hidden = bound_of(DataOrder.CYCLIC)
    at_ends = bound_of(DataOrder.CYCLIC, every_pass=True)
    assert hidden.epsilon < at_ends.epsilon
    assert at_ends.epsilon == pytest.approx(gaussian_epsilon(DELTA, mu=math.sqrt(3)), rel=1e-9)
    # Shown after step 4: the worst place of each segment of 5 and 25 steps.
    segments = 1 + (2 / 10 + 1)
    in_pass = bound_of(DataOrder.CYCLIC, releases=(4,))
    assert in_pass.epsilon == pytest.approx(
        gaussian_epsilon(DELTA, mu=math.sqrt(segments)), rel=1e-9
    )
    assert bound_of(DataOrder.CYCLIC, releases=(29,)).epsilon == hidden.epsilon


def test_active_clipping_costs_unless_losses_are_of_a_linear_model() -> None:
    inactive = bound_of(DataOrder.CYCLIC, loss_convexity=0.5, projection_diameter=4.0)
    active = bound_of(DataOrder.CYCLIC, loss_convexity=0.5, clipping_can_be_active=True)
    linear = bound_of(DataOrder.CYCLIC, clipping_can_be_active=True, generalized_linear_model=True)
    assert inactive.epsilon < linear.epsilon < active.epsilon
    assert "clipped-step-lipschitz" in active.theorems
    assert Assumption.CLIPPING_INACTIVE not in active.assumptions
    assert Assumption.GENERALIZED_LINEAR_MODEL in linear.assumptions


def test_a_smaller_last_batch_contracts_less() -> None:
    short = HiddenRun(
        spans=(span(Cyclic(batch_size=100, steps_per_pass=10), 30),),
        declared=replace(DECLARED, loss_convexity=0.5, projection_diameter=4.0),
        dataset_size=910,
    )
    whole = replace(short, dataset_size=1000)
    unknown = replace(short, dataset_size=None)
    found = [hidden_bound(run, asked()).epsilon for run in (whole, short, unknown)]
    assert found[0] < found[1] < found[2]


def test_a_schedule_is_told_step_by_step_where_it_is_short_and_by_its_worst_where_not() -> None:
    stages = (Stage(first_step=0, learning_rate=0.2), Stage(first_step=15, learning_rate=0.1))
    short = bound_of(
        DataOrder.CYCLIC, learning_rate=stages, loss_convexity=0.5, projection_diameter=4.0
    )
    constant = bound_of(
        DataOrder.CYCLIC, learning_rate=(Stage(first_step=0, learning_rate=0.1),),
        loss_convexity=0.5, projection_diameter=4.0,
    )  # fmt: skip
    assert short.epsilon < constant.epsilon * 1.05
    in_domain = bound_of(
        DataOrder.CYCLIC, learning_rate=stages, loss_convexity=0.5, projection_diameter=1.0
    )
    assert in_domain.epsilon <= short.epsilon
    long = HiddenRun(
        spans=(span(Cyclic(batch_size=1, steps_per_pass=100_000), 300_000),),
        declared=replace(DECLARED, learning_rate=stages, gradient_divisor=1.0),
        dataset_size=100_000,
    )
    assert hidden_bound(long, asked()).epsilon > 0


def test_linear_losses_attain_the_lower_end() -> None:
    full = bound_of(DataOrder.FULL)
    assert full.epsilon_lower is not None
    # Convex and every record in every step: hiding gains nothing, and the bracket closes.
    assert full.epsilon_lower == pytest.approx(full.epsilon, rel=1e-9)
    assert full.epsilon_lower <= full.epsilon
    cyclic = bound_of(DataOrder.CYCLIC)
    linear = gaussian_epsilon(DELTA, mu=3 / math.sqrt(30))
    assert cyclic.epsilon_lower is not None
    assert cyclic.epsilon_lower == pytest.approx(linear, rel=1e-6)
    assert cyclic.epsilon_lower <= linear
    for unknown in (
        bound_of(DataOrder.CYCLIC, loss_convexity=0.1, clipping_can_be_active=True),
        bound_of(DataOrder.CYCLIC, projection_diameter=1.0),
        bound_of(DataOrder.CYCLIC, releases=(4,)),
        bound_of(DataOrder.SHUFFLE_ONCE, 25),
        bound_of(DataOrder.FIXED_SIZE),
    ):
        assert unknown.epsilon_lower is None


@pytest.mark.parametrize(
    ("run", "relation", "reason"),
    [
        (run_of(DataOrder.CYCLIC), NeighboringRelation.ADD_OR_REMOVE_ONE, "add_or_remove_one"),
        (run_of(DataOrder.POISSON), REPLACE_ONE, "replace_special only"),
        (run_of(DataOrder.FIXED_SIZE), SPECIAL, "replace_one only"),
        (replace(run_of(DataOrder.FULL), dataset_size=None), REPLACE_ONE, "dataset's size"),
        (replace(run_of(DataOrder.CYCLIC), spans=(span(FRESH, 3),)), REPLACE_ONE, "data_order"),
        (
            replace(run_of(DataOrder.CYCLIC), spans=(span(BallsAndBins(steps_per_pass=3), 3),)),
            REPLACE_ONE,
            "data_order",
        ),
        (
            replace(run_of(DataOrder.CYCLIC), spans=(span(CYCLIC, 3), span(FRESH, 3))),
            REPLACE_ONE,
            "one sampling",
        ),
        (
            replace(
                run_of(DataOrder.FULL),
                spans=(
                    Span(event=Event(mechanism=LAPLACE, sampling=Full()), steps=1),
                ),
            ),
            REPLACE_ONE,
            "Gaussian noise",
        ),
        (replace(run_of(DataOrder.FULL), every_pass=True), REPLACE_ONE, "have no passes"),
        (replace(run_of(DataOrder.FIXED_SIZE), releases=(3,)), REPLACE_ONE, "mid-run"),
        (
            replace(run_of(DataOrder.FULL), releases=tuple(range(SHOWN_MAX + 1))),
            REPLACE_ONE,
            "iterates were shown",
        ),
        (
            replace(
                run_of(DataOrder.SHUFFLE_ONCE),
                dataset_size=10**8,
                spans=(span(Shuffle(batch_size=1, steps_per_pass=10**8,
                                    reshuffle=Reshuffle.ONCE), 1),),
            ),
            REPLACE_ONE,
            "at most 1000000 steps",
        ),
    ],
)  # fmt: skip
def test_what_no_bound_covers_is_refused_with_the_reason(
    run: HiddenRun, relation: NeighboringRelation, reason: str
) -> None:
    with pytest.raises(NoBoundError, match=reason):
        require_bound(run, relation)
    with pytest.raises(NoBoundError, match=reason):
        hidden_bound(run, asked(relation))


def test_a_last_iterate_that_is_said_to_be_shown_changes_nothing_afresh() -> None:
    run = run_of(DataOrder.FIXED_SIZE)
    shown = replace(run, releases=(29,))
    assert hidden_bound(shown, asked()) == hidden_bound(run, asked())


@pytest.mark.parametrize("failure", [ValueError("sigma is small"), OverflowError("sigma is small")])
def test_what_lies_beyond_the_range_of_a_bound_has_none(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluated(*_: object) -> None:
        raise failure

    monkeypatch.setattr("accounting.hidden_state._evaluate", evaluated)
    with pytest.raises(NoBoundError, match="sigma is small"):
        hidden_bound(run_of(DataOrder.CYCLIC), asked())


def test_a_bound_that_says_nothing_is_none() -> None:
    for sampling in (FIXED, FRESH):
        order = DataOrder.FIXED_SIZE if sampling == FIXED else DataOrder.SHUFFLE_EACH_PASS
        run = replace(run_of(order), spans=(span(sampling, 30, noise=1e-30),))
        with pytest.raises(NoBoundError, match="says nothing"):
            hidden_bound(run, asked())
    run = replace(run_of(DataOrder.CYCLIC), spans=(span(CYCLIC, 30, noise=1e-100),))
    assert math.isfinite(hidden_bound(run, asked()).epsilon)
    with pytest.raises(NoBoundError, match="says nothing"):  # delta is one
        hidden_bound(run, asked(delta=None, epsilon=0.0))
