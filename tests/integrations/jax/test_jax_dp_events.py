"""Events of the real dp_accounting: each class is known, epsilon agrees with its accountants."""

import inspect
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import Any

import attr
import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event, pld
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from dpledger_client import Client, event, gaussian, poisson
from dpledger_client.importers import dp_event as files
from dpledger_client.importers.event_tree import CLASSES
from dpledger_client.integrations.dp_event_checks import UntranslatableEvent, events_of
from jax_privacy.experimental import accounting

DELTA = 1e-6
RECORDS = 1000
# Of the ledger's bracket, and of the library's grid of 1e-4.
WIDTH = 1e-4
ALL: Any = ("published", "derived", "declared")
ZEROING = ("add_or_remove_one", "replace_special")

Gaussian, Laplace = dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent
Poisson = dp_event.PoissonSampledDpEvent
Times, Composed = dp_event.SelfComposedDpEvent, dp_event.ComposedDpEvent
Truncated = dp_event.TruncatedSubsampledGaussianDpEvent
DPSGD = Times(Poisson(0.01, Gaussian(1.1)), 1000)
LATER = Times(Poisson(0.02, Gaussian(2.0)), 300)
MIXED = Composed([Times(Poisson(0.01, Gaussian(1.1)), 500), LATER, Gaussian(8.0)])
SHIFTED = Times(dp_event.MixtureOfGaussiansDpEvent(1.5, [0.0, 1.0], [0.9, 0.1]), 5)
ANSWER = dp_event.RandomizedResponseDpEvent(0.5, 3)


def guarantee(client: Client, tree: dp_event.DpEvent, relation: Any) -> dict[str, Any]:
    return client.plan(
        neighboring_relation=relation,
        dataset_size=RECORDS,
        events=events_of(tree, dataset_size=RECORDS, relation=relation),
        delta=DELTA,
        accept=ALL,
    )


def reported(tree: dp_event.DpEvent, relation: str, make: Any = pld.PLDAccountant) -> float:
    accountant = make(neighboring_relation=NeighboringRelation[relation.upper()])
    return float(accountant.compose(tree).get_epsilon(DELTA))


def optimistic(tree: Any) -> Any:
    """The library's distribution of losses with every rounding downward."""
    down: dict[str, Any] = {"pessimistic_estimate": False, "use_connect_dots": False}
    match tree:
        case Composed(events=events):
            return reduce(lambda one, other: one.compose(other), map(optimistic, events))
        case Times(event=event, count=count):
            return optimistic(event).self_compose(count)
        case Poisson(sampling_probability=chance, event=Laplace(noise_multiplier=noise)):
            return privacy_loss_distribution.from_laplace_mechanism(
                noise, sampling_prob=chance, **down
            )
        case Poisson(sampling_probability=chance, event=Gaussian(noise_multiplier=noise)):
            return privacy_loss_distribution.from_gaussian_mechanism(
                noise, sampling_prob=chance, **down
            )
        case _:
            return optimistic(Poisson(1.0, tree))


def trees() -> list[dp_event.DpEvent]:
    """One of each class that has an equal, and some of several."""
    return [
        DPSGD,
        MIXED,
        SHIFTED,
        ANSWER,
        Times(Laplace(20.0), 10),
        Composed([dp_event.NoOpDpEvent(), Gaussian(np.float64(2.0))]),
        dp_event.NonPrivateDpEvent(),
        dp_event.ZCDpEvent(rho=0.01),
        dp_event.ZCDpEvent(rho=0.0, xi=0.1),
        Truncated(RECORDS, 0.1, 130, 4.0),
        dp_event.SampledWithoutReplacementDpEvent(RECORDS, 20, Gaussian(2.0)),
        dp_event.SampledWithReplacementDpEvent(RECORDS, 20, Gaussian(2.0)),
        dp_event.SingleEpochTreeAggregationDpEvent(8.0, [7, 15]),
        Poisson(0.01, Composed([Gaussian(2.0), Times(Gaussian(4.0), 3)])),
    ]


@pytest.mark.parametrize("relation", ZEROING)
@pytest.mark.parametrize(
    "tree",
    [
        Gaussian(1.0),
        DPSGD,
        MIXED,
        Times(Laplace(20.0), 10),
        Times(Poisson(0.01, Laplace(2.0)), 100),
        Poisson(0.3, Gaussian(0.7)),
    ],
)
def test_epsilon_is_between_the_library_s_optimistic_and_its_reported_value(
    client: Client, tree: dp_event.DpEvent, relation: str
) -> None:
    found = guarantee(client, tree, relation)
    low = optimistic(tree).get_epsilon_for_delta(DELTA)
    assert found["epsilon_lower"] <= found["epsilon"]
    assert low <= found["epsilon"] <= reported(tree, relation) + WIDTH
    assert found["epsilon_lower"] <= reported(tree, relation)


@pytest.mark.parametrize("relation", ZEROING)
def test_epsilon_of_truncated_samples_is_at_most_the_reported_one(
    client: Client, relation: str
) -> None:
    tree = Times(Truncated(RECORDS, 0.1, 130, 4.0), 100)
    found = guarantee(client, tree, relation)
    assert found["epsilon_lower"] <= found["epsilon"] <= reported(tree, relation) + WIDTH


def test_a_mixture_costs_what_the_library_says_of_it(client: Client) -> None:
    coarse = partial(pld.PLDAccountant, value_discretization_interval=0.01)  # else it takes 20 s
    found = guarantee(client, SHIFTED, "add_or_remove_one")
    theirs = reported(SHIFTED, "add_or_remove_one", coarse)
    assert found["epsilon"] <= theirs <= found["epsilon"] + 0.01


