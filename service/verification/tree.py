"""A Merkle tree that is only read: its full subtrees at once, which is faster than leaf by leaf."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from service.merkle import TILE_HEIGHT, Frontier

_TILE: Final = 2**TILE_HEIGHT


@dataclass(slots=True)
class Tree:
    """The leaves so far."""

    tiles: dict[tuple[Any, Any], bytes] = field(default_factory=dict)  # by level and index
    _above: Frontier = field(default_factory=Frontier)  # whose leaves are tiles of the first level
    _rest: list[bytes] = field(default_factory=list)  # leaves after the last of those

    def extend(self, leaves: Iterable[bytes]) -> None:
        """Take further leaves."""
        self._rest += leaves
        full = len(self._rest) // _TILE * _TILE
        for begin in range(0, full, _TILE):
            root = _root(self._rest[begin : begin + _TILE])
            self.tiles[1, self._above.size] = root
            self._above, more = self._above.extended([root])
            self.tiles.update({(level + 1, index): node for level, index, node in more})
        del self._rest[:full]

    def frontier(self) -> Frontier:
        """The tree as it is known to append to it."""
        rest, _ = Frontier().extended(self._rest)
        return Frontier(self._above.size * _TILE + rest.size, self._above.roots + rest.roots)


def _root(nodes: list[bytes]) -> bytes:
    """The root of a perfect tree."""
    while len(nodes) > 1:
        both = iter(nodes)
        nodes = [sha256(b"\x01" + a + b).digest() for a, b in zip(both, both, strict=True)]
    return nodes[0]
