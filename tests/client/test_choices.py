"""A shuffled loader and what can stand in its place, asked of a real service."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from dpledger_client import Client, compare_sampling, shuffle

SETTINGS: dict[str, Any] = {
    "dataset_size": 60_000,
    "batch_size": 256,
    "passes": 10,
    "noise_multiplier": 4.0,
    "neighboring_relation": "replace_special",
    "delta": 1e-5,
}
CHOICES = ["as_it_is", "leave_out", "balls_and_bins", "poisson"]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def test_one_call_tells_four_epsilons(client: Client) -> None:
    found = compare_sampling(client, **SETTINGS)
    assert list(found) == CHOICES
    epsilons = [found[name]["epsilon"] for name in CHOICES]
    assert epsilons[0] > 4 * epsilons[1] > 4 * max(epsilons[2:])
    assert [found[name]["status"] for name in CHOICES[:2]] == ["published", "derived"]
    assert [found[name]["event"]["steps"] for name in CHOICES] == [2350, 2340, 2350, 2344]
    assert found["leave_out"]["event"]["sampling"] == shuffle(
        batch_size=256, steps_per_pass=234, left_out=96
    )
    for answer in found.values():
        asked = {name: SETTINGS[name] for name in ("neighboring_relation", "dataset_size", "delta")}
        again = client.plan(events=[answer["event"]], accept=["published", "derived"], **asked)
        assert again["epsilon"] == answer["epsilon"]


def test_a_whole_batch_is_left_out_where_the_batch_size_divides(client: Client) -> None:
    found = compare_sampling(client, **SETTINGS | {"batch_size": 6000, "passes": 2})
    assert [found[name]["event"]["steps"] for name in CHOICES] == [20, 18, 20, 20]
    assert found["leave_out"]["event"]["sampling"]["left_out"] == 6000
    everything = compare_sampling(client, **SETTINGS | {"batch_size": 60_000, "passes": 2})
    assert list(everything) == ["as_it_is", "balls_and_bins", "poisson"]


def test_what_no_accepted_theorem_bounds_says_why(client: Client) -> None:
    relation = {"neighboring_relation": "add_or_remove_one"}
    found = compare_sampling(client, accept=["published"], **SETTINGS | relation)
    assert found["poisson"]["epsilon"] < 1
    for name in CHOICES[:2]:
        assert found[name]["epsilon"] is None
        assert "derived" in found[name]["reason"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"passes": 0}, "passes"),
        ({"passes": math.nan}, "passes"),
        ({"passes": math.inf}, "passes"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 60_001}, "batch_size"),
        ({"noise_multiplier": 0}, "noise_multiplier"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict[str, Any], named: str) -> None:
    with Client("http://127.0.0.1:9") as away, pytest.raises(ValueError, match=named):
        compare_sampling(away, **SETTINGS | given)
