"""A whole database: every log, and every row that its leaves speak of."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, select
from sqlalchemy.sql.elements import ColumnElement

from service.epochs import abandoned_by
from service.merkle import Frontier
from service.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    installation,
    log_tiles,
    runs,
)
from service.verification.facts import Facts
from service.verification.kept import Head, Kept
from service.verification.keys import require_keys
from service.verification.names import UNREADABLE, Names
from service.verification.report import Broken, Rank, Report, shown
from service.verification.rows import distrusted, every
from service.verification.sums import Sums
from service.verification.totals import Totals
from service.verification.walk import Walk

_INSTALLATION: Final = select(installation)
_DATASETS: Final = select(
    *(one for one in datasets.c if one.name not in ("created_at", "totals", "request"))
).order_by(datasets.c.id)
_ACTS: Final = (
    select(acts).where(acts.c.dataset_id == bindparam("dataset")).order_by(acts.c.position)
)
_ACTS_OF_NONE: Final = select(acts).where(acts.c.dataset_id.is_(None)).order_by(acts.c.position)
_TILES: Final = select(log_tiles).where(log_tiles.c.dataset_id == bindparam("dataset"))


def _of_none(column: ColumnElement[Any], table: Any) -> Select[Any]:
    """How many rows belong to nothing that is there."""
    strays = column.is_not(None) & column.not_in(select(table.c.id))
    return select(func.count().label("rows")).where(strays)


_STRAYS: Final = {
    "entries": _of_none(entries.c.dataset_id, datasets),
    "acts": _of_none(acts.c.dataset_id, datasets),
    "runs": _of_none(runs.c.dataset_id, datasets),
    "branches": _of_none(branches.c.run_id, runs),
    "distinct events": _of_none(distinct_events.c.dataset_id, datasets),
}


def verify(connection: Connection, kept: Kept | None = None, *, epoch: int = 0) -> Report:
    """Check everything that a database holds of its ledger.

    Args:
        connection: in a transaction that sees one state throughout; nothing is written.
        kept: what was kept of it elsewhere.
        epoch: how many reconciliations who asks knows of. What a later one declared lost is held
            against the ledger all the same: whoever can write to the database can write that, too.
    """
    report, kept = Report(), kept or Kept()
    with distrusted(connection):
        kept = _still(connection, report, kept, epoch)
        _installation(connection, report, kept)
        found = list(every(connection, _DATASETS))
        for home in found:
            try:
                _dataset(connection, report, kept, home)
            except UNREADABLE as error:  # what is stored may be anything
                why = f"cannot be compared: {type(error).__name__}"
                _broken(report, home["name"], "its rows", why)
        Totals(connection, report).require()
        _absent(report, kept, {home["name"] for home in found})
        for what, query in _STRAYS.items():
            (row,) = every(connection, query)
            if row["rows"]:
                _broken(report, None, f"{row['rows']} {what}", "belong to nothing that is there")
    return report


def _still(connection: Connection, report: Report, kept: Kept, epoch: int) -> Kept:
    """What was kept, without what an admin declared lost when the ledger was reconciled."""
    logs = {}
    for name, log in kept.logs.items():
        gone = [head for head in log.heads if _abandoned(connection, report, name, head, epoch)]
        # Leaves are those of the head that was signed with them.
        leaves = b"" if any(head.size == log.size for head in gone) else log.leaves
        left = tuple(head for head in log.heads if head not in gone)
        logs[name] = replace(log, leaves=leaves, heads=left)
    return replace(kept, logs=logs)


def _abandoned(
    connection: Connection, report: Report, name: str | None, head: Head, epoch: int
) -> bool:
    try:
        by = abandoned_by(connection, name, size=head.size, epoch=head.epoch)
    except UNREADABLE:
        return False  # the log of the installation says what is wrong with it
    if by is None:
        return False
    if by.epoch > epoch:
        report.notes.append(
            f"{shown(by.text)} If you know of that, say --epoch {by.epoch}: then what it declared "
            "lost is not held against the ledger."
        )
        return False
    log = "the installation" if name is None else f"dataset {shown(name)}"
    said = f"{head.source} is not held against {log}, whose log is shorter since. {shown(by.text)}"
    report.notes.append(said)
    return True


def _installation(connection: Connection, report: Report, kept: Kept) -> None:
    rows = list(every(connection, _INSTALLATION))
    if len(rows) != 1:
        _broken(report, None, "its row", "is missing or is not the only one")
        return
    (row,) = rows
    if kept.ledger_id not in (None, row["ledger_id"]):
        _broken(report, None, f"ledger {shown(row['ledger_id'])}", "is not the one that was kept")
    own = list(every(connection, _ACTS_OF_NONE))
    walk = Walk(report=report, names=None, acts=own, kept=kept.of(None))
    walk.finish()
    _log(walk, row, {}, tiled=False)
    require_keys(connection, walk)


def _dataset(connection: Connection, report: Report, kept: Kept, home: Mapping[str, Any]) -> None:
    report.checked["datasets"] += 1
    names = Names.read(connection, dict(home))
    own = list(every(connection, _ACTS, dataset=home["id"]))
    walk = Walk(report=report, names=names, acts=own, kept=kept.of(names.dataset))
    walk.entries(connection, home["id"])
    walk.finish()
    tiles = {
        (one["level"], one["tile_index"]): one["root"]
        for one in every(connection, _TILES, dataset=home["id"])
    }
    _log(walk, home, tiles, tiled=True)
    Facts(connection, walk, home).require()
    Sums(connection, walk, home).require()


def _log(
    walk: Walk, row: Mapping[str, Any], tiles: Mapping[tuple[Any, Any], Any], *, tiled: bool
) -> None:
    """What is stored of a log as a whole."""
    report, dataset, found = walk.report, walk.dataset, walk.tree.frontier()
    if not walk.whole:
        return  # leaves are missing, so that nothing can be equal
    try:
        stored = Frontier.from_bytes(row["log_size"], row["log_frontier"] or b"")
    except UNREADABLE:
        stored = None
    report.checked["tiles"] += len(tiles)
    if stored != found:
        what = f"the log's size and roots, {shown(row['log_size'])} leaves"
        _broken(report, dataset, what, f"differ from what {found.size} leaves add up to")
    if tiled and tiles != walk.tree.tiles:
        wrong = [
            key
            for key in tiles.keys() | walk.tree.tiles.keys()
            if tiles.get(key) != walk.tree.tiles.get(key)
        ]
        first = min(wrong, key=lambda key: _begin(*key))
        what = f"the stored root of the leaves from {_begin(*first)} on"
        _broken(report, dataset, what, "differs from what they add up to", _begin(*first))


def _begin(level: Any, index: Any) -> int:
    """The first leaf of a tile, wherever a stored one says it is."""
    known = isinstance(level, int) and isinstance(index, int) and 0 <= level < 8
    return index * 256**level if known else 0


def _absent(report: Report, kept: Kept, there: Iterable[Any]) -> None:
    """Datasets that were kept and are gone."""
    for name, log in kept.logs.items():
        if name is not None and name not in there and log.longest:
            report.add(
                Broken(
                    dataset=name,
                    rank=Rank.LEAF,
                    position=0,
                    what="the whole dataset",
                    why=f"is missing; it had {log.longest} leaves or more",
                )
            )


def _broken(
    report: Report, dataset: str | None, what: str, why: str, position: int | None = None
) -> None:
    report.add(Broken(dataset=dataset, rank=Rank.DERIVED, position=position, what=what, why=why))
