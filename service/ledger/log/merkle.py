"""Merkle trees of RFC 9162, section 2.1: roots, proofs, and their verification.

A tree of n leaves is known by its `Frontier`: the roots of the perfect subtrees that its leaves
fall into, from left to right, one for each bit of n. It is all that appending needs.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

DIGEST_SIZE: Final = 32  # bytes of a SHA-256
EMPTY: Final = hashlib.sha256(b"").digest()  # the root of no leaves
TILE_HEIGHT: Final = 8  # complete subtrees of this height, and of its multiples, are kept

Subtree = Callable[[int, int], bytes]  # the root of the leaves in [begin, end)
Tile = tuple[int, int, bytes]  # level, index, root of the index-th subtree of 256**level leaves


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node; its prefix keeps it apart from every leaf."""
    return hashlib.sha256(b"\x01" + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree as it must be known to append to it."""

    size: int = 0
    roots: tuple[bytes, ...] = ()  # the largest subtree first

    def extended(self, leaves: Iterable[bytes]) -> tuple["Frontier", list[Tile]]:
        """The tree with more leaves, and the tiles that they complete."""
        size, roots, tiles = self.size, list(self.roots), []
        for leaf in leaves:
            node, height = leaf, 0
            while size >> height & 1:
                node = node_hash(roots.pop(), node)
                height += 1
                if not height % TILE_HEIGHT:
                    tiles.append((height // TILE_HEIGHT, size >> height, node))
            roots.append(node)
            size += 1
        return Frontier(size, tuple(roots)), tiles

    def root(self) -> bytes:
        """The root of the tree."""
        return _join_roots(self.roots) if self.roots else EMPTY

    def to_bytes(self) -> bytes:
        """As it is stored."""
        return b"".join(self.roots)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> "Frontier":
        """As it was stored.

        Raises:
            ValueError: a tree of that size has another number of subtrees.
        """
        if size < 0 or len(data) != DIGEST_SIZE * size.bit_count():
            raise ValueError("The frontier does not fit the size of the tree.")
        return cls(size, tuple(_cut(data)))


def _cut(data: bytes) -> Iterator[bytes]:
    return (data[at : at + DIGEST_SIZE] for at in range(0, len(data), DIGEST_SIZE))


def _join_roots(roots: Sequence[bytes]) -> bytes:
    """The root over perfect subtrees; the smallest, on the right, are joined first."""
    *others, node = roots
    for left in reversed(others):
        node = node_hash(left, node)
    return node


def tree_root(leaves: Iterable[bytes]) -> bytes:
    """The root over leaf hashes."""
    return Frontier().extended(leaves)[0].root()


def perfect_subtrees(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """The largest aligned perfect subtrees that leaves [begin, end) fall into: (begin, height)."""
    while begin < end:
        height = (end - begin).bit_length() - 1
        if begin:
            height = min(height, (begin & -begin).bit_length() - 1)
        yield begin, height
        begin += 1 << height


def _split_point(size: int) -> int:
    """The largest power of two below a size of two or more."""
    return 1 << (size - 1).bit_length() - 1


def inclusion_path(index: int, size: int, subtree: Subtree) -> list[bytes]:
    """The hashes that lead from a leaf to the root: section 2.1.3.1.

    Args:
        index: of the leaf, from 0.
        size: of the tree.
        subtree: the roots of parts of the tree.

    Raises:
        ValueError: the tree has no such leaf.
    """
    if not 0 <= index < size:
        raise ValueError("The tree has no such leaf.")
    path: list[bytes] = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _split_point(end - begin)
        if index < middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(begin, middle))
            begin = middle
    return path[::-1]


def consistency_path(first: int, second: int, subtree: Subtree) -> list[bytes]:
    """The hashes that show that a tree is the beginning of another: section 2.1.4.1.

    Empty where `first` is 0 or `second`.

    Raises:
        ValueError: the first tree is not smaller or equal.
    """
    if not 0 <= first <= second:
        raise ValueError("The first tree must be the smaller one.")
    if first in (0, second):
        return []
    path: list[bytes] = []
    begin, end, whole = 0, second, True  # whole: the first tree's root is known to who verifies
    while first != end:
        middle = begin + _split_point(end - begin)
        if first <= middle:
            path.append(subtree(middle, end))
            end = middle
        else:
            path.append(subtree(begin, middle))
            begin, whole = middle, False
    if not whole:
        path.append(subtree(begin, end))
    return path[::-1]


def _sides(index: int, last: int, path: Sequence[bytes]) -> list[tuple[bytes, bool]] | None:
    """Each hash of a path with whether it stands on the left; none if the path does not fit."""
    sides: list[tuple[bytes, bool]] = []
    for other in path:
        if last == 0:
            return None
        left = bool(index & 1) or index == last
        sides.append((other, left))
        while left and not index & 1 and index:
            index, last = index >> 1, last >> 1
        index, last = index >> 1, last >> 1
    return sides if last == 0 else None


def verify_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes
) -> bool:
    """Whether a path leads from a leaf to the root: section 2.1.3.2."""
    sides = _sides(index, size - 1, path) if 0 <= index < size else None
    if sides is None:
        return False
    node = leaf
    for other, left in sides:
        node = node_hash(other, node) if left else node_hash(node, other)
    return node == root


def verify_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, path: Sequence[bytes]
) -> bool:
    """Whether a tree is the beginning of another: section 2.1.4.2."""
    if not 0 <= first <= second:
        return False
    if first in (0, second):
        return not path and first_root == (second_root if first else EMPTY)
    # A perfect first tree is itself the node that the path begins with.
    nodes = path if first & (first - 1) else [first_root, *path]
    if not nodes:
        return False
    start, *others = nodes
    shared = ((first - 1) & ~first).bit_length()  # levels below that node
    sides = _sides((first - 1) >> shared, (second - 1) >> shared, others)
    if sides is None:
        return False
    old = new = start
    for other, left in sides:
        if left:
            old = node_hash(other, old)
        new = node_hash(other, new) if left else node_hash(new, other)
    return old == first_root and new == second_root
