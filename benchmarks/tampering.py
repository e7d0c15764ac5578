"""What a person with write access to the database may do to it, kind by kind."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Final

from sqlalchemy import Connection, Table, select, update

from benchmarks.rewriting import Log, Row, rows_of, told
from service.ledger.log.notes import NOTE_KIND
from service.schemas.event_codec import canonical
from service.storage.tables import (
    branches,
    corrections,
    datasets,
    distinct_events,
    findings,
    incident_notes,
    incidents,
    lineage,
    releases,
    reservations,
    run_balances,
    runs,
    settings_changes,
)


@dataclass(frozen=True, slots=True)
class Claim:
    """What an edit falsified beside the entries: acts at these positions, or what has no leaf."""

    positions: tuple[int, ...] = ()
    words: str | None = None  # in what verification says of it, where no leaf tells of it


@dataclass(slots=True)
class Scene:
    """A dataset that is about to be edited."""

    connection: Connection
    random: Random
    log: Log
    pairs: list[tuple[int, str, Any]]  # which act tells of which row

    @classmethod
    def open(cls, connection: Connection, chance: Random, name: str) -> "Scene":
        """A dataset by its name."""
        log = Log.read(connection, name)
        return cls(connection, chance, log, told(connection, log))

    def set(self, table: Table, key: Mapping[str, Any], **values: Any) -> None:
        """Change rows."""
        where = [table.c[name] == value for name, value in key.items()]
        self.connection.execute(update(table).where(*where).values(**values))

    def rows(self, table: Table) -> list[Row]:
        """The dataset's rows of a table."""
        home = self.log.home["id"]
        query = select(table)
        if "dataset_id" in table.c:
            return rows_of(self.connection, query.where(table.c.dataset_id == home))
        query = query.join(runs, runs.c.id == table.c.run_id)
        return rows_of(self.connection, query.where(runs.c.dataset_id == home))

    def act_of(self, kind: str, row: Any) -> tuple[int, ...]:
        """The position of the act that tells of a row."""
        acts = {act["id"]: act["position"] for act in self.log.acts}
        return tuple(acts[act] for act, *told_of in self.pairs if told_of == [kind, row])

    def entry(self) -> int:
        """Where some entry is in the list of them."""
        return self.random.randrange(len(self.log.entries))


Edit = Callable[[Scene], Claim | None]  # none where the dataset has nothing of the kind
UNTOLD: Final = Claim()


# ---- entries


def _changed(column: str, value: Callable[[Scene, Row], Any]) -> Edit:
    """A value of an entry is another."""

    def edit(scene: Scene) -> Claim | None:
        if not scene.log.entries:
            return None
        row = scene.log.entries[scene.entry()]
        other = value(scene, row)
        if other is None or other == row[column]:
            return None
        row[column] = other
        scene.log.store()
        return UNTOLD

    return edit


def _other_event(scene: Scene, row: Row) -> Any:
    found = [one["id"] for one in scene.rows(distinct_events) if one["id"] != row["event_id"]]
    return scene.random.choice(found) if found else None


def _earlier(scene: Scene, row: Row) -> Any:
    ago = scene.random.choice(({"microseconds": 1}, {"days": 40}))
    return row["recorded_at"] - timedelta(**ago)


def _deleted(scene: Scene, *, closed: bool) -> Claim | None:
    log = scene.log
    if len(log.entries) < 2:
        return None
    index = scene.random.randrange(len(log.entries) - 1)
    del log.entries[index]
    if closed:
        for row in log.entries[index:]:
            row["sequence"] -= 1
    log.store()
    return UNTOLD


def _swapped(scene: Scene) -> Claim | None:
    rows = scene.log.entries
    if len(rows) < 2:
        return None
    one, other = scene.random.sample(rows, 2)
    one["sequence"], other["sequence"] = other["sequence"], one["sequence"]
    scene.log.entries = sorted(rows, key=lambda row: row["sequence"])
    scene.log.store()
    return UNTOLD


def _inserted(scene: Scene) -> Claim | None:
    rows = scene.log.entries
    if not rows:
        return None
    index = scene.entry()
    stray = rows[index] | {"first_step": 10**9, "steps": 1}  # where its branch has room
    for row in rows[index:]:
        row["sequence"] += 1
    rows.insert(index, stray)
    scene.log.store()
    return UNTOLD


def _moved(scene: Scene) -> Claim | None:
    """An entry is another run's."""
    if not scene.log.entries:
        return None
    row = scene.log.entries[scene.entry()]
    others = [one for one in scene.rows(branches) if one["run_id"] != row["run_id"]]
    if not others:
        return None
    other = scene.random.choice(others)
    row |= {"run_id": other["run_id"], "branch_id": other["id"], "first_step": 10**9}
    scene.log.store()
    return UNTOLD


def _truncated(scene: Scene) -> Claim | None:
    rows = scene.log.entries
    if len(rows) < 3:
        return None
    del rows[-scene.random.randint(1, 3) :]
    scene.log.store()
    return UNTOLD


