"""Two processes of FSDP over gloo: whose noise is measured, one ledger, and one place to stop."""

from typing import Any

import pytest
import torch
from dpledger_client import Client
from fsdp_ranks import MEASURED, NOISE, NORM, SCENARIOS, work
from opacus_loops import equal
from opacus_ranks import BATCHES, RANKS, spawned

EPSILON = 3.0
RATE = {"kind": "poisson", "sampling_probability": 1 / BATCHES}
Happened = tuple[dict[str, tuple[str, str]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def happened(service_url: str, tmp_path_factory: pytest.TempPathFactory) -> Happened:
    """Names of run and dataset of each scenario, and what each rank saw of it."""
    options: dict[str, dict[str, Any]] = {what: {} for what in SCENARIOS}
    options["refused"]["budget"] = {"epsilon": EPSILON, "delta": 1e-5, "orders": [8.0]}
    return spawned(service_url, tmp_path_factory.mktemp("shards"), work, options)


def test_sharded_training_makes_one_ledger_and_the_same_weights(
    client: Client, happened: Happened
) -> None:
    what, (names, ranks) = "sharded", happened
    for steps, alone, with_ledger in (rank[what] for rank in ranks):
        assert steps == BATCHES
        assert equal(alone, with_ledger)
    (event,) = client.ledger(names[what][0])["events"]
    assert (event["steps"], event["mechanism"]["noise_multiplier"]) == (BATCHES, 1.0)
    assert event["sampling"] == RATE


@pytest.mark.parametrize("what", ["own_noise", "one_noise"])
def test_the_noise_on_both_ranks_is_what_the_ledger_has(
    client: Client, happened: Happened, what: str
) -> None:
    """Noise / how far a record moves the gradient, of some 100,000 draws; from one seed or two."""
    names, ranks = happened
    moves = [rank[what][0] for rank in ranks]
    assert moves == pytest.approx([NORM / RANKS] * RANKS, rel=1e-4)
    drawn = [rank[what][1] for rank in ranks]
    for noise in drawn:
        assert noise.shape[0] == MEASURED
        assert float(noise.std()) == pytest.approx(NOISE, rel=0.02)
        assert abs(float(noise.mean())) < 0.05
        assert correlation(noise[0], noise[1]) < 0.05  # from step to step
    assert correlation(*(noise.flatten() for noise in drawn)) < 0.02  # from rank to rank
    (event,) = client.ledger(names[what][0])["events"]
    assert (event["steps"], event["mechanism"]["noise_multiplier"]) == (MEASURED, NOISE)


def correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    size = min(len(first), len(second))
    return abs(float(torch.corrcoef(torch.stack([first[:size], second[:size]]))[0, 1]))


def test_both_processes_stop_before_the_sharded_step_that_is_refused(
    client: Client, happened: Happened
) -> None:
    names, ranks = happened
    (steps, before, after), (other_steps, _, other_after) = (rank["refused"] for rank in ranks)
    assert 1 <= steps == other_steps < BATCHES
    assert equal(before, after)
    assert equal(after, other_after)
    assert client.run(names["refused"][0])["steps"] == steps


@pytest.mark.parametrize("what", ["sums", "sums_later", "replicas"])
def test_shards_whose_noise_is_another_are_refused_on_both(
    client: Client, happened: Happened, what: str
) -> None:
    names, ranks = happened
    for error, steps in (rank[what] for rank in ranks):
        assert "one shard on each rank, and FSDP averages" in error
        assert steps == 0
    assert client.run(names[what][0])["steps"] == 0


def test_sharded_batches_in_parts_are_refused_before_anything_is_computed(
    client: Client, happened: Happened
) -> None:
    names, ranks = happened
    for error, steps, untouched in (rank["in_parts"] for rank in ranks):
        assert "different numbers of parts" in error
        assert (steps, untouched) == (0, True)
    assert client.run(names["in_parts"][0])["steps"] == 0


def test_rank_0_names_the_cause_when_rank_1_is_refused(happened: Happened) -> None:
    (error, steps), (cause, other_steps) = (rank["one_is_refused"] for rank in happened[1])
    assert "dataset_size" in cause
    assert error == f"Rank 1 was refused: ValueError: {cause}"
    assert steps == other_steps == 0