def test_a_batch_of_several_gaussians_costs_what_the_library_s_renyi_accountant_says(
    client: Client,
) -> None:
    tree = Times(Poisson(0.01, Composed([Gaussian(2.0), Times(Gaussian(4.0), 3)])), 100)
    found = guarantee(client, tree, "add_or_remove_one")
    assert found["epsilon"] <= reported(tree, "add_or_remove_one", RdpAccountant)
    alone = Times(Poisson(0.01, Gaussian((1 / 4 + 3 / 16) ** -0.5)), 100)
    assert found["epsilon"] == pytest.approx(reported(alone, "add_or_remove_one"), abs=WIDTH)


def test_a_tree_of_sums_costs_at_most_what_the_renyi_accountant_says(client: Client) -> None:
    tree = dp_event.SingleEpochTreeAggregationDpEvent(8.0, [7, 15])
    found = guarantee(client, tree, "replace_special")
    assert found["epsilon"] <= reported(tree, "replace_special", RdpAccountant)


def test_replacing_a_record_moves_a_sum_by_twice_the_norm_bound(client: Client) -> None:
    found = guarantee(client, Gaussian(1.0), "replace_one")["epsilon"]
    assert found == pytest.approx(reported(Gaussian(1.0), "replace_one"), abs=WIDTH)
    # The library's Renyi accountant leaves the doubling out.
    assert reported(Gaussian(1.0), "replace_one", RdpAccountant) < found / 2
    # Of sampled Gaussians both compose the pair that is attained; the library rounds it up more.
    ours, theirs = (
        guarantee(client, DPSGD, "replace_one")["epsilon"],
        reported(DPSGD, "replace_one"),
    )
    assert theirs - 1e-3 < ours <= theirs


def test_repeated_answers_add_up(client: Client) -> None:
    for relation in ("replace_one", "replace_special"):
        once = guarantee(client, ANSWER, relation)["epsilon"]
        assert once == pytest.approx(reported(ANSWER, relation), abs=WIDTH)
        tenfold = guarantee(client, Times(ANSWER, 10), relation)["epsilon"]
        assert 9.9 * once < tenfold <= reported(Times(ANSWER, 10), relation, RdpAccountant)
        # The library's other accountant counts repeated answers once.
        assert reported(Times(ANSWER, 10), relation) == reported(ANSWER, relation)


def test_every_event_class_of_the_library_is_known() -> None:
    found = {
        name
        for name, kind in inspect.getmembers(dp_event, inspect.isclass)
        if issubclass(kind, dp_event.DpEvent)
    }
    assert found == CLASSES | {"DpEvent"}


@pytest.mark.parametrize("tree", trees(), ids=str)
def test_a_tree_is_the_same_as_an_object_printed_and_as_a_named_tuple(
    tmp_path: Path, tree: dp_event.DpEvent
) -> None:
    known: dict[str, Any] = {"dataset_size": RECORDS, "relation": "replace_special"}
    events = events_of(tree, **known)
    assert events
    spellings: list[Callable[[], object]] = [lambda: tree, tree.to_named_tuple]
    for spelling in spellings:
        (tmp_path / "event.txt").write_text(repr(spelling()))
        assert files.read(tmp_path / "event.txt", **known) == events


@pytest.mark.parametrize(
    ("tree", "reason"),
    [
        (dp_event.UnsupportedDpEvent(), "event: UnsupportedDpEvent"),
        (Composed([Gaussian(1.0), dp_event.DiscreteLaplaceDpEvent(1.0, 1)]), r"event\.events\[1\]"),
        (Times(dp_event.RepeatAndSelectDpEvent(Gaussian(1.0), 1.0, 1.0), 5), r"event\.event: Rep"),
        (dp_event.ZCDpEvent(rho=0.1, xi=0.1), "both rho and xi"),
        (Poisson(0.1, Composed([Laplace(1.0), Laplace(1.0)])), "only if all are Gaussian"),
        (dp_event.DpEvent(), "type DpEvent is no known"),
        (0.5, "type float is no known"),
    ],
)
def test_what_has_no_equal_is_refused_by_name_and_place(tree: Any, reason: str) -> None:
    with pytest.raises(UntranslatableEvent, match=reason):
        events_of(tree)


def test_turns_of_groups_are_the_poisson_steps_of_one_group() -> None:
    turns: dict[str, Any] = {
        "noise_multiplier": 2.0,
        "iterations": 10,
        "num_bands": 4,
        "sampling_prob": 0.25,
    }
    assert events_of(accounting.amplified_bandmf_event(**turns)) == [
        event(
            mechanism=gaussian(noise_multiplier=2.0),
            sampling=poisson(sampling_probability=0.25),
            steps=3,
        )
    ]
    cut: dict[str, Any] = {"largest_group_size": RECORDS // 4, "truncated_batch_size": 50}
    with pytest.raises(UntranslatableEvent, match="another dataset_size"):
        events_of(accounting.truncated_amplified_bandmf_event(**turns, **cut), dataset_size=RECORDS)


def test_a_class_of_somebody_else_s_is_refused_whatever_it_derives_from() -> None:
    @attr.s(frozen=True, auto_attribs=True)
    class Derived(dp_event.GaussianDpEvent):
        twice: bool = True

    @attr.s(frozen=True, auto_attribs=True)
    class GaussianDpEvent:
        noise_multiplier: float = 1.0

    for foreign in (Derived(1.0), GaussianDpEvent()):
        with pytest.raises(UntranslatableEvent, match="no known privacy event"):
            events_of(foreign)
