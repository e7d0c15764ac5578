"""What a client checks of the service's logs by itself: Merkle trees of RFC 9162, section 2.1."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

EMPTY: Final = hashlib.sha256(b"").digest()  # the root of no leaves


def leaf_hash(record: Mapping[str, Any]) -> bytes:
    """The hash of a leaf: of its canonical JSON, whatever its members are."""
    return hashlib.sha256(b"\x00" + canonical(record)).digest()


def canonical(record: Mapping[str, Any]) -> bytes:
    """Canonical JSON, as it is hashed and signed: sorted keys, no spaces."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def _climb(index: int, last: int, path: Sequence[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each hash of a path, with whether it stands on the left.

    Raises:
        ValueError: the path is too long or too short.
    """
    for other in path:
        if last == 0:
            raise ValueError("The path is too long.")
        left = bool(index & 1) or index == last
        yield other, left
        while left and index and not index & 1:
            index, last = index >> 1, last >> 1
        index, last = index >> 1, last >> 1
    if last:
        raise ValueError("The path is too short.")


def includes(root: bytes, size: int, leaf: bytes, index: int, path: Sequence[bytes]) -> bool:
    """Whether a tree has a leaf at an index: section 2.1.3.2."""
    if not 0 <= index < size:
        return False
    node = leaf
    try:
        for other, left in _climb(index, size - 1, path):
            node = _node(other, node) if left else _node(node, other)
    except ValueError:
        return False
    return node == root


def begins(
    first: int, first_root: bytes, second: int, second_root: bytes, path: Sequence[bytes]
) -> bool:
    """Whether a tree of `second` leaves begins with that of `first`: section 2.1.4.2."""
    if not 0 <= first <= second:
        return False
    if first in (0, second):
        return not path and first_root == (second_root if first else EMPTY)
    # A perfect first tree is itself the node that the path begins with.
    start, *others = path if first & (first - 1) else [first_root, *path]
    below = ((first - 1) & ~first).bit_length()  # levels under that node
    old = new = start
    try:
        for other, left in _climb((first - 1) >> below, (second - 1) >> below, others):
            if left:
                old = _node(other, old)
            new = _node(other, new) if left else _node(new, other)
    except ValueError:
        return False
    return old == first_root and new == second_root
