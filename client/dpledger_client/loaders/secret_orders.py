"""Batches of passes that leave records out: what a shuffled loader has to do to be amplified."""

import os
from array import array
from collections.abc import Iterator, Sized
from itertools import pairwise
from operator import index
from typing import Any, Final

from dpledger_client import schemas


class ShuffledBatches:
    """Batches in a new secret order each pass; some records are left out of it, others each time.

    An iteration is a pass: lists of the places of `batch_size` records, in [0, records), no place
    twice. They are indices for numpy, and a `batch_sampler` for a DataLoader of PyTorch. Take one
    step for each batch, to the end of the pass: the ledger counts whole passes.

    Attributes:
        records: how many the dataset has.
        batch_size: records of each batch.
        left_out: records that are in no batch of a pass, >= 1.
    """

    def __init__(self, records: int, batch_size: int, least: int) -> None:
        self.records: Final = records
        self.batch_size: Final = batch_size
        self._steps = (records - least) // batch_size
        self.left_out: Final = records - self._steps * batch_size

    @property
    def sampling(self) -> dict[str, Any]:
        """What the run is told: a shuffle that says how many records it leaves out.

        The service refuses it if `records` is not the dataset_size that was declared. Of both,
        only the declared number is a public constant.
        """
        return schemas.shuffle(
            batch_size=self.batch_size, steps_per_pass=self._steps, left_out=self.left_out
        )

    def __len__(self) -> int:
        """Steps of a pass."""
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        """Go through one pass."""
        order = _secret_order(self.records)
        for step in range(self._steps):
            yield order[step * self.batch_size : (step + 1) * self.batch_size]


def shuffled(dataset: Sized | int, batch_size: int, *, leave_out: int = 1) -> ShuffledBatches:
    """Shuffle as usual, but leave a few records out of each pass, which makes epsilon far smaller.

    The last, smaller batch is dropped. If batch_size divides the number of records, a whole batch
    is left out instead. Orders come from the operating system's randomness, whatever seeds were
    set, and are not kept: a checkpoint cannot repeat or continue one.

        loader = DataLoader(dataset, batch_sampler=shuffled(dataset, 256))  # PyTorch
        for rows in shuffled(len(x), 256): x[rows]                          # numpy, one pass

    Each process has an order of its own: one process alone may use it. Iterate once for each pass:
    itertools.cycle would repeat the first order. The bound is `derived`, and for the relations
    replace_one and replace_special.

    Args:
        dataset: what has a length, or how many records there are.
        batch_size: records of a step, >= 1.
        leave_out: at least so many records are left out of each pass, >= 1. To end passes early,
            leave more records out.

    Raises:
        ValueError: a number is out of range, or no batch remains.
    """
    records = len(dataset) if isinstance(dataset, Sized) else index(dataset)
    size, least = index(batch_size), index(leave_out)
    if not size >= 1:
        raise ValueError("batch_size must be at least 1.")
    if not least >= 1:
        raise ValueError(
            "leave_out must be at least 1: a pass over all records is not amplified. For one, "
            "take an ordinary loader."
        )
    if records - least < size:
        raise ValueError(f"No batch of {size} remains if {least} of the records are left out.")
    return ShuffledBatches(records, size, least)


def _secret_order(records: int) -> list[int]:
    """The numbers below `records` in a uniform order: that of random keys, drawn until they differ.

    Given that they differ, each order of independent uniform keys has the same probability.
    """
    while True:
        keys = array("Q", os.urandom(8 * records))
        order = sorted(range(records), key=keys.__getitem__)
        if all(keys[before] < keys[after] for before, after in pairwise(order)):
            return order