def _rehashed(scene: Scene) -> Claim | None:
    """An entry is changed, and its own hash made to fit."""
    if not scene.log.entries:
        return None
    row = scene.log.entries[scene.entry()]
    row["steps"] += scene.random.randint(1, 5)
    leaves = [one for _, one in scene.log.in_order()]
    row["leaf"] = scene.log.hashes()[next(i for i, one in enumerate(leaves) if one is row)]
    scene.log.store()
    return UNTOLD


# ---- names and events


def _names_swapped(scene: Scene) -> Claim | None:
    found = scene.rows(runs)
    if len(found) < 2:
        return None
    one, other = scene.random.sample(found, 2)
    claim = Claim(scene.act_of("run", one["id"]) + scene.act_of("run", other["id"]))
    for row, name in ((one, "between"), (other, one["name"]), (one, other["name"])):
        scene.set(runs, {"id": row["id"]}, name=name)
    return claim


def _branch_renamed(scene: Scene) -> Claim | None:
    row = scene.random.choice(scene.rows(branches))
    claim = Claim(scene.act_of("branch", row["id"]))
    scene.set(branches, {"id": row["id"]}, name="another")
    return claim


def _noise(scene: Scene) -> Claim | None:
    found = scene.rows(distinct_events)
    if not found:
        return None
    row = scene.random.choice(found)
    said = json.loads(row["content"])
    said["mechanism"]["noise_multiplier"] += 0.1
    told_of = [
        scene.act_of(kind, one["id"])
        for kind, table in (("correction", corrections), ("reservation", reservations))
        for one in scene.rows(table)
        if one["event_id"] == row["id"]
    ]
    scene.set(distinct_events, {"id": row["id"]}, content=canonical(said))
    used = any(one["event_id"] == row["id"] for one in scene.log.entries)
    claim = Claim(tuple(position for found in told_of for position in found))
    return claim if used or claim.positions else None


# ---- rows that acts tell of


def _fact(
    kind: str, table: Table, column: str, value: Callable[[Any], Any], *, key: str = "id"
) -> Edit:
    """A column of a row that an act tells of."""

    def edit(scene: Scene) -> Claim | None:
        found = [scene.log.home] if table is datasets else scene.rows(table)
        told_of = [one for one in found if scene.act_of(kind, one[key])]
        if not told_of:
            return None
        row = scene.random.choice(told_of)
        other = value(row[column])
        if other == row[column]:
            return None
        scope = {"dataset_id": row["dataset_id"]} if key != "id" else {}
        scene.set(table, {key: row[key], **scope}, **{column: other})
        return Claim(scene.act_of(kind, row[key]))

    return edit


def _removed(kind: str, table: Table, *, key: str = "id") -> Edit:
    """A row that an act tells of is gone."""

    def edit(scene: Scene) -> Claim | None:
        found = [row for row in scene.rows(table) if scene.act_of(kind, row[key])]
        if not found:
            return None
        row = scene.random.choice(found)
        where = [table.c[key] == row[key]]
        if key != "id":
            where.append(table.c.dataset_id == row["dataset_id"])
        scene.connection.execute(table.delete().where(*where))
        return Claim(scene.act_of(kind, row[key]))

    return edit


def _budget_raised(scene: Scene) -> Claim | None:
    """The live limit is another than the latest that was set."""
    home = scene.log.home
    if home["budget_epsilon"] is None:
        return None
    latest = [act["position"] for act in scene.log.acts if act["kind"] == "settings"]
    scene.set(datasets, {"id": home["id"]}, budget_epsilon=home["budget_epsilon"] * 2)
    return Claim((latest[-1],))


def _act_changed(scene: Scene) -> Claim | None:
    act = scene.random.choice(scene.log.acts)
    if scene.random.random() < 0.5:
        act["by"] = "nobody"
    else:
        act["content"] = canonical(json.loads(act["content"]) | {"more": 1})
    scene.log.store()
    return Claim((act["position"],))


def _act_deleted(scene: Scene) -> Claim | None:
    acts = scene.log.acts
    act = acts.pop(scene.random.randrange(len(acts)))
    scene.log.store()
    return Claim((act["position"],))


# ---- what is only added up


def _sum(
    table: Table, column: str, value: Callable[[Any], Any], words: str, *, least: int = 1
) -> Edit:
    """A column that no leaf tells of, but that leaves add up to."""

    def edit(scene: Scene) -> Claim | None:
        found = [scene.log.home] if table is datasets else scene.rows(table)
        found = [one for one in found if one[column] is not None]
        found = [one for one in found if not isinstance(one[column], int) or one[column] >= least]
        if not found:
            return None
        row = scene.random.choice(found)
        keys = [column.name for column in table.primary_key]
        scene.set(table, {key: row[key] for key in keys}, **{column: value(row[column])})
        return Claim(words=words)

    return edit


