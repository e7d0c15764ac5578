"""The parts that verification is made of."""

from hypothesis import given, settings
from hypothesis import strategies as st

from service.ledger.log.merkle import Frontier, leaf_hash
from service.transparency.verification.log import CheckedTree
from service.transparency.verification.report import (
    KEPT_MAX,
    Broken,
    Rank,
    VerificationReport,
    to_printable,
)
from service.transparency.verification.saved_heads import first_difference
from tests.service.samples import Json

CYCLIC: Json = {"kind": "cyclic", "batch_size": 20000, "steps_per_pass": 3}  # three steps a pass


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 700), max_size=6))
def test_a_tree_that_is_only_read_is_the_frontier_that_was_appended_to(sizes: list[int]) -> None:
    tree, frontier, number = CheckedTree(), Frontier(), 0
    tiles: dict[tuple[int, int], bytes] = {}
    for size in sizes:
        leaves = [leaf_hash(b"%d" % (number + index)) for index in range(size)]
        number += size
        tree.extend(leaves)
        frontier, more = frontier.extended(leaves)
        tiles |= {(level, index): root for level, index, root in more}
    assert tree.frontier() == frontier
    assert tree.tiles == tiles


def test_a_tree_of_many_tiles_has_those_of_the_second_level() -> None:
    leaves = [leaf_hash(b"%d" % number) for number in range(256 * 257)]
    tree = CheckedTree()
    tree.extend(leaves)
    frontier, tiles = Frontier().extended(leaves)
    assert (2, 0) in tree.tiles
    assert tree.tiles == {(level, index): root for level, index, root in tiles}
    assert tree.frontier() == frontier


@given(count=st.integers(1, 50), data=st.data())
def test_the_first_leaf_that_differs_is_found(count: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, count - 1))
    later = data.draw(st.sets(st.integers(first, count - 1)))
    one = [leaf_hash(b"%d" % number) for number in range(count)]
    other = [leaf_hash(b"x") if n in later | {first} else leaf for n, leaf in enumerate(one)]
    assert first_difference(b"".join(one), b"".join(other)) == first


def test_of_very_many_broken_places_the_first_are_kept_and_all_are_counted() -> None:
    report = VerificationReport()
    for position in reversed(range(10 * KEPT_MAX)):
        report.add(
            Broken(dataset="d", rank=Rank.LEAF, position=position, what="x", why="is broken")
        )
    report.add(Broken(dataset="a", rank=Rank.DERIVED, position=None, what="x", why="is broken"))
    assert report.total == 10 * KEPT_MAX + 1
    places = [one.position for one in report.broken if one.dataset == "d"]
    assert places == list(range(KEPT_MAX))
    assert report.broken[-1].dataset == "a"  # a wrong sum after every wrong leaf


def test_stored_text_is_shown_without_control_characters_and_never_long() -> None:
    assert (
        to_printable("a\x1b[31m\nb") == "a\N{REPLACEMENT CHARACTER}[31m\N{REPLACEMENT CHARACTER}b"
    )
    assert len(to_printable("x" * 10**6)) == 103
