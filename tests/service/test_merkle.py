"""Merkle trees: every hash is that of the definition, and nothing but a true proof verifies."""

import hashlib
import random
from collections.abc import Sequence

import pytest
from dpledger_client import merkle as client

from service.ledger.log.merkle import (
    EMPTY,
    Frontier,
    consistency_path,
    inclusion_path,
    leaf_hash,
    node_hash,
    perfect_subtrees,
    tree_root,
    verify_consistency,
    verify_inclusion,
)

SIZES = 70
LEAVES = [leaf_hash(f"leaf {number}".encode()) for number in range(300)]


def largest_power_below(size: int) -> int:
    power = 1
    while power * 2 < size:
        power *= 2
    return power


def defined_root(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 9162, section 2.1.1, as it is written there."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = largest_power_below(len(leaves))
    left, right = defined_root(leaves[:split]), defined_root(leaves[split:])
    return hashlib.sha256(b"\x01" + left + right).digest()


def defined_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH of section 2.1.3.1."""
    if len(leaves) == 1:
        return []
    split = largest_power_below(len(leaves))
    if index < split:
        return [*defined_path(index, leaves[:split]), defined_root(leaves[split:])]
    return [*defined_path(index - split, leaves[split:]), defined_root(leaves[:split])]


def defined_proof(first: int, leaves: Sequence[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of section 2.1.4.1."""
    if first == len(leaves):
        return [] if whole else [defined_root(leaves)]
    split = largest_power_below(len(leaves))
    if first <= split:
        rest = defined_root(leaves[split:])
        return [*defined_proof(first, leaves[:split], whole), rest]
    rest = defined_root(leaves[:split])
    return [*defined_proof(first - split, leaves[split:], False), rest]


def subtree(begin: int, end: int) -> bytes:
    return defined_root(LEAVES[begin:end])


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def test_the_prefixes_are_those_of_the_standard() -> None:
    assert leaf_hash(b"data") == hashlib.sha256(b"\x00data").digest()
    assert node_hash(b"l", b"r") == hashlib.sha256(b"\x01lr").digest()
    assert hashlib.sha256(b"").digest() == EMPTY == tree_root([]) == client.EMPTY


@pytest.mark.parametrize("size", range(SIZES + 1))
def test_a_tree_grown_leaf_by_leaf_or_at_once_has_the_root_of_the_definition(size: int) -> None:
    grown = Frontier()
    for leaf in LEAVES[:size]:
        grown, _ = grown.extended([leaf])
    assert grown.root() == tree_root(LEAVES[:size]) == defined_root(LEAVES[:size])
    assert grown.size == size
    assert Frontier.from_bytes(size, grown.to_bytes()) == grown
    longer, _ = Frontier.from_bytes(size, grown.to_bytes()).extended(LEAVES[size:100])
    assert longer.root() == defined_root(LEAVES[:100])


@pytest.mark.parametrize("size", [1, 3, 64, 70])
def test_a_stored_frontier_of_another_size_is_refused(size: int) -> None:
    data = Frontier().extended(LEAVES[:size])[0].to_bytes()
    for other in (size + 1, size + 4, size - 1 if size > 1 else 0, -1):
        if other.bit_count() != size.bit_count() or other < 0:
            with pytest.raises(ValueError, match="frontier"):
                Frontier.from_bytes(other, data)


def test_tiles_are_the_roots_of_complete_subtrees_each_told_once() -> None:
    frontier, tiles = Frontier(), []
    many = [leaf_hash(number.to_bytes(4)) for number in range(3 * 256 + 5)]
    for first in range(0, len(many), 37):
        frontier, fresh = frontier.extended(many[first : first + 37])
        tiles += fresh
    expected = [
        (1, index, defined_root(many[256 * index : 256 * index + 256])) for index in (0, 1, 2)
    ]
    assert tiles == expected


def test_a_tile_of_the_second_level_covers_256_of_the_first() -> None:
    many = [leaf_hash(number.to_bytes(4)) for number in range(256 * 256)]
    _, tiles = Frontier().extended(many)
    assert [tile[:2] for tile in tiles if tile[0] == 2] == [(2, 0)]
    assert tiles[-1] == (2, 0, tree_root(root for level, _, root in tiles if level == 1))
    assert len(tiles) == 257


def test_any_range_falls_into_aligned_perfect_subtrees() -> None:
    for begin in range(SIZES):
        for end in range(begin, SIZES + 1):
            parts = list(perfect_subtrees(begin, end))
            covered = [leaf for at, height in parts for leaf in range(at, at + (1 << height))]
            assert covered == list(range(begin, end))
            assert all(at % (1 << height) == 0 for at, height in parts)


@pytest.mark.parametrize("size", range(1, SIZES + 1))
def test_each_leaf_has_the_path_of_the_definition_and_no_other_leaf_verifies(size: int) -> None:
    leaves = LEAVES[:size]
    root = defined_root(leaves)
    for index in range(size):
        path = inclusion_path(index, size, subtree)
        assert path == defined_path(index, leaves)
        for verify in (verify_inclusion, _client_inclusion):
            assert verify(leaves[index], index, size, path, root)
            assert not verify(flipped(leaves[index]), index, size, path, root)
            assert not verify(leaves[index], index, size, path, flipped(root))
            assert not verify(leaves[index], index, size, [*path, root], root)
            assert not verify(leaves[index], size, size, path, root)
            assert not verify(leaves[index], -1, size, path, root)
            if path:
                assert not verify(leaves[index], index, size, path[:-1], root)
                assert not verify(leaves[index], (index + 1) % size, size, path, root)
                for at in range(len(path)):
                    bad = [*path[:at], flipped(path[at]), *path[at + 1 :]]
                    assert not verify(leaves[index], index, size, bad, root)


def _client_inclusion(
    leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes
) -> bool:
    return client.includes(root, size, leaf, index, path)


def _client_consistency(
    first: int, second: int, first_root: bytes, second_root: bytes, path: Sequence[bytes]
) -> bool:
    return client.begins(first, first_root, second, second_root, path)


@pytest.mark.parametrize("second", range(SIZES + 1))
def test_each_beginning_has_the_proof_of_the_definition_and_no_other_verifies(second: int) -> None:
    new = defined_root(LEAVES[:second])
    for first in range(second + 1):
        old = defined_root(LEAVES[:first])
        path = consistency_path(first, second, subtree)
        assert path == (defined_proof(first, LEAVES[:second]) if first else [])
        for verify in (verify_consistency, _client_consistency):
            assert verify(first, second, old, new, path)
            assert not verify(first, second, flipped(old), new, path)
            assert not verify(first, second, old, new, [*path, new])
            if first:  # nothing is a beginning of everything
                assert not verify(first, second, old, flipped(new), path)
            if path:
                assert not verify(first, second, old, new, path[:-1])
                assert not verify(first, second, old, new, path[1:])
                for at in range(len(path)):
                    bad = [*path[:at], flipped(path[at]), *path[at + 1 :]]
                    assert not verify(first, second, old, new, bad)


@pytest.mark.parametrize("verify", [verify_consistency, _client_consistency])
def test_a_log_that_was_rewritten_has_no_proof(verify: object) -> None:
    draw = random.Random(1)
    for _ in range(200):
        second = draw.randrange(2, 300)
        first = draw.randrange(1, second)
        changed = list(LEAVES[:second])
        changed[draw.randrange(first)] = leaf_hash(b"another")
        path = consistency_path(first, second, lambda b, e: defined_root(changed[b:e]))  # noqa: B023
        old, new = defined_root(LEAVES[:first]), defined_root(changed)
        assert not verify(first, second, old, new, path)  # type: ignore[operator]
        assert not verify(second, first, new, old, path)  # type: ignore[operator]


def test_what_is_not_there_has_no_path() -> None:
    for index, size in ((0, 0), (5, 5), (-1, 5)):
        with pytest.raises(ValueError, match="no such leaf"):
            inclusion_path(index, size, subtree)
    for first, second in ((6, 5), (-1, 5)):
        with pytest.raises(ValueError, match="smaller"):
            consistency_path(first, second, subtree)
