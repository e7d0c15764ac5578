"""The masks of the second example: what each message and each group of trainers can tell."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations, product
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.secure_sum.protocol import secure_sum
from examples.secure_sum.ring import Ring, Words
from examples.secure_sum.trainer import RING


def words(*values: int) -> Words:
    return np.array(values, dtype=np.uint64)


# The real protocol, with a thread for each trainer and an ear on each link


@dataclass
class Tapped:
    """A link's end that keeps what it sent."""

    end: Connection
    sent: list[tuple[int, ...]] = field(default_factory=list)

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(tuple(np.frombuffer(message, dtype=np.uint64).tolist()))
        self.end.send_bytes(message)

    def recv_bytes(self) -> bytes:
        return self.end.recv_bytes()

    def poll(self, seconds: float) -> bool:
        return self.end.poll(seconds)


@dataclass(frozen=True)
class Scripted(Ring):
    """A ring whose masks are told beforehand."""

    masks: Iterator[int] = field(kw_only=True)

    def uniform(self, size: int) -> Words:
        return words(*(next(self.masks) for _ in range(size)))


Messages = dict[tuple[int, int], list[tuple[int, ...]]]


def summed(values: Sequence[Words], rings: Sequence[Ring]) -> tuple[list[Words], Messages]:
    """What each trainer learns, and all messages from one to another."""
    trainers = len(values)
    links: list[dict[int, Tapped]] = [{} for _ in values]
    for one, other in combinations(range(trainers), 2):
        here, there = Pipe()
        links[one][other], links[other][one] = Tapped(here), Tapped(there)

    def run(me: int) -> Words:
        mine = cast("dict[int, Connection]", links[me])
        return secure_sum(values[me], me=me, links=mine, ring=rings[me])

    with ThreadPoolExecutor(trainers) as pool:
        totals = list(pool.map(run, range(trainers)))
    said = {(one, other): end.sent for one in range(trainers) for other, end in links[one].items()}
    for end in (end for ends in links for end in ends.values()):
        end.end.close()
    return totals, said


@pytest.mark.parametrize("trainers", [3, 4, 7])
def test_everybody_learns_the_exact_sum(trainers: int) -> None:
    rng = np.random.default_rng(1)
    top = 2**63 // trainers - 1  # the largest parts that cannot leave the ring
    values = [rng.integers(-top, top, size=2000, endpoint=True) for _ in range(trainers)]
    for value in values:
        value[:2] = (-top, top)
    totals, said = summed([RING.of(value) for value in values], [RING] * trainers)
    exact = np.sum(values, axis=0)
    assert all(np.array_equal(RING.integers(total), exact) for total in totals)
    # A mask each way between two; 2 n - 2 messages around the ring.
    assert sum(map(len, said.values())) == trainers * (trainers - 1) + 2 * trainers - 2


def test_every_message_before_the_sum_is_uniform_whatever_is_summed() -> None:
    # All 64 choices of the six masks of three trainers, one bit each: the protocol's whole law.
    for values in ((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)):
        heard: Counter[tuple[tuple[int, int], int, int]] = Counter()
        for masks in product(range(2), repeat=6):
            rings = [Scripted(1, masks=iter(masks[2 * me : 2 * me + 2])) for me in range(3)]
            totals, said = summed([words(value) for value in values], rings)
            assert {int(total[0]) for total in totals} == {sum(values) % 2}
            for link, messages in said.items():
                for place, (message,) in enumerate(messages):
                    heard[link, place, message] += 1
        # The masks, then the partial sums of trainers 0 and 1; then, to everybody, the sum.
        last = {((2, 0), 1), ((0, 1), 2)}
        for (link, place, message), times in heard.items():
            if (link, place) in last:
                assert (message, times) == (sum(values) % 2, 64)
            else:
                assert times == 32, (link, place)
        assert len(heard) == 6 * 2 + 2 * 2 + 2  # masks and partial sums are 0 or 1


