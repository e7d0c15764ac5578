"""What an attacker needs who may write everything: the rows of a log, and to make them fit again.

Leaves are put together here from the description of the format alone, not by the service's code.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, insert, select, text, update

from accounting.event_counts import (
    UNPLACED,
    OpenPass,
    Place,
    advance,
    count_passes_begun,
    starts_anew,
)
from accounting.events import Event, Span
from service.ledger.append.admission import count_reserved
from service.ledger.budgets.pass_positions import opening_place, position_of
from service.ledger.budgets.steps_and_passes import by_pass
from service.ledger.log.merkle import Frontier
from service.ledger.log.row_records import FACTS, STATE_CODES, content_of_row, statement
from service.schemas.event_codec import Line, Lines, Taken, canonical, content_of, event_of
from service.storage.tables import (
    acts,
    branches,
    datasets,
    distinct_events,
    entries,
    log_tiles,
    reservations,
    run_balances,
    runs,
)

Row = dict[str, Any]
_COUNTS: Final = (
    "steps", "passes", "starts", "reserved_steps", "reserved_passes", "begun", "reserved_begun",
)  # fmt: skip


@contextmanager
def undone(engine: Engine) -> Iterator[Connection]:
    """A transaction that is rolled back, in which the database refuses nothing."""
    with engine.connect() as connection:
        sqlite = connection.dialect.name == "sqlite"
        driver: Any = connection.connection.driver_connection
        if sqlite:  # only outside a transaction
            driver.execute("PRAGMA foreign_keys=OFF")
        changed = connection.begin()
        try:
            if sqlite:
                query = text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
                for name in connection.scalars(query).all():
                    connection.execute(text(f"DROP TRIGGER {name}"))
            else:
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            yield connection
        finally:
            changed.rollback()
            if sqlite:
                driver.execute("PRAGMA foreign_keys=ON")


def rows_of(connection: Connection, query: Any) -> list[Row]:
    """Rows as dictionaries."""
    return [dict(row._mapping) for row in connection.execute(query)]


@dataclass(slots=True)
class Log:
    """A dataset's entries and acts, to be changed in memory and stored again."""

    connection: Connection
    home: Row  # of datasets
    entries: list[Row]
    acts: list[Row]

    @classmethod
    def read(cls, connection: Connection, name: str) -> "Log":
        """Those of a dataset."""
        (home,) = rows_of(connection, select(datasets).where(datasets.c.name == name))
        of_home = select(entries).where(entries.c.dataset_id == home["id"])
        written = select(acts).where(acts.c.dataset_id == home["id"])
        return cls(
            connection,
            home,
            rows_of(connection, of_home.order_by(entries.c.sequence)),
            rows_of(connection, written.order_by(acts.c.position)),
        )

    def store(self) -> None:
        """Put them in the place of what is there."""
        for table, rows in ((entries, self.entries), (acts, self.acts)):
            self.connection.execute(table.delete().where(table.c.dataset_id == self.home["id"]))
            if rows:
                self.connection.execute(insert(table), rows)

    def in_order(self) -> list[tuple[str, Row]]:
        """Leaves as they stand in the log."""
        found = [((row["sequence"], 0, 0), "entry", row) for row in self.entries]
        found += [((row["after_sequence"], 1, row["position"]), "act", row) for row in self.acts]
        return [(kind, row) for _, kind, row in sorted(found, key=lambda one: one[0])]

    def hashes(self) -> list[bytes]:
        """The hash of every leaf, from its row."""
        find = self.connection.execute
        home, said = self.home["id"], {"dataset": self.home["name"]}
        own = select(runs.c.id, runs.c.name).where(runs.c.dataset_id == home)
        names: dict[int, str] = {row.id: row.name for row in find(own)}
        found = find(select(branches.c.id, branches.c.name))
        branch_names: dict[int, str] = {row.id: row.name for row in found}
        found = find(select(distinct_events.c.id, distinct_events.c.content))
        events: dict[int, str] = {row.id: row.content for row in found}
        hashed = []
        for kind, row in self.in_order():
            if kind == "act":
                data = said | _of(row, "position", "after_sequence", "kind", "by")
                data |= {"content": json.loads(row["content"]), "acted_at": _time(row["acted_at"])}
            else:
                data = said | _of(row, "sequence", "first_step", "steps", "mode", "verdict")
                data |= {
                    "kind": kind,
                    "run": names.get(row["run_id"]),
                    "branch": branch_names.get(row["branch_id"]),
                    "event": json.loads(events[row["event_id"]]),
                    "recorded_at": _time(row["recorded_at"]),
                }
            hashed.append(_leaf(data))
        return hashed


