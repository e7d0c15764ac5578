"""Two processes of distributed data parallel over gloo: one ledger, and one place to stop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client
from opacus_loops import equal
from opacus_ranks import BATCHES, SCENARIOS, spawned, work

EPSILON = 3.0
RATE = {"kind": "poisson", "sampling_probability": 1 / BATCHES}
STEPS = {"plain": BATCHES, "ghost": BATCHES, "in_parts": BATCHES, "shuffled": BATCHES}
Happened = tuple[dict[str, tuple[str, str]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def happened(service_url: str, tmp_path_factory: pytest.TempPathFactory) -> Happened:
    """Names of run and dataset of each scenario, and what each rank saw of it."""
    options: dict[str, dict[str, Any]] = {what: {} for what in SCENARIOS}
    options["refused"]["budget"] = {"epsilon": EPSILON, "delta": 1e-5, "orders": [8.0]}
    options["shuffled"]["neighboring_relation"] = "replace_special"
    return spawned(service_url, tmp_path_factory.mktemp("ranks"), work, options)


@pytest.mark.parametrize("what", STEPS)
def test_two_processes_make_one_ledger_and_the_same_weights(
    client: Client, happened: Happened, what: str
) -> None:
    names, ranks = happened
    for steps, alone, with_ledger in (rank[what] for rank in ranks):
        assert steps == STEPS[what]
        assert equal(alone, with_ledger)
    assert equal(ranks[0][what][1], ranks[1][what][1])
    (event,) = client.ledger(names[what][0])["events"]
    assert (event["steps"], event["mechanism"]["noise_multiplier"]) == (STEPS[what], 1.0)
    if what == "shuffled":
        assert event["sampling"]["reshuffle"] == "once"
    else:
        assert event["sampling"] == RATE


def test_both_processes_stop_before_the_step_that_is_refused(
    client: Client, happened: Happened
) -> None:
    names, ranks = happened
    (steps, before, after), (other_steps, other_before, other_after) = (
        rank["refused"] for rank in ranks
    )
    assert 1 <= steps == other_steps < BATCHES
    assert equal(before, after)
    assert equal(other_before, other_after)
    assert equal(after, other_after)
    guarantee: Callable[..., dict[str, Any]] = client.guarantee
    assert guarantee(names["refused"][0])["epsilon"] <= EPSILON
    assert client.run(names["refused"][0])["steps"] == steps


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("same_coins", "same seed"),
        ("deaf", "broadcast=dpledger_client.integrations.opacus.broadcast"),
        ("all_the_data", "take a DistributedSampler"),
    ],
)
def test_what_two_processes_must_not_do_is_refused_on_both(
    client: Client, happened: Happened, what: str, words: str
) -> None:
    names, ranks = happened
    for error, steps in (rank[what] for rank in ranks):
        assert words in error
        assert steps == 0
    assert client.run(names[what][0])["steps"] == 0


def test_rank_0_names_the_cause_when_rank_1_of_two_replicas_is_refused(
    client: Client, happened: Happened
) -> None:
    names, ranks = happened
    (error, steps), (cause, other_steps) = (rank["one_is_refused"] for rank in ranks)
    assert "dataset_size" in cause
    assert error == f"Rank 1 was refused: ValueError: {cause}"
    assert steps == other_steps == 0
    assert client.run(names["one_is_refused"][0])["steps"] == 0


def test_the_spool_is_of_one_process(happened: Happened, tmp_path_factory: Any) -> None:
    folder = Path(tmp_path_factory.getbasetemp())
    assert len(list(folder.glob("ranks0/spool/*.spool"))) == len(SCENARIOS)
