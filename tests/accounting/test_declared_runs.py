"""Declared runs in the terms of the bounds: what is refused, and how steps are told apart."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.events import Event, Full, Gaussian, Span
from accounting.last_iterate import orders
from accounting.last_iterate.declared import STAGES_MAX, DataOrder, Declared, Stage
from accounting.last_iterate.orders import place_weights, segments_mu
from accounting.last_iterate.shift import shift_mu
from accounting.last_iterate.stretches import (
    Stretch,
    envelope,
    merge_stretches,
    split_stretches,
    stretches,
)
from tests.accounting.test_hidden import DECLARED

MANY = tuple(Stage(first_step=step, learning_rate=1.0) for step in range(STAGES_MAX + 1))
PART = Stretch(steps=5, lipschitz=0.9, sensitivity=0.2, noise=1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss_smoothness", 0.0), ("loss_smoothness", math.nan), ("max_grad_norm", -1.0),
        ("gradient_divisor", math.inf), ("projection_diameter", 0.0), ("loss_convexity", 1.5),
        ("loss_convexity", math.nan), ("loss_convexity", -1.5), ("learning_rate", ()),
        ("learning_rate", (Stage(first_step=1, learning_rate=0.1),)),
        ("learning_rate", (Stage(first_step=0, learning_rate=0.0),)),
        ("learning_rate", (Stage(first_step=0, learning_rate=0.1),) * 2),
        ("learning_rate", MANY),
    ],
)  # fmt: skip
def test_what_cannot_be_so_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        replace(DECLARED, **{field: value})


@pytest.mark.parametrize("diameter", [None, 4.1, 1e6])
def test_strong_convexity_without_clipping_needs_a_domain_of_short_gradients(
    diameter: float | None,
) -> None:
    # Curvature 0.5 over a set of diameter 4 makes a gradient as long as the norm bound, 1.
    changed: dict[str, Any] = {"loss_convexity": 0.5, "projection_diameter": diameter}
    with pytest.raises(ValueError, match="projection_diameter of at most"):
        replace(DECLARED, **changed)
    assert replace(DECLARED, **changed | {"projection_diameter": 4.0})
    assert replace(DECLARED, **changed | {"clipping_can_be_active": True})


def test_a_linear_model_is_convex() -> None:
    with pytest.raises(ValueError, match="loss_convexity"):
        replace(DECLARED, generalized_linear_model=True, loss_convexity=-0.1)


def spans(*counts: tuple[int, float]) -> list[Span]:
    return [
        Span(event=Event(mechanism=Gaussian(noise_multiplier=noise), sampling=Full()), steps=steps)
        for steps, noise in counts
    ]


def test_stretches_break_where_the_noise_or_the_learning_rate_changes() -> None:
    rates = (
        Stage(first_step=0, learning_rate=0.2),
        Stage(first_step=3, learning_rate=0.1),
        Stage(first_step=7, learning_rate=0.1),
    )
    declared = replace(DECLARED, learning_rate=rates)
    found = stretches(spans((5, 2.0), (5, 4.0)), declared, reach=2.0, batch_sizes=(100, 100))
    assert [part.steps for part in found] == [3, 2, 5]
    # learning_rate * max_grad_norm / gradient_divisor, times the reach and the noise.
    assert [part.sensitivity for part in found] == pytest.approx([0.004, 0.002, 0.002])
    assert [part.noise for part in found] == pytest.approx([0.004, 0.002, 0.004])
    assert all(part.sensitivity >= 2 * 0.1 / 100 for part in found)
    assert found[1].noise <= 0.1 * 2.0 / 100


@pytest.mark.parametrize("rate", [1e-3, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("convexity", [-1.0, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("clips", [False, True])
def test_the_smallest_and_the_largest_batch_bound_all_between(
    rate: float, convexity: float, clips: bool
) -> None:
    declared = replace(
        DECLARED,
        learning_rate=(Stage(first_step=0, learning_rate=rate),),
        loss_convexity=convexity,
        clipping_can_be_active=clips,
        projection_diameter=1.0,
    )

    def constant(least: int, most: int) -> float:
        (part,) = stretches(spans((1, 1.0)), declared, reach=1.0, batch_sizes=(least, most))
        return part.lipschitz

    bound = constant(0, 250)
    assert bound >= 1.0
    assert all(constant(size, size) <= bound for size in range(0, 251, 10))
    if not clips:  # the definition, at the largest batch
        step = rate * 250 / 100
        exact = max(1.0, abs(1 - step * convexity), abs(1 - step))
        assert exact <= bound <= exact * (1 + 1e-12)


def test_equal_neighbours_are_one_stretch() -> None:
    other = replace(PART, noise=2.0)
    assert merge_stretches([PART, PART, other, PART]) == [replace(PART, steps=10), other, PART]


def test_an_envelope_is_the_worst_of_each() -> None:
    other = Stretch(steps=2, lipschitz=0.5, sensitivity=0.3, noise=0.5)
    worst = Stretch(steps=7, lipschitz=0.9, sensitivity=0.3, noise=0.5)
    assert envelope([PART, other]) == worst


def test_segments_end_where_they_are_told_to() -> None:
    parts = [PART, replace(PART, noise=2.0)]
    found = split_stretches(parts, [2, 5, 6, 10])
    assert [[part.steps for part in segment] for segment in found] == [[2], [3], [1], [4]]
    assert [segment[0].noise for segment in found] == [1.0, 1.0, 2.0, 2.0]
    assert split_stretches(parts, [10]) == [parts]


def test_places_are_as_likely_as_their_batches_are_large() -> None:
    weights = place_weights(batch_size=4, dataset_size=10, steps=3)
    assert weights.tolist() == [0.4, 0.4, 0.2, 0.0]
    weights = place_weights(batch_size=4, dataset_size=10, steps=1)
    assert weights.tolist() == [0.4, 0.6]


@given(
    st.lists(
        st.builds(
            Stretch,
            steps=st.integers(1, 6),
            lipschitz=st.sampled_from([0.5, 0.9, 1.0, 1.1]),
            sensitivity=st.sampled_from([0.1, 0.5]),
            noise=st.sampled_from([0.5, 1.0]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 5),
    st.sets(st.integers(1, 8), max_size=3),
)
def test_segments_are_bounded_for_every_place(
    parts: list[Stretch], places: int, shown: set[int]
) -> None:
    steps = sum(part.steps for part in parts)
    ends = sorted({end for end in shown if end < steps} | {steps})
    mu = segments_mu(parts, ends=ends, places=places, diameter=None)
    in_domain = segments_mu(parts, ends=ends, places=places, diameter=1.0)
    assert in_domain <= mu * (1 + 1e-12)
    each = [part for part in parts for _ in range(part.steps)]
    for place in range(min(places, steps)):
        square, first = 0.0, 0
        for end in ends:
            told = each[first:end]
            shifts = [
                part.sensitivity if (first + i) % places == place else 0.0
                for i, part in enumerate(told)
            ]
            square += (
                shift_mu(
                    lipschitz=np.array([part.lipschitz for part in told]),
                    sensitivities=np.array(shifts),
                    noises=np.array([part.noise for part in told]),
                )
                ** 2
            )
            first = end
        assert math.sqrt(square) <= mu * (1 + 1e-12)


def test_orders_have_names() -> None:
    assert isinstance(DECLARED, Declared)
    assert [order.value for order in DataOrder] == [
        "full", "cyclic", "shuffle_once", "shuffle_each_pass", "fixed_size", "poisson",
    ]  # fmt: skip


def test_many_segments_are_told_roughly_and_stay_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [replace(PART, lipschitz=1.0), replace(PART, noise=2.0, lipschitz=1.0)]
    told = segments_mu(parts, ends=[3, 10], places=2, diameter=0.05)
    monkeypatch.setattr(orders, "ARRAY_STEPS_MAX", 1)
    worst = segments_mu(parts, ends=[3, 10], places=2, diameter=0.05)
    monkeypatch.setattr(orders, "BOUNDED_SEGMENTS_MAX", 1)
    assert told < worst < segments_mu(parts, ends=[3, 10], places=2, diameter=0.05)
