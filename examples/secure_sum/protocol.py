"""A sum that everybody learns, and nothing else: masks between pairs, then once around the ring."""

from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Final

import numpy as np

from examples.secure_sum.ring import Ring, Words

WAIT_SECONDS: Final = 60.0  # for a message; a trainer that is gone closes its links at once


class ProtocolError(Exception):
    """A trainer is gone or sends what it should not; the sum was not opened."""


def secure_sum(value: Words, *, me: int, links: Mapping[int, Connection], ring: Ring) -> Words:
    """The sum of the values of all trainers, each of which calls this at the same time.

    Each pair exchanges masks first: what a trainer then sends on is uniform as long as there is a
    mask that it shares with a trainer outside the group of those who look. So whoever looks, and
    whoever helps him, learns the sum of the others' values only.

    Args:
        value: the trainer's own, shape (d,).
        me: the trainer's number, of 0 to n - 1; n >= 3.
        links: to each other trainer, by its number; private between the two.
        ring: the same for all.

    Raises:
        ProtocolError: no message came, or one of another length.
    """
    sent, received = _exchanged(len(value), me=me, links=links, ring=ring)
    masked = ring.masked(value, sent=sent, received=received)
    return _around(masked, me=me, links=links, ring=ring)


def _exchanged(
    size: int, *, me: int, links: Mapping[int, Connection], ring: Ring
) -> tuple[list[Words], list[Words]]:
    """A fresh mask for each other trainer, and one from each."""
    sent, received = [], []
    # All process the pairs in one order, and of a pair the lower number sends first, so there is no
    # deadlock, however long the messages are.
    for peer, link in sorted(links.items()):
        sent.append(ring.uniform(size))
        if me < peer:
            send(link, sent[-1])
        received.append(receive(link, size))
        if me > peer:
            send(link, sent[-1])
    return sent, received


def _around(masked: Words, *, me: int, links: Mapping[int, Connection], ring: Ring) -> Words:
    """Once around to add up, from trainer 0 to the last, and once more to tell the total."""
    last = len(links)
    before, after = links[(me - 1) % (last + 1)], links[(me + 1) % (last + 1)]
    total = masked if me == 0 else ring.total([receive(before, len(masked)), masked])
    if me < last:
        send(after, total)
        total = receive(before, len(masked))
    if me != last - 1:  # the trainer after him is the last one, who told it first
        send(after, total)
    return total


def send(link: Connection, words: Words) -> None:
    """To the other end, as bytes.

    Raises:
        ProtocolError: it is gone.
    """
    try:
        link.send_bytes(words.tobytes())
    except OSError as error:
        raise ProtocolError("A trainer is gone.") from error


def receive(link: Connection, size: int) -> Words:
    """So many words from the other end.

    Raises:
        ProtocolError: it is gone, or silent, or sent another number of words.
    """
    try:
        if not link.poll(WAIT_SECONDS):
            raise ProtocolError(f"A trainer sent nothing for {WAIT_SECONDS:g} seconds.")
        words = np.frombuffer(link.recv_bytes(), dtype=np.uint64)
    except (EOFError, OSError) as error:
        raise ProtocolError("A trainer is gone.") from error
    if len(words) != size:
        raise ProtocolError("A trainer sent a message of the wrong length.")
    return words