def _incident_removed(scene: Scene) -> Claim | None:
    """What an act caused is no longer told of."""
    found = [one for one in scene.rows(incidents) if one["kind"] in ("correction", "reopened")]
    if not found:
        return None
    row = scene.random.choice(found)
    scene.connection.execute(incidents.delete().where(incidents.c.id == row["id"]))
    return Claim(words=f"the incident {row['kind']}")


def _less(number: int) -> int:
    return number - 1


def _emptied(text: str) -> str:
    return json.dumps([[0 for _ in part] for part in json.loads(text)], separators=(",", ":"))


EDITS: Final[Mapping[str, Edit]] = {
    "entry: steps": _changed("steps", lambda scene, row: row["steps"] + 1),
    "entry: first step": _changed("first_step", lambda scene, row: row["first_step"] + 10**8),
    "entry: event": _changed("event_id", _other_event),
    "entry: mode": _changed(
        "mode", lambda _, row: "charge" if row["mode"] == "record" else "record"
    ),
    "entry: verdict": _changed(
        "verdict", lambda _, row: "within" if row["verdict"] != "within" else "overdraft"
    ),
    "entry: back-dated": _changed("recorded_at", _earlier),
    "entry: deleted": lambda scene: _deleted(scene, closed=False),
    "entry: deleted, gap closed": lambda scene: _deleted(scene, closed=True),
    "entry: inserted": _inserted,
    "entry: moved to another run": _moved,
    "entry: changed and re-hashed": _rehashed,
    "entries: two swapped": _swapped,
    "entries: the last ones cut off": _truncated,
    "runs: names swapped": _names_swapped,
    "branch: renamed": _branch_renamed,
    "event: noise": _noise,
    "dataset: size": _fact("dataset", datasets, "dataset_size", lambda size: size * 2),
    "dataset: relation": _fact(
        "dataset", datasets, "neighboring_relation", lambda _: "add_or_remove_one"
    ),
    "dataset: lineage": _removed("lineage", lineage, key="ancestor_id"),
    "dataset: limit raised": _budget_raised,
    "settings: history": _fact(
        "settings", settings_changes, "reason", lambda _: "agreed", key="revision"
    ),
    "run: delta": _fact("run", runs, "delta", lambda delta: (delta or 1e-5) / 10),
    "run: release": _fact("run", runs, "release", lambda _: "last_iterate"),
    "run: assumptions": _fact("run", runs, "assumptions", lambda _: '{"convex":true}'),
    "run: plan": _fact("run", runs, "plan", lambda _: "[]"),
    "run: state": _fact("run_state", runs, "state", lambda state: f"{state}-not"),
    "branch: from step": _fact("branch", branches, "from_step", lambda step: step + 1),
    "correction: steps": _fact("correction", corrections, "steps", lambda steps: steps + 1),
    "correction: removed": _removed("correction", corrections),
    "release: removed": _removed("release", releases),
    "finding: claim": _fact("finding", findings, "claim", lambda _: "not_refuted"),
    "finding: removed": _removed("finding", findings),
    "reservation: steps": _fact("reservation", reservations, "steps", lambda steps: steps + 9),
    "reservation: end": _fact("reservation_end", reservations, "end_step", lambda end: end + 1),
    "overdraft: detail": _fact("overdraft", incidents, "detail", lambda _: "{}"),
    "overdraft: place": _fact("overdraft", incidents, "sequence", lambda place: place + 1),
    "overdraft: kind": _fact("overdraft", incidents, "kind", lambda _: "threshold"),
    "overdraft: removed": _removed("overdraft", incidents),
    "note: text": _fact(NOTE_KIND, incident_notes, "text", lambda _: "no harm"),
    "note: removed": _removed(NOTE_KIND, incident_notes),
    "run: key": _fact("run", runs, "by", lambda _: "stranger"),
    "branch: key": _fact("branch", branches, "by", lambda _: "stranger"),
    "branch: key of its entries": _fact("appends", branches, "appended_by", lambda _: "stranger"),
    "reservation: key": _fact("reservation", reservations, "by", lambda _: "stranger"),
    "act: changed": _act_changed,
    "act: deleted": _act_deleted,
    "count of a run": _sum(run_balances, "steps", _less, "run"),
    "count of a dataset": _sum(distinct_events, "steps", _less, "the count of"),
    "sums of a budget": _sum(datasets, "totals", _emptied, "the sums of its budget"),
    "head": _sum(datasets, "head_sequence", _less, "the head"),
    "next step of a branch": _sum(branches, "next_step", _less, "stands at"),
    "size of the log": _sum(datasets, "log_size", _less, "the log's size"),
    "incident: removed": _incident_removed,
}
# Caches, which whoever recomputes them makes right again.
NOT_SKILLED: Final = frozenset({
    "count of a run", "count of a dataset", "sums of a budget", "head", "next step of a branch",
    "entry: first step", "size of the log", "dataset: limit raised", "incident: removed",
})  # fmt: skip
