"""The leaves of what a transaction recorded in a book, and the rows that hold them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from accounting.events import Event
from service.acts import Log, act_row, entry_data, exact
from service.books import Book
from service.documents import content_of
from service.merkle import leaf_hash

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Leaves:
    """Rows of entries, acts and log_tiles, and the log that they make."""

    entries: list[Row]
    acts: list[Row]
    tiles: list[Row]
    log: Log


def leaves_of(book: Book, ids: Mapping[Event, int], moment: Any) -> Leaves:
    """What a book has noted, hashed in order; ids are the rows of its events."""
    entries = [*_entries(book, ids)]
    acts: list[Row] = []
    hashes: list[bytes] = []
    begin, first = 0, entries[0][1] if entries else 0
    for sequence, act in book.notes.acts:
        end = max(begin, sequence - first + 1) if entries else 0
        hashes += [row[-1] for row in entries[begin:end]]
        begin = end
        position = book.log.size + len(hashes)
        acts.append(
            act_row(
                act,
                dataset=(book.id, book.name),
                position=position,
                after_sequence=sequence,
                acted_at=moment,
            )
        )
        hashes.append(acts[-1][-1])
    hashes += [row[-1] for row in entries[begin:]]
    if not hashes:
        return Leaves(entries, acts, [], book.log)
    log, tiles = book.log.extended(hashes)
    return Leaves(entries, acts, [(book.id, *tile) for tile in tiles], log)


def _entries(book: Book, ids: Mapping[Event, int]) -> Iterator[Row]:
    """The rows of entries, each with its leaf at its end."""
    known: dict[int, str] = {}
    times: dict[Any, str] = {}
    for noted in book.notes.entries:
        (
            home, sequence, run, branch, first_step, steps, event, mode, verdict, moment,
            run_name, branch_name,
        ) = noted  # fmt: skip
        row = ids[event]
        if (content := known.get(row)) is None:
            content = known[row] = content_of(event)
        if (time := times.get(moment)) is None:
            time = times[moment] = exact(moment)
        data = entry_data(
            dataset=book.name,
            run=run_name,
            branch=branch_name,
            sequence=sequence,
            first_step=first_step,
            steps=steps,
            content=content,
            mode=mode,
            verdict=verdict,
            recorded_at=time,
        )
        yield (
            home, sequence, run, branch, first_step, steps, row, mode, verdict, moment,
            leaf_hash(data),
        )  # fmt: skip
