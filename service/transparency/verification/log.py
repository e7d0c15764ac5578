"""Compare every log with its stored Merkle tree: full subtrees at once, which is fast."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection

from accounting.event_counts import advance, after_steps, count_passes_begun, starts_anew
from accounting.events import Event, Span
from service.ledger.log.leaves import act_data, exact
from service.ledger.log.merkle import DIGEST_SIZE, TILE_HEIGHT, Frontier, leaf_hash
from service.transparency.verification.report import Broken, Rank, VerificationReport, to_printable
from service.transparency.verification.rows import (
    UNREADABLE,
    EntryRow,
    Names,
    Slot,
    Words,
    entries_of,
    is_time,
)
from service.transparency.verification.saved_heads import KeptLog, first_difference

_TILE: Final = 2**TILE_HEIGHT
PLAUSIBLE: Final = frozenset(
    {
        ("record", "within"), ("record", "reserved"), ("record", "overdraft"),
        ("charge", "within"), ("charge", "reserved"),
    }
)  # fmt: skip
_STEPS: Final = ',"steps":'
_NO_LEAF: Final = bytes(DIGEST_SIZE)
_REWRITTEN: Final = "is not what was hashed when it was written"
_Told = Callable[[int], tuple[str, int | None]]  # the words of a leaf, and the sequence of an entry


@dataclass(slots=True)
class CheckedTree:
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


@dataclass(slots=True, kw_only=True)
class Walk:
    """One log, leaf by leaf."""

    report: VerificationReport
    names: Names | None  # none of the installation's log, which has no entries
    acts: Sequence[dict[str, Any]]  # in the order of their positions
    kept: KeptLog
    position: int = 0  # of the next leaf
    sequence: int = 0  # of the latest entry
    tree: CheckedTree = field(default_factory=CheckedTree)
    whole: bool = True  # no leaf is known to be missing, so that roots mean something
    passes: Counter[tuple[Any, Event]] = field(default_factory=Counter)  # by run
    begun: Counter[tuple[Any, Event]] = field(default_factory=Counter)
    starts: Counter[tuple[Any, Event]] = field(default_factory=Counter)
    _act: int = 0  # the next
    _head: int = 0  # the next that was kept
    _differs: bool = False  # from what was kept; it is said once

    @property
    def dataset(self) -> str | None:
        """Whose log it is."""
        return self.names.dataset if self.names else None

    def broken(
        self, rank: Rank, place: tuple[str, int | None], why: str, position: int | None
    ) -> None:
        """Note a broken place."""
        what, sequence = place
        self.report.add(
            Broken(
                dataset=self.dataset,
                rank=rank,
                position=position,
                what=what,
                why=why,
                sequence=sequence,
            )
        )

    # ---- leaves

    def _extend(self, leaves: list[bytes], told: _Told) -> None:
        """Take leaves that follow one another."""
        begin, end = self.position, self.position + len(leaves)
        known = self.kept.between(begin, end)
        if known and not self._differs:
            found = b"".join(leaves[: len(known) // DIGEST_SIZE])
            if found != known:
                self._differs = True
                index = first_difference(found, known)
                why = f"differs from {self.kept.source}"
                self.broken(Rank.LEAF, told(index), why, begin + index)
        heads = self.kept.heads
        while self.whole and self._head < len(heads) and heads[self._head].size <= end:
            here = heads[self._head].size - self.position
            self._add(leaves[:here])
            leaves = leaves[here:]
            self._compare(told(here - 1) if here else ("the log", None))
        self._add(leaves)
        self.position = end

    def _add(self, leaves: list[bytes]) -> None:
        if self.whole:
            self.tree.extend(leaves)
        self.position += len(leaves)

    def _compare(self, last: tuple[str, int | None]) -> None:
        head = self.kept.heads[self._head]
        self._head += 1
        if self.tree.frontier().root() != head.root and not (self._differs or head.excused):
            self._differs = True
            why = f"one of them differs from {head.source}"
            self.broken(Rank.RANGE, (f"everything up to {last[0]}", None), why, 0)

    def _missing(self, count: int, place: tuple[str, int | None]) -> None:
        """Leaves that are not there, though later ones are."""
        self.broken(Rank.LEAF, place, "is missing", self.position)
        self.position += count
        self.whole = False

    # ---- acts

    def due(self, *, last: bool = False) -> None:
        """Take the acts that stand behind the latest entry, or all that are left."""
        while self._act < len(self.acts):
            act = self.acts[self._act]
            after = act["after_sequence"]
            if not last and not (isinstance(after, int) and after <= self.sequence):
                break
            self._act += 1
            self.report.checked["acts"] += 1
            self._take_act(act)

    def _take_act(self, act: dict[str, Any]) -> None:
        position, told = act["position"], (describe_act(act), None)
        if isinstance(position, int) and position > self.position:
            # Where leaves were kept, all before this one is known to be right.
            sure = self.position < self.kept.size and not self._differs
            what = f"what was written before {told[0]}"
            why = "something of it is missing"
            self.broken(Rank.LEAF if sure else Rank.RANGE, (what, None), why, self.position)
            self.position, self.whole = position, False
        data = self._data_of(act)
        leaf = _NO_LEAF if data is None else leaf_hash(data)
        if data is None:
            self.broken(Rank.LEAF, told, "cannot be read", self.position)
        elif leaf != act["leaf"]:
            self.broken(Rank.LEAF, told, _REWRITTEN, self.position)
        elif (position, act["after_sequence"]) != (self.position, self.sequence):
            self.broken(Rank.LEAF, told, "is not where it was written", self.position)
        self._extend([leaf], lambda _: told)

    def _data_of(self, act: dict[str, Any]) -> bytes | None:
        said = ("position", "after_sequence", "kind", "content", "by")
        try:
            moment = exact(act["acted_at"])
            given = {name: act[name] for name in said}
            return act_data(dataset=self.dataset, acted_at=moment, **given)
        except UNREADABLE:
            return None

    # ---- entries

    def entries(self, connection: Connection, dataset_id: int) -> None:
        """Take all entries of a dataset, and the acts between them."""
        for rows in entries_of(connection, dataset_id):
            self._take(rows)

    def _take(self, rows: Sequence[EntryRow]) -> None:
        self.report.checked["entries"] += len(rows)
        begin = 0
        while begin < len(rows):
            self.due()
            end = begin + self._together(rows, begin)
            if end == begin:
                self._out_of_place(rows[begin])
                begin += self.sequence + 1 != rows[begin][0]
                continue
            self._take_entries(rows[begin:end])
            begin = end

    def _together(self, rows: Sequence[EntryRow], begin: int) -> int:
        """How many entries follow one another before the next act; none if the first does not."""
        count = len(rows) - begin
        if self._act < len(self.acts):
            after = self.acts[self._act]["after_sequence"]
            if isinstance(after, int):
                count = min(count, after - self.sequence)
        if rows[begin + count - 1][0] == self.sequence + count:
            return count
        return int(rows[begin][0] == self.sequence + 1)

    def _out_of_place(self, row: EntryRow) -> None:
        """An entry that does not follow the one before."""
        sequence, expected = row[0], self.sequence + 1
        if isinstance(sequence, int) and sequence > expected:
            last = f"..{sequence - 1}" if sequence - 1 > expected else ""
            self._missing(sequence - expected, (f"entry {expected}{last}", expected))
            self.sequence = sequence - 1
        else:
            self.broken(Rank.LEAF, self._told(row), "has no place in the log", self.position)

    def _take_entries(self, rows: Sequence[EntryRow]) -> None:
        """Entries that follow one another. Fast: nearly all of verification happens here."""
        names = self.names
        assert names is not None  # noqa: S101, the installation's log has no entries
        slots, expected = names.slots, self.sequence
        leaves: list[bytes] = []
        known, middle, end = b"", "", ""
        for row in rows:
            sequence, run, branch, first, steps, event, said, leaf = row
            expected += 1
            if said != known:
                known, (middle, end) = said, _hashed_words(said, names.words)
            try:
                slot = slots.get((run, branch, event)) or names.slot(run, branch, event)
                found = sha256(
                    f"{slot.head}{first}{middle}{slot.tail}{sequence}{_STEPS}{steps}{end}".encode()
                ).digest()
            except UNREADABLE:
                leaves.append(_NO_LEAF)
                self._broken_entry(row, expected, "names what is not there")
                continue
            leaves.append(found)
            if found != leaf or sequence != expected:
                self._broken_entry(row, expected, _REWRITTEN)
            state = slot.branch
            if first != state.next_step or steps.__class__ is not int or steps < 1 or not end:
                self._broken_entry(row, expected, "does not follow on its branch, or is no entry")
                continue
            slot.steps += steps
            if slot.event is not None or state.in_passes:
                self._pass(slot, steps)
            state.next_step = first + steps
        self.sequence = expected
        self._extend(leaves, lambda index: (self._told(rows[index])[0], rows[index][0]))

    def _pass(self, slot: Slot, steps: int) -> None:
        """Follow the passes of a branch."""
        names, event = self.names, slot.event
        assert names is not None  # noqa: S101
        line, place = names.line(slot.branch)
        if event is None:
            names.open_passes[line] = after_steps(place)
            return
        slot.branch.in_passes = True
        span = Span(event=event, steps=steps)
        self.starts[slot.run_id, event] += starts_anew(place, span)
        self.begun[slot.run_id, event] += count_passes_begun(place, span)
        more, names.open_passes[line] = advance(place, span)
        for one, count in more.items():
            self.passes[slot.run_id, one] += count

    def _broken_entry(self, row: EntryRow, sequence: int, why: str) -> None:
        position = self.position + sequence - self.sequence - 1
        self.broken(Rank.LEAF, (self._told(row)[0], sequence), why, position)

    def _told(self, row: EntryRow) -> tuple[str, int | None]:
        """An entry in words."""
        assert self.names is not None  # noqa: S101
        sequence, run, branch, first, steps = row[:5]
        last = first + steps - 1 if isinstance(first, int) and isinstance(steps, int) else "?"
        where = f"{self.names.place(run, branch)}, steps {to_printable(first)}..{last}"
        return f"entry {to_printable(sequence)} ({where})", None

    # ---- the end

    def finish(self) -> None:
        """Take what is left, and require that nothing that was kept is missing."""
        self.due(last=True)
        self.report.checked["leaves"] += self.position
        if self.position < self.kept.longest and not self._differs:
            missing = self.kept.longest - self.position
            what = f"entry {self.sequence + 1}, or an act in its place"
            why = f"is missing, with {missing - 1} leaves after it" if missing > 1 else "is missing"
            self.broken(Rank.LEAF, (what, self.sequence + 1), why, self.position)


def _hashed_words(said: bytes | None, words: Words) -> tuple[str, str]:
    """What is hashed of a mode, a verdict and a time, before the run and after the steps."""
    try:
        mode, verdict, moment = words(said or b"")
    except (ValueError, OverflowError):
        return "", ""
    if (mode, verdict) not in PLAUSIBLE or not is_time(moment):
        return "", ""
    middle = f',"kind":"entry","mode":"{mode}","recorded_at":"{moment[:10]}T{moment[11:]}'
    return middle, f',"verdict":"{verdict}"}}'


def describe_act(act: dict[str, Any]) -> str:
    """An act in words."""
    by = f" by {to_printable(act['by'])}" if act["by"] is not None else ""
    return f"act {to_printable(act['position'])} ({to_printable(act['kind'])}{by})"
