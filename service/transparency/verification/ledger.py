"""A whole database: every log, and every row that its leaves speak of."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, func, select
from sqlalchemy.sql.elements import ColumnElement

from service.ledger.log.merkle import Frontier
from service.storage.tables import (
    acts,
    branches,
    datasets,
    entries,
    installation,
    log_tiles,
    metadata,
)
from service.transparency.ledger_identity import find_identity
from service.transparency.verification.keys import require_keys
from service.transparency.verification.log import Walk
from service.transparency.verification.reconciliations import Generations, require_suspension
from service.transparency.verification.records import CheckedRecords, require_incidents
from service.transparency.verification.report import Broken, Rank, VerificationReport, to_printable
from service.transparency.verification.rows import UNREADABLE, Names, every, read_any_value
from service.transparency.verification.saved_heads import Kept
from service.transparency.verification.strategies import require_strategies
from service.transparency.verification.totals import Sums, TotalsCheck

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


def _strays() -> Iterator[tuple[str, Select[Any]]]:
    """Rows that refer to none: nothing reads them by what they belong to, so none is compared.

    What an entry refers to besides its dataset is looked up when its leaf is made.
    """
    for table in metadata.sorted_tables:
        for key in sorted(table.foreign_keys, key=lambda one: one.parent.name):
            if table is not entries or key.column.table is datasets:
                yield table.name.replace("_", " "), _of_none(key.parent, key.column.table)
    yield branches.name, _of_none(branches.c.from_branch_id, branches)  # not held by the database


_STRAYS: Final = tuple(_strays())


def verify(
    connection: Connection, kept: Kept | None = None, *, generation: int = 0
) -> VerificationReport:
    """Check everything that a database holds of its ledger.

    Args:
        connection: in a transaction that sees one state throughout; nothing is written.
        kept: what was kept of it elsewhere.
        generation: how many reconciliations the caller knows of. What a later one declared lost
            is compared with the ledger, because an attacker can write that to the database, too.
    """
    report, kept = VerificationReport(), kept or Kept()
    with read_any_value(connection):
        kept = Generations.read(connection, report).excused(kept, report, known=generation)
        _installation(connection, report, kept)
        found = list(every(connection, _DATASETS))
        for dataset_row in found:
            try:
                _dataset(connection, report, kept, dataset_row)
            except UNREADABLE as error:  # what is stored may be anything
                why = f"cannot be compared: {type(error).__name__}"
                _broken(report, dataset_row["name"], "its rows", why)
        TotalsCheck(connection, report).require()
        require_strategies(connection, report)
        _absent(report, kept, {dataset_row["name"] for dataset_row in found})
        for what, query in _STRAYS:
            (row,) = every(connection, query)
            if row["rows"]:
                _broken(report, None, f"{row['rows']} {what}", "belong to nothing that is there")
    return report


def _installation(connection: Connection, report: VerificationReport, kept: Kept) -> None:
    rows = list(every(connection, _INSTALLATION))
    if len(rows) != 1:
        _broken(report, None, "its row", "is missing or is not the only one")
        return
    (row,) = rows
    if kept.ledger_id not in (None, row["ledger_id"]):
        _broken(
            report, None, f"ledger {to_printable(row['ledger_id'])}", "is not the one that was kept"
        )
    own = list(every(connection, _ACTS_OF_NONE))
    walk = Walk(report=report, names=None, acts=own, kept=kept.of(None))
    walk.finish()
    _log(walk, row, {}, tiled=False)
    require_keys(connection, walk)
    require_suspension(report, row, own)
    _identity(report, row["ledger_id"], own)


def _identity(report: VerificationReport, ledger_id: Any, own: list[dict[str, Any]]) -> None:
    """The ledger is the one that the latest act which named it says."""
    try:
        right = find_identity(own) in (None, ledger_id)
    except UNREADABLE:
        right = False
    if not right:
        why = "differs from what the log says of the copy that this is"
        _broken(report, None, f"ledger {to_printable(ledger_id)}", why)


def _dataset(
    connection: Connection, report: VerificationReport, kept: Kept, dataset_row: Mapping[str, Any]
) -> None:
    report.checked["datasets"] += 1
    names = Names.read(connection, dict(dataset_row))
    own = list(every(connection, _ACTS, dataset=dataset_row["id"]))
    walk = Walk(report=report, names=names, acts=own, kept=kept.of(names.dataset))
    walk.entries(connection, dataset_row["id"])
    walk.finish()
    tiles = {
        (one["level"], one["tile_index"]): one["root"]
        for one in every(connection, _TILES, dataset=dataset_row["id"])
    }
    _log(walk, dataset_row, tiles, tiled=True)
    CheckedRecords(connection, walk, dataset_row).require()
    Sums(connection, walk, dataset_row).require()
    require_incidents(connection, walk, dataset_row["id"])


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
        what = f"the log's size and roots, {to_printable(row['log_size'])} leaves"
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


def _absent(report: VerificationReport, kept: Kept, there: Iterable[Any]) -> None:
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
    report: VerificationReport,
    dataset: str | None,
    what: str,
    why: str,
    position: int | None = None,
) -> None:
    report.add(Broken(dataset=dataset, rank=Rank.DERIVED, position=position, what=what, why=why))