def test_a_trainer_hears_the_same_for_all_values_of_the_others_with_the_same_sum() -> None:
    def heard_by_1(values: tuple[int, ...]) -> Counter[tuple[object, ...]]:
        heard: Counter[tuple[object, ...]] = Counter()
        for masks in product(range(2), repeat=6):
            rings = [Scripted(1, masks=iter(masks[2 * me : 2 * me + 2])) for me in range(3)]
            _, said = summed([words(value) for value in values], rings)
            heard[tuple(tuple(said[link]) for link in sorted(said) if 1 in link)] += 1
        return heard

    assert heard_by_1((0, 1, 1)) == heard_by_1((1, 1, 0)) != heard_by_1((1, 1, 1))


# What groups know, by trying every mask


def masked_values(
    ring: Ring, values: Sequence[int], masks: dict[tuple[int, int], int]
) -> list[int]:
    """What each trainer shows, given the mask of every ordered pair."""
    others = [[other for other in range(len(values)) if other != me] for me in range(len(values))]
    return [
        int(
            ring.masked(
                words(value),
                sent=[words(masks[me, other]) for other in others[me]],
                received=[words(masks[other, me]) for other in others[me]],
            )[0]
        )
        for me, value in enumerate(values)
    ]


def views(ring: Ring, values: Sequence[int], group: set[int]) -> Counter[tuple[int, ...]]:
    """All that a group may see, and how many choices of masks show it: its own masks, those that
    it was sent, and everybody's masked values, of which partial sums are functions."""
    pairs = [(one, other) for one in range(len(values)) for other in range(len(values))]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    seen: Counter[tuple[int, ...]] = Counter()
    for drawn in product(range(2**ring.bits), repeat=len(pairs)):
        masks = dict(zip(pairs, drawn, strict=True))
        known = [mask for pair, mask in masks.items() if group & set(pair)]
        seen[(*known, *masked_values(ring, values, masks))] += 1
    return seen


@pytest.mark.parametrize(
    ("bits", "group", "one", "other"),
    [
        (2, set(), (1, 2, 0), (3, 3, 1)),
        (2, {1}, (1, 2, 0), (3, 2, 2)),
        (1, {0, 1}, (1, 0, 0, 1), (1, 0, 1, 0)),
        (1, {0, 2}, (1, 0, 0, 0), (1, 1, 0, 1)),
    ],
)
def test_a_group_sees_the_same_for_all_values_of_the_others_with_the_same_sum(
    bits: int, group: set[int], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    ring = Ring(bits)
    assert sum(one) % 2**bits == sum(other) % 2**bits
    assert all(one[me] == other[me] for me in group)
    assert views(ring, one, group) == views(ring, other, group)


def test_all_but_one_know_the_last_ones_value_whatever_the_masks() -> None:
    # The limit of any sum: it is told in the example's page, and colluders are fewer.
    one, other = views(Ring(1), (0, 1, 0), {0, 1}), views(Ring(1), (0, 1, 1), {0, 1})
    assert not set(one) & set(other)


@given(
    values=st.lists(st.integers(-(2**60), 2**60), min_size=3, max_size=6),
    bits=st.sampled_from([1, 7, 64]),
)
@settings(max_examples=30, deadline=None)
def test_masks_cancel_exactly(values: list[int], bits: int) -> None:
    ring, pairs = Ring(bits), range(len(values))
    masks = {(i, j): int(ring.uniform(1)[0]) for i in pairs for j in pairs if i != j}
    of = [int(ring.of(np.array([value]))[0]) for value in values]
    assert sum(masked_values(ring, of, masks)) % 2**bits == sum(values) % 2**bits


# The ring


@given(value=st.integers(-(2**63), 2**63 - 1), bits=st.integers(1, 64))
def test_an_integer_that_fits_comes_back(value: int, bits: int) -> None:
    ring = Ring(bits)
    there = ring.of(np.array([value]))
    assert int(there[0]) == value % 2**bits
    back = int(ring.integers(there)[0])
    assert -(2 ** (bits - 1)) <= back < 2 ** (bits - 1)
    assert (back - value) % 2**bits == 0


def test_masks_fill_the_ring() -> None:
    drawn = Ring(3).uniform(8000)
    assert np.bincount(drawn.astype(int)).shape == (8,)
    assert np.bincount(drawn.astype(int)).min() > 800  # 1000 expected; below it is 7 deviations
    assert int(RING.uniform(1000).max()) > 2**63


@pytest.mark.parametrize("bits", [0, 65])
def test_a_ring_that_words_cannot_hold_is_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        Ring(bits)
