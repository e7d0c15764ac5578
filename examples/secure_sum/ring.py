"""Whole numbers modulo 2^bits: masks that are uniform, and cancel exactly in a sum."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ring:
    """The numbers 0 to 2^bits - 1; sums that leave them come in again at the other end.

    Args:
        bits: 1 to 64. Few are for tests, which try every mask.
    """

    bits: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 64:
            raise ValueError("bits must lie in 1 to 64.")

    def uniform(self, size: int) -> Words:
        """Return uniform elements that cannot be guessed, from the operating system."""
        return self._reduced(np.frombuffer(secrets.token_bytes(8 * size), dtype=np.uint64))

    def of(self, integers: Integers) -> Words:
        """The element that stands for each integer; a negative one is counted from the top."""
        return self._reduced(integers.astype(np.uint64))

    def integers(self, words: Words) -> Integers:
        """The integers from -2^(bits-1) to 2^(bits-1) - 1 that the elements stand for."""
        unused = np.uint64(64 - self.bits)
        return np.asarray((words << unused).view(np.int64) >> unused.astype(np.int64))

    def total(self, terms: Iterable[Words]) -> Words:
        """The sum, exactly."""
        first, *others = terms
        found = first.copy()
        for term in others:
            found += term  # unsigned numbers of 64 bits wrap around, which is what is meant
        return self._reduced(found)

    def masked(self, value: Words, *, sent: Iterable[Words], received: Iterable[Words]) -> Words:
        """A value that may be shown: each mask sent is added to it, each one received taken off.

        Every mask is sent by one trainer and received by another, so that all of them cancel when
        everybody's masked values are added.
        """
        return self.total([value, *sent, *(-mask for mask in received)])

    def _reduced(self, words: Words) -> Words:
        return words & np.uint64(2**self.bits - 1)