def _of(row: Row, *names: str) -> Row:
    return {name: row[name] for name in names}


def _time(moment: Any) -> str:
    return f"{moment.strftime('%Y-%m-%dT%H:%M:%S.%f')}+00:00"


def _leaf(data: Row) -> bytes:
    shown = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(b"\0" + shown.encode()).digest()


# ---- rows and the acts that tell of them


def told(connection: Connection, log: Log) -> list[tuple[int, str, Any]]:
    """(act, kind, row) for each act that tells of a row: of a state, the latest."""
    found = []
    for kind in (*FACTS, *STATE_CODES):
        rows: dict[str, list[Any]] = defaultdict(list)
        for row in _of_home(connection, kind, log.home["id"]):
            rows[canonical(content_of_row(row))].append(row["row"])
        for act in reversed(log.acts):
            left = rows.get(canonical(json.loads(act["content"]))) if act["kind"] == kind else None
            found += [(act["id"], kind, left.pop())] if left else []
    return found


def _of_home(connection: Connection, kind: str, home: int) -> list[Row]:
    return [row for row in rows_of(connection, statement(kind)) if row["of_dataset"] == home]


def _retell(log: Log, pairs: list[tuple[int, str, Any]]) -> None:
    """Let acts say what rows do now; those of rows that are gone go, too."""
    rows = {
        (kind, row["row"]): canonical(content_of_row(row))
        for kind in (*FACTS, *STATE_CODES)
        for row in _of_home(log.connection, kind, log.home["id"])
    }
    told_of = {act: (kind, row) for act, kind, row in pairs}
    kept = []
    for act in log.acts:
        key = told_of.get(act["id"])
        if key is None or key in rows:
            kept.append(act if key is None else act | {"content": rows[key]})
    log.acts = kept


# ---- everything fits again


def refit(connection: Connection, name: str, pairs: list[tuple[int, str, Any]]) -> None:
    """Make everything that is stored of a dataset agree with its rows as they are now."""
    log = Log.read(connection, name)
    _retell(log, pairs)
    _renumber(log)
    hashes = log.hashes()
    for (_, row), leaf in zip(log.in_order(), hashes, strict=True):
        row["leaf"] = leaf
    log.store()
    frontier, tiles = Frontier().extended(hashes)
    home = log.home["id"]
    connection.execute(log_tiles.delete().where(log_tiles.c.dataset_id == home))
    for level, index, root in tiles:
        row = {"dataset_id": home, "level": level, "tile_index": index, "root": root}
        connection.execute(insert(log_tiles).values(row))
    values = {
        "log_size": frontier.size,
        "log_frontier": frontier.to_bytes(),
        "head_sequence": len(log.entries),
        "totals": None,  # are added up anew
    }
    connection.execute(update(datasets).where(datasets.c.id == home).values(values))
    connection.execute(update(runs).where(runs.c.dataset_id == home).values(totals=None))
    _recount(log)


def _renumber(log: Log) -> None:
    """Sequences, positions and steps without gaps."""
    begun = rows_of(log.connection, select(branches.c.id, branches.c.from_step))
    steps = {row["id"]: row["from_step"] for row in begun}
    sequence = 0
    for position, (kind, row) in enumerate(log.in_order()):
        if kind == "act":
            row["position"], row["after_sequence"] = position, sequence
            continue
        sequence += 1
        row["sequence"], row["first_step"] = sequence, steps[row["branch_id"]]
        steps[row["branch_id"]] += row["steps"]


