"""Trees of privacy events: each class is told exactly, or refused by name and place."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import dpledger_client as dp
import numpy as np
import pytest
from dpledger_client.importers.dp_event import view
from dpledger_client.importers.event_fields import STEPS_MAX
from dpledger_client.importers.event_tree import (
    CLASSES,
    DEPTH_MAX,
    NODES_MAX,
    UntranslatableEvent,
    translate,
)
from dpledger_client.importers.repr_parser import Call
from hypothesis import given
from hypothesis import strategies as st

FULL = dp.full()
NOTHING = Call("NoOpDpEvent", {})
NOISELESS = Call("NonPrivateDpEvent", {})


def told(tree: Any, **known: Any) -> list[dict[str, Any]]:
    return translate(tree, view=view, **known)


def call(name: str, **fields: Any) -> Call:
    return Call(f"{name}DpEvent", fields)


def zcdp(**fields: Any) -> Call:
    return Call("ZCDpEvent", fields)


def gaussian(noise: Any = 1.0) -> Call:
    return call("Gaussian", noise_multiplier=noise)


def laplace(noise: Any = 1.0) -> Call:
    return call("Laplace", noise_multiplier=noise)


def poisson(event: Any, chance: Any = 0.25) -> Call:
    return call("PoissonSampled", sampling_probability=chance, event=event)


def times(event: Any, count: Any) -> Call:
    return call("SelfComposed", event=event, count=count)


def composed(*events: Any) -> Call:
    return call("Composed", events=list(events))


def sized(kind: str, event: Any, *, size: Any = 5, source: Any = 100) -> Call:
    name = f"Sampled{kind}Replacement"
    return call(name, source_dataset_size=source, sample_size=size, event=event)


def tree_aggregation(counts: Any, noise: float = 3.0) -> Call:
    return call("SingleEpochTreeAggregation", noise_multiplier=noise, step_counts=counts)


def mixture(shifts: Any, chances: Any, deviation: float = 2.0) -> Call:
    return call(
        "MixtureOfGaussians",
        standard_deviation=deviation, sensitivities=shifts, sampling_probs=chances,
    )  # fmt: skip


def truncated(**changed: Any) -> Call:
    fields = {"dataset_size": 100, "sampling_probability": 0.1, "truncated_batch_size": 12}
    return call("TruncatedSubsampledGaussian", **{**fields, "noise_multiplier": 2.0, **changed})


def step(mechanism: Any, sampling: Any = FULL, steps: int = 1) -> dict[str, Any]:
    return dp.event(mechanism=mechanism, sampling=sampling, steps=steps)


def noise(value: float = 1.0) -> dict[str, Any]:
    return dp.gaussian(noise_multiplier=value)


def rate(value: float = 0.25) -> dict[str, Any]:
    return dp.poisson(sampling_probability=value)


@pytest.mark.parametrize(
    ("tree", "events"),
    [
        (NOTHING, []),
        (NOISELESS, [step(dp.no_noise())]),
        (gaussian(1.1), [step(noise(1.1))]),
        (gaussian(0), [step(dp.no_noise())]),
        (gaussian(np.float32(0.5)), [step(noise(0.5))]),
        (laplace(2), [step(dp.laplace(noise_multiplier=2.0))]),
        (laplace(0.0), [step(dp.no_noise())]),
        (
            call("RandomizedResponse", noise_parameter=0.5, num_buckets=4),
            [step(dp.randomized_response(probability_of_truth=0.625, categories=4))],
        ),
        (call("RandomizedResponse", noise_parameter=0.0, num_buckets=4), [step(dp.no_noise())]),
        (call("RandomizedResponse", noise_parameter=0.0, num_buckets=1), []),
        (zcdp(rho=0.5, xi=0.0), [step(dp.zcdp(rho=0.5))]),
        (zcdp(rho=0.5), [step(dp.zcdp(rho=0.5))]),
        (zcdp(rho=0.0, xi=0.5), [step(dp.approximate_dp(epsilon=0.5, delta=0.0))]),
        (zcdp(rho=0.0, xi=0.0), []),
        (poisson(gaussian()), [step(noise(), rate())]),
        (poisson(gaussian(), 1), [step(noise())]),
        (poisson(gaussian(), 0.0), []),
        (poisson(NOTHING), []),
        (poisson(NOISELESS), [step(dp.no_noise(), rate())]),
        (poisson(laplace()), [step(dp.laplace(noise_multiplier=1.0), rate())]),
        (poisson(composed(NOTHING, laplace())), [step(dp.laplace(noise_multiplier=1.0), rate())]),
        (poisson(composed(gaussian(), gaussian(0.0))), [step(dp.no_noise(), rate())]),
        (composed(), []),
        (composed(gaussian(), NOTHING, gaussian()), [step(noise(), steps=2)]),
        (
            composed(gaussian(), gaussian(2.0), gaussian()),
            [step(noise()), step(noise(2.0)), step(noise())],
        ),
        (times(gaussian(), 0), []),
        (times(times(poisson(gaussian()), 10), 10**9), [step(noise(), rate(), 10**10)]),
        (
            times(composed(gaussian(), gaussian(2.0)), 10**9),
            [step(noise(), steps=10**9), step(noise(2.0), steps=10**9)],
        ),
        (composed(times(gaussian(), 3), times(gaussian(), np.int64(4))), [step(noise(), steps=7)]),
    ],
)
def test_what_has_an_equal_is_told_exactly(tree: Call, events: list[Any]) -> None:
    assert told(tree) == events


@pytest.mark.parametrize(
    ("tree", "event"),
    [
        (sized("Without", gaussian()), step(noise(), dp.fixed_size(batch_size=5))),
        (sized("With", gaussian(), size=500), step(noise(), dp.with_replacement(batch_size=500))),
        (
            truncated(),
            step(noise(2.0), dp.truncated_poisson(sampling_probability=0.1, max_batch_size=12)),
        ),
    ],
)
def test_samples_of_a_known_size_are_told_where_the_size_is_the_dataset_s(
    tree: Call, event: dict[str, Any]
) -> None:
    assert told(tree, dataset_size=100) == [event]
    for size in (None, 99, 101):
        with pytest.raises(UntranslatableEvent, match="dataset_size"):
            told(tree, dataset_size=size)


def test_a_sample_of_nobody_costs_nothing() -> None:
    for tree in (
        sized("Without", gaussian(), size=0),
        truncated(truncated_batch_size=0),
        truncated(sampling_probability=0.0),
    ):
        assert told(tree, dataset_size=100) == []


@pytest.mark.parametrize(
    ("counts", "levels"), [(1, 1), (2, 2), (3, 2), (4, 3), (1024, 11), ([3, 7, 1], 3)]
)
def test_a_tree_of_sums_is_one_release_of_as_many_nodes_as_it_has_levels(
    counts: Any, levels: int
) -> None:
    [event] = told(tree_aggregation(counts), relation="replace_special")
    multiplier = event["mechanism"]["noise_multiplier"]
    assert (event["steps"], event["sampling"]) == (1, FULL)
    assert Fraction(multiplier) ** 2 * levels <= 9  # never more noise than there was
    assert multiplier == pytest.approx(3.0 / math.sqrt(levels), rel=1e-14)
    for relation in (None, "replace_one", "add_or_remove_one"):
        with pytest.raises(UntranslatableEvent, match="replace_special"):
            told(tree_aggregation(counts), relation=relation)


@pytest.mark.parametrize("relation", ["add_or_remove_one", "replace_special"])
def test_a_mixture_of_one_shift_and_none_is_a_sampled_gaussian(relation: str) -> None:
    known = {"relation": relation}
    assert told(mixture([0.0, 1.0], [0.75, 0.25]), **known) == [step(noise(2.0), rate())]
    assert told(mixture([1.0], [1.0]), **known) == [step(noise(2.0))]
    assert told(mixture(np.array([1.0, 0.0]), (0.25, 0.75)), **known) == [step(noise(2.0), rate())]
    assert told(mixture([0.0], [1.0]), **known) == []
    [event] = told(mixture([0.0, 0.5], [0.75, 0.25]), **known)
    assert 4.0 * (1 - 1e-14) < event["mechanism"]["noise_multiplier"] <= 4.0
    # Where the chances do not quite add up the greater is believed.
    [event] = told(mixture([0.0, 1.0], [0.75 - 1e-10, 0.25]), **known)
    assert event["sampling"]["sampling_probability"] == pytest.approx(0.25 + 1e-10, rel=1e-15)


def test_a_mixture_is_refused_where_it_is_not_defined() -> None:
    for relation in (None, "replace_one"):
        with pytest.raises(UntranslatableEvent, match="MixtureOfGaussiansDpEvent is defined under"):
            told(mixture([1.0], [1.0]), relation=relation)
    for shifts, chances in (
        ([1.0, 2.0], [0.5, 0.5]), ([0.0, 1.0], [0.5, 0.4]), ([1.0], [0.5, 0.5]),
        ([0.0, 1.0, 2.0], [0.5, 0.25, 0.25]), ([-1.0], [1.0]), ([], []),
    ):  # fmt: skip
        with pytest.raises(UntranslatableEvent, match=r"MixtureOfGaussiansDpEvent (has|with)"):
            told(mixture(shifts, chances), relation="replace_special")


@given(
    releases=st.lists(
        st.tuples(st.floats(0.01, 100.0), st.integers(1, 10**6)), min_size=1, max_size=20
    )
)
def test_gaussians_of_one_batch_are_one_gaussian_of_no_more_noise(
    releases: list[tuple[float, int]],
) -> None:
    tree = poisson(composed(*(times(gaussian(value), count) for value, count in releases)))
    [event] = told(tree)
    joint = Fraction(event["mechanism"]["noise_multiplier"])
    exact = sum(Fraction(count) / Fraction(value) ** 2 for value, count in releases)
    assert 1 - Fraction(1, 10**13) < joint**2 * exact <= 1
    assert (event["steps"], event["sampling"]) == (1, rate())


@given(lie=st.floats(0.0, 1.0), buckets=st.integers(2, 10**6))
def test_answers_are_never_told_as_less_truthful_than_they_are(lie: float, buckets: int) -> None:
    [event] = told(call("RandomizedResponse", noise_parameter=lie, num_buckets=buckets))
    truth = event["mechanism"].get("probability_of_truth", 1.0)
    assert Fraction(truth) >= 1 - Fraction(lie) + Fraction(lie) / buckets
    assert truth == pytest.approx(1 - lie + lie / buckets, rel=1e-15)


@given(outer=st.floats(1e-5, 1.0), inner=st.floats(1e-5, 1.0))
def test_a_sample_of_a_sample_is_never_told_as_smaller(outer: float, inner: float) -> None:
    [event] = told(poisson(poisson(gaussian(), inner), outer))
    joint = event["sampling"].get("sampling_probability", 1.0)
    assert Fraction(outer) * Fraction(inner) <= Fraction(joint)
    assert joint == pytest.approx(outer * inner, rel=1e-15)


@given(counts=st.lists(st.integers(0, 10**6), max_size=30))
def test_steps_are_neither_lost_nor_invented(counts: list[int]) -> None:
    trees = [
        times(poisson(gaussian(1.0 + number % 2)), count) for number, count in enumerate(counts)
    ]
    assert sum(event["steps"] for event in told(composed(*trees))) == sum(counts)


def repeated(event: Any, mean: Any, shape: Any) -> Call:
    return call("RepeatAndSelect", event=event, mean=mean, shape=shape)


@pytest.mark.parametrize(
    ("shape", "law"),
    [
        (1.0, dp.negative_binomial_trials(shape=1.0, mean=10.0)),
        (0.0, dp.negative_binomial_trials(shape=0.0, mean=10.0)),
        (math.inf, dp.poisson_trials(mean=10.0)),
    ],
)
def test_the_best_of_a_random_number_of_runs_is_a_selection(
    shape: float, law: dict[str, Any]
) -> None:
    base = {"mechanism": noise(), "sampling": rate(), "steps": 1000}
    chosen = {"kind": "selection", "repetitions": law, "base": base}
    tree = repeated(times(poisson(gaussian()), 1000), 10.0, shape)
    assert told(times(tree, 3)) == [dp.event(mechanism=chosen, sampling=FULL, steps=3)]
    assert told(repeated(NOTHING, 10.0, shape)) == []


SEVERAL = composed(laplace(), laplace())
REFUSED: list[tuple[Any, str]] = [
    (call("Unsupported"), "event: UnsupportedDpEvent says itself"),
    (call("DiscreteLaplace", noise_parameter=1.0, sensitivity=1), "DiscreteLaplaceDpEvent has no"),
    (repeated(gaussian(), 0.5, math.inf), "RepeatAndSelectDpEvent has a mean outside"),
    (repeated(gaussian(), 1.0, 1.0), "no law of the ledger"),
    (repeated(gaussian(), 2.0, -1.0), "no law of the ledger"),
    (repeated(gaussian(), 2.0, 1e6), "no law of the ledger"),
    (repeated(composed(gaussian(), laplace()), 2.0, 1.0), "only over steps of one kind"),
    (repeated(NOISELESS, 2.0, 1.0), "only over steps of one kind"),
    (repeated(repeated(gaussian(), 2.0, 1.0), 2.0, 1.0), "only over steps of one kind"),
    (repeated(sized("With", gaussian()), 2.0, 1.0), "only over steps of one kind"),
    (zcdp(rho=0.5, xi=0.1), "ZCDpEvent with both"),
    (zcdp(rho=1e-13), "rho below"),
    (zcdp(rho=-1.0), "rho outside"),
    (call("Newer", noise_multiplier=1.0), "NewerDpEvent is no known"),
    (composed(gaussian(), times(call("Unsupported"), 3)), r"event\.events\[1\]\.event: Unsupp"),
    (Call("GaussianDpEvent", {"noise_multiplier": 1.0, "clipping": 2}), "other fields"),
    (call("Gaussian"), "other fields than noise_multiplier"),
    (gaussian(-1.0), "outside"),
    (gaussian(math.nan), "outside"),
    (gaussian(math.inf), "outside"),
    (gaussian(1e-10), "outside"),
    (gaussian(10**400), "outside"),
    (gaussian(True), "no number"),
    (gaussian("1"), "no number"),
    (gaussian(None), "no number"),
    (poisson(gaussian(), 1.5), "outside"),
    (poisson(gaussian(), -0.1), "outside"),
    (poisson(gaussian(), math.nan), "outside"),
    (poisson(gaussian(), 1e-13), "has a sampling_probability below"),
    (truncated(sampling_probability=1e-13), "has a sampling_probability below"),
    (poisson(poisson(gaussian(), 1e-7), 1e-7), "joint sampling probability"),
    (poisson(SEVERAL), "only if all are Gaussian"),
    (poisson(times(zcdp(rho=0.5), 2)), "only if all are Gaussian"),
    (poisson(times(poisson(gaussian()), 2)), "sample one batch again"),
    (poisson(times(gaussian(1e-8), 10**6)), "joint noise multiplier"),
    (poisson(truncated()), "sampled again"),
    (sized("Without", poisson(gaussian())), "sampled again"),
    (sized("Without", SEVERAL), "only if all are Gaussian"),
    (sized("Without", gaussian(), size=101), "above its source_dataset_size"),
    (sized("With", gaussian(), size=2.5), "no whole number"),
    (sized("With", gaussian(), source=0), "outside"),
    (times(gaussian(), -1), "outside"),
    (times(gaussian(), 2.5), "no whole number"),
    (times(gaussian(), True), "outside"),
    (times(gaussian(), STEPS_MAX + 1), "outside"),
    (times(times(gaussian(), STEPS_MAX), 2), "more than 1e"),
    (times(5, 1), r"event\.event: a value of type int is no known"),
    (call("Composed", events=5), "no list"),
    (None, "type NoneType is no known"),
    (call("RandomizedResponse", noise_parameter=1.5, num_buckets=4), "outside"),
    (call("RandomizedResponse", noise_parameter=0.5, num_buckets=0), "outside"),
    (truncated(noise_multiplier=-1.0), "outside"),
]


@pytest.mark.parametrize(("tree", "reason"), REFUSED)
def test_what_has_no_equal_is_refused_by_name_and_place(tree: Any, reason: str) -> None:
    with pytest.raises(UntranslatableEvent, match=reason) as refused:
        told(tree, dataset_size=100)
    assert refused.value.path.startswith("event")
    assert "\n" not in str(refused.value)


def test_every_class_of_the_library_has_a_rule() -> None:
    assert {
        f"{name}DpEvent"
        for name in (
            "NoOp", "NonPrivate", "Unsupported", "RandomizedResponse", "Gaussian", "Laplace",
            "DiscreteLaplace", "SelfComposed", "Composed", "PoissonSampled",
            "SampledWithReplacement", "SampledWithoutReplacement", "SingleEpochTreeAggregation",
            "RepeatAndSelect", "MixtureOfGaussians", "TruncatedSubsampledGaussian",
        )
    } | {"ZCDpEvent"} == CLASSES  # fmt: skip


def test_empty_or_huge_lists_of_numbers_are_refused() -> None:
    for counts in ([], [1] * 10_001, [0], ["1"]):
        with pytest.raises(UntranslatableEvent, match="step_counts"):
            told(tree_aggregation(counts), relation="replace_special")


def test_a_relation_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        told(gaussian(), relation="add-or-remove-one")


def nested(make: Callable[[Any], Call], depth: int) -> Call:
    tree: Call = gaussian()
    for _ in range(depth):
        tree = make(tree)
    return tree


def test_a_deep_tree_is_refused_and_not_recursed_into() -> None:
    assert told(nested(lambda tree: times(tree, 1), DEPTH_MAX)) == [step(noise())]
    for depth in (DEPTH_MAX + 1, 100_000):
        with pytest.raises(UntranslatableEvent, match="deeper than"):
            told(nested(lambda tree: times(tree, 1), depth))


def test_a_tree_of_shared_branches_is_refused_before_it_takes_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert NODES_MAX <= 10**6
    monkeypatch.setattr("dpledger_client.importers.event_tree.NODES_MAX", 1000)
    with pytest.raises(UntranslatableEvent, match="more than 1000 events"):
        told(nested(lambda tree: composed(tree, tree), 60))
