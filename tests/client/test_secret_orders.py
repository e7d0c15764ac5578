"""Passes that leave records out, and which loaders are known to make them."""

import os
import random
from collections import Counter
from itertools import chain, permutations
from typing import Any

import numpy as np
import pytest
from dpledger_client import loaders, shuffle, shuffled

from service.schemas.event_codec import to_event
from service.schemas.requests import StepMessage
from tests.client.loader_classes import (
    BATCH,
    SIZE,
    batches,
    data,
    distributed,
    found,
    loader,
    sharded,
)
from tests.client.loader_classes import random as in_random_order
from tests.service.samples import GAUSSIAN

DRAWS = 24_000
CHI_SQUARE = 88.0  # of 23 degrees of freedom; more has a chance of 1e-9


@pytest.mark.parametrize(
    ("records", "size", "least", "steps"),
    [(10, 3, 1, 3), (12, 3, 1, 3), (13, 3, 1, 4), (13, 3, 4, 3), (13, 3, 10, 1), (2, 1, 1, 1)],
)
def test_a_pass_takes_each_record_at_most_once_and_leaves_some_out(
    records: int, size: int, least: int, steps: int
) -> None:
    made = shuffled(records, size, leave_out=least)
    assert (len(made), made.left_out) == (steps, records - steps * size)
    assert made.left_out >= least
    for _ in range(5):
        taken = list(made)
        assert [len(batch) for batch in taken] == [size] * steps
        seen = set(chain.from_iterable(taken))
        assert len(seen) == steps * size
        assert seen <= set(range(records))
    assert made.sampling == shuffle(
        batch_size=size, steps_per_pass=steps, left_out=records - steps * size
    )


def test_every_order_has_the_same_chance() -> None:
    made = shuffled(4, 1)
    orders: Counter[tuple[int, ...]] = Counter(
        tuple(chain.from_iterable(made)) for _ in range(DRAWS)
    )
    places = list(permutations(range(4), 3))  # the last one follows from them
    assert set(orders) <= set(places)
    expected = DRAWS / len(places)
    assert sum((orders[one] - expected) ** 2 / expected for one in places) < CHI_SQUARE


def test_a_seed_of_the_process_does_not_tell_the_order() -> None:
    made, taken = shuffled(1000, 10), []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (that is what others do)
        taken.append(list(made))
    assert taken[0] != taken[1]


def test_keys_that_are_not_all_different_are_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    tied, apart = b"\1" * 24, bytes(range(24, 0, -1))
    drawn = iter([tied, apart])
    monkeypatch.setattr(os, "urandom", lambda count: next(drawn)[:count])
    assert len(list(shuffled(3, 1))) == 2
    assert next(drawn, None) is None


@pytest.mark.parametrize("dataset", [data(7), np.zeros((7, 2)), np.int64(7), range(7), 7])
def test_data_have_a_length_or_are_a_number(dataset: Any) -> None:
    made = shuffled(dataset, 2)
    assert (made.records, len(made), made.left_out) == (7, 3, 1)
    assert sorted(map(type, made.sampling.values()), key=str)[0] is int


def test_batches_are_indices_of_arrays() -> None:
    rows = np.arange(20.0).reshape(10, 2)
    for batch in shuffled(rows, 3):
        assert rows[batch].tolist() == [[2.0 * place, 2.0 * place + 1] for place in batch]


@pytest.mark.parametrize(
    ("records", "size", "least", "named"),
    [
        (10, 0, 1, "batch_size"),
        (10, -3, 1, "batch_size"),
        (10, 3, 0, "leave_out must be at least 1"),
        (10, 3, -1, "leave_out"),
        (10, 10, 1, "No batch"),
        (10, 3, 8, "No batch"),
        (0, 1, 1, "No batch"),
    ],
)
def test_what_cannot_be_left_out_is_refused(
    records: int, size: int, least: int, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        shuffled(records, size, leave_out=least)


# What is read of it


def test_the_loader_is_known_alone_and_as_a_sampler_of_batches() -> None:
    made = shuffled(data(), BATCH)
    expected = shuffle(batch_size=BATCH, steps_per_pass=234)
    for what in (made, loader(made), loader(None, sampler=made)):
        assert found(what) == expected
        assert found(what, None) == expected
        told = loaders.inspect(what, declared=made.sampling, dataset_size=SIZE)
        assert told.status == "detected"
        assert told.seen["batch_size"] == BATCH
        assert not {SIZE, 234, 96} & set(told.seen.values())
    assert found(made, accumulation=2) == shuffle(batch_size=512, steps_per_pass=117)


def test_a_loader_over_other_records_than_the_dataset_is_not_amplified() -> None:
    fewer = loaders.inspect(shuffled(SIZE - 1, BATCH), declared=None, dataset_size=SIZE)
    assert fewer.sampling == {"kind": "unknown"}
    part = loader(shuffled(SIZE - 1, BATCH))  # one record is left out of every pass
    assert found(part)["kind"] == "cyclic"


class OwnOrders(loaders.ShuffledBatches):
    def __iter__(self) -> Any:
        return iter([])


def test_a_class_that_draws_in_another_way_is_not_known() -> None:
    told = loaders.inspect(OwnOrders(SIZE, BATCH, 1), declared=None, dataset_size=SIZE)
    assert (told.status, told.sampling) == ("declared", {"kind": "unknown"})


def test_ranks_that_shuffle_for_themselves_are_refused() -> None:
    made = shuffled(SIZE, 64)
    for split in (False, True):
        with pytest.raises(ValueError, match="order of its own"):
            found(loader(sharded(made, split_batches=split)))
    assert found(loader(sharded(made, num_processes=1)))["steps_per_pass"] == 937
    finding = loaders.inspect(loader(made), declared=None, dataset_size=SIZE)
    with pytest.raises(ValueError, match="goes through all the data"):
        loaders.require_shares(finding, 2)


# Which loaders are amplified


@pytest.mark.parametrize(
    ("what", "left_out"),
    [
        (shuffled(SIZE, 256), 96),
        (shuffled(SIZE, 250), 250),
        (loader(batches(in_random_order(), drop_last=True)), 96),
        (loader(batches(in_random_order(), size=250, drop_last=True)), None),
        (loader(batches(in_random_order())), None),
        (loader(batches(in_random_order(), size=250)), None),
        (loader(batches(in_random_order(num_samples=SIZE - 250), size=250)), 250),
        (loader(batches(distributed(), size=64)), None),  # the loop might not set the epoch
    ],
)
def test_only_passes_that_leave_records_out_are_amplified(what: Any, left_out: int | None) -> None:
    step = StepMessage.model_validate({"mechanism": GAUSSIAN, "sampling": found(what)})
    sampling = to_event(step, dataset_size=SIZE, location="").sampling
    assert sampling.stops_early is (left_out is not None)  # type: ignore[union-attr]
    if left_out:
        said = step.model_copy(
            update={"sampling": step.sampling.model_copy(update={"left_out": left_out})}
        )
        assert to_event(said, dataset_size=SIZE, location="").sampling == sampling