class _Counts:
    """Counts anew, from the entries and the reservations of one dataset."""

    def __init__(self, log: Log) -> None:
        query = select(distinct_events).where(distinct_events.c.dataset_id == log.home["id"])
        rows = rows_of(log.connection, query)
        self.events = {row["id"]: event_of(row["content"], 60000) for row in rows}
        self.ids = {content_of(event): number for number, event in self.events.items()}
        found = rows_of(log.connection, select(branches))
        self.lines = Lines(
            Taken(by=row["id"], of=row["from_branch_id"], step=row["from_step"])
            for row in found
            if row["takes_pass"]
        )
        self.branches = {row["id"]: row for row in found}
        self.passes: dict[Line, Place] = {}
        self.counts: dict[tuple[Any, int], list[int]] = defaultdict(lambda: [0] * len(_COUNTS))

    def place(self, branch: int, step: int) -> Place:
        """Where a branch stands among its passes."""
        row, line = self.branches[branch], self.lines.at(branch, step)
        opens = opening_place(row["name"], row["order"], row["noise"])
        known = None if row["takes_pass"] else opens
        return self.passes.get(line, UNPLACED if line[1] else known)

    def add(self, run: int, event: Event, index: int, more: int) -> None:
        """Count for a run, and for the dataset."""
        for owner in (run, None):
            self.counts[owner, self.ids[content_of(event)]][index] += more

    def entry(self, row: Row) -> None:
        """Count an entry."""
        event, branch = self.events[row["event_id"]], row["branch_id"]
        self.add(row["run_id"], event, 0, row["steps"])
        span = Span(event=event, steps=row["steps"])
        before = self.place(branch, row["first_step"])
        if by_pass(event):
            self.add(row["run_id"], event, 2, int(starts_anew(before, span)))
            self.add(row["run_id"], event, 5, count_passes_begun(before, span))
        more, self.passes[self.lines.at(branch, row["first_step"])] = advance(before, span)
        for one, number in more.items():
            self.add(row["run_id"], one, 1, number)

    def lease(self, row: Row, stands: int) -> None:
        """Count what a reservation still holds."""
        left = row["end_step"] - max(row["first_step"], stands)
        if left > 0:
            spans = [Span(event=self.events[row["event_id"]], steps=left)]
            for one, held in count_reserved(None, spans).items():
                self.add(row["run_id"], one, 3, held.steps)
                self.add(row["run_id"], one, 4, held.passes)
                self.add(row["run_id"], one, 6, held.begun)


def _recount(log: Log) -> None:
    """Counts, and where branches stand, as entries and reservations make them."""
    connection, home, counts = log.connection, log.home["id"], _Counts(log)
    for row in log.entries:
        counts.entry(row)
    query = select(branches).join(runs, runs.c.id == branches.c.run_id)
    for branch in rows_of(connection, query.where(runs.c.dataset_id == home)):
        own = [row for row in log.entries if row["branch_id"] == branch["id"]]
        stands = own[-1]["first_step"] + own[-1]["steps"] if own else branch["from_step"]
        leases = select(reservations).where(reservations.c.branch_id == branch["id"])
        for lease in rows_of(connection, leases):
            counts.lease(lease, stands)
        found = counts.place(branch["id"], stands)
        values = {
            "next_step": stands,
            "pass_event_id": (
                counts.ids[content_of(found.event)] if isinstance(found, OpenPass) else None
            ),
            "pass_position": position_of(found),
        }
        _set(connection, branches, branches.c.id == branch["id"], values)
    _store(connection, home, counts.counts)


def _store(connection: Connection, home: int, counts: dict[tuple[Any, int], list[int]]) -> None:
    nothing = dict.fromkeys(_COUNTS, 0)
    own = select(runs.c.id).where(runs.c.dataset_id == home)
    _set(connection, distinct_events, distinct_events.c.dataset_id == home, nothing)
    connection.execute(run_balances.delete().where(run_balances.c.run_id.in_(own)))
    for (run, event), found in counts.items():
        values = dict(zip(_COUNTS, found, strict=True))
        if run is None:
            _set(connection, distinct_events, distinct_events.c.id == event, values)
        else:
            connection.execute(insert(run_balances).values(run_id=run, event_id=event, **values))


def _set(connection: Connection, table: Table, where: Any, values: Row) -> None:
    connection.execute(update(table).where(where).values(values))
