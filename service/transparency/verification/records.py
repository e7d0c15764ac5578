"""Compare rows and incidents with the acts that recorded them: none without the other."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Select, bindparam, or_, select

from service.ledger.incidents import Kind
from service.ledger.log.leaves import exact
from service.ledger.log.row_records import APPENDS, FACTS, STATE_CODES, content_of_row
from service.ledger.reservations import OPEN
from service.schemas.event_codec import canonical
from service.schemas.findings import CONTRADICTS
from service.storage.tables import incidents, runs
from service.transparency.verification.log import Walk, describe_act
from service.transparency.verification.report import Rank, to_printable
from service.transparency.verification.rows import UNREADABLE, every, is_time

_UNSAID: Final = "differs from what is now stored"
_TIMES: Final = frozenset(
    {
        "created_at", "changed_at", "recorded_at", "expires_at", "occurred_at", "requested_at",
        "decided_at", "noted_at",
    }
)  # fmt: skip
_LIVE: Final = ("revision", "budget_epsilon", "budget_delta", "budget_revision", "accept", "frozen")
Content = dict[str, Any]
# An overdraft's incident has an act that equals it, and is compared with the facts.
_KINDS: Final = (
    Kind.CORRECTION, Kind.REOPENED, Kind.SAMPLING_CONTRADICTED, Kind.RANKS_DISAGREE,
    Kind.BATCH_SIZES_REFUTED, Kind.AUDIT_CONTRADICTS,
)  # fmt: skip
_OF_DATASET: Final = (
    select(incidents.c.kind, runs.c.name.label("run"), incidents.c.sequence)
    .join(runs, runs.c.id == incidents.c.run_id)
    .where(
        incidents.c.dataset_id == bindparam("dataset"),
        or_(*(incidents.c.kind == kind.value for kind in _KINDS)),
    )
)
_SAID: Final = frozenset({"correction", "run_state", "finding"})
_Told = tuple[Any, Any, Any]  # its kind, its run, and the latest entry


@cache
def _of_dataset(kind: str) -> Select[Any]:
    """The rows of a kind in one dataset."""
    found = {**FACTS, **STATE_CODES}[kind].subquery()
    return select(found).where(found.c.of_dataset == bindparam("dataset")).order_by(found.c.row)


@dataclass(frozen=True, slots=True)
class _Said:
    """What an act says."""

    act: Mapping[str, Any]
    content: Content


@dataclass(slots=True)
class CheckedRecords:
    """The rows of one dataset, whose log has been walked."""

    connection: Connection
    walk: Walk
    dataset_row: Mapping[str, Any]
    _said: dict[str, list[_Said]] = field(default_factory=lambda: defaultdict(list))
    _granted: dict[tuple[Any, ...], Any] = field(default_factory=dict)  # ends of reservations

    def require(self) -> None:
        """Compare every kind of row with its acts, both ways."""
        for act in self.walk.acts:
            self._read(act)
        for kind in FACTS:
            if kind == "settings":
                self._settings()
            else:
                self._same(kind, list(self._rows(kind)), self._said[kind])
        self._states("run_state", ("run",))
        self._states("reservation_end", ("name", "run", "branch", "first_step"))
        self._states(APPENDS, ("run", "branch"))

    def _read(self, act: Mapping[str, Any]) -> None:
        try:
            content = json.loads(act["content"])
            if not isinstance(content, dict):
                raise ValueError("An act says an object.")
            self._said[str(act["kind"])].append(_Said(act, content))
        except UNREADABLE:
            self._broken_act(act, "cannot be read")

    def _rows(self, kind: str) -> Iterator[Content]:
        """What the rows of a kind say; one that says nothing is broken."""
        for row in every(self.connection, _of_dataset(kind), dataset=self.dataset_row["id"]):
            self.walk.report.checked["rows"] += 1
            try:
                content = content_of_row(row) | _times(row)
                canonical(content)
            except UNREADABLE:
                self._broken(f"{_words(kind)} {to_printable(row['row'])}", "its row cannot be read")
                continue
            if kind == "reservation":
                self._granted[_key(content, _RESERVED)] = _end(content)
            yield content

    def _same(self, kind: str, rows: Sequence[Content], said: Sequence[_Said]) -> None:
        """Every act has its row, and every row its act."""
        left: dict[str, list[Content]] = defaultdict(list)
        for content in rows:
            left[_text(content)].append(content)
        for one in said:
            if found := left.get(_text(one.content)):
                found.pop()
            else:
                self._broken_act(one.act, _UNSAID)
        for content in (one for found in left.values() for one in found):
            self._broken(f"{_words(kind)} {_name_of(content)}", "no act says what its row does")

    # ---- settings

    def _settings(self) -> None:
        """Every revision; the filter of the latest is the dataset's own, of earlier ones was."""
        rows, said = list(self._rows("settings")), self._said["settings"]
        if rows and said:
            latest = max(said, key=lambda one: _number(one.content.get("revision")))
            live = {name: self.dataset_row[name] for name in _LIVE}
            live |= {
                "accept": _parse_json(live["accept"]),
                "budget_filter": rows[-1]["budget_filter"],
            }
            if _text(live) != _text({name: latest.content.get(name) for name in live}):
                self._broken_act(latest.act, f"{_UNSAID} as the dataset's settings", Rank.STATE)
        plain = [_Said(one.act, _without_filter(one.content)) for one in said]
        self._same("settings", [_without_filter(row) for row in rows], plain)

    # ---- what may change

    def _states(self, kind: str, key: tuple[str, ...]) -> None:
        """The latest act of each row says what the row does; none is as the row began."""
        latest = {_key(one.content, key): one for one in self._said[kind]}
        for row in self._rows(kind):
            one = latest.pop(_key(row, key), None)
            if one is not None and _text(one.content) != _text(row):
                self._broken_act(one.act, _UNSAID, Rank.STATE)
            elif one is None and not self._as_begun(kind, row):
                self._broken(f"{_words(kind)} {_name_of(row)}", "no act says what its row does")
        for one in latest.values():
            self._broken_act(one.act, _UNSAID)

    def _as_begun(self, kind: str, row: Content) -> bool:
        if kind == "run_state":
            return row["state"] == "active" and not row["reopened"]
        if kind == APPENDS:
            return row["key"] is None
        end = self._granted.get(_key(row, _RESERVED))
        return (row["state"], row["reason"], row["end_step"]) == (OPEN, None, end)

    # ---- findings

    def _broken_act(self, act: Mapping[str, Any], why: str, rank: Rank = Rank.LEAF) -> None:
        position = act["position"] if isinstance(act["position"], int) else None
        self.walk.broken(rank, (describe_act(dict(act)), None), why, position)

    def _broken(self, what: str, why: str) -> None:
        self.walk.broken(Rank.DERIVED, (what, None), why, None)


def _times(row: Mapping[str, Any]) -> Content:
    """The times of a row that are still text, as acts have them.

    Raises:
        ValueError: one is no time.
    """
    found = {name: value for name, value in row.items() if name in _TIMES and value is not None}
    texts = {name: value for name, value in found.items() if not isinstance(value, datetime)}
    if not all(is_time(value) for value in texts.values()):
        raise ValueError("A time is written as one.")
    return {name: exact(value) for name, value in texts.items()}


_RESERVED: Final = ("name", "run", "branch", "first_step")


def _end(content: Content) -> Any:
    """The step after the last that was reserved; none where one of both is no number."""
    first, steps = content["first_step"], content["steps"]
    return first + steps if isinstance(first, int) and isinstance(steps, int) else None


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def _text(content: Content) -> str:
    """The same for what is equal: SQLite has 0 and 1 for what is false and true."""
    return canonical({name: _number_of(value) for name, value in content.items()})


def _number_of(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _without_filter(content: Content) -> Content:
    return {name: value for name, value in content.items() if name != "budget_filter"}


def _key(content: Content, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(str(content.get(name)) for name in names)


def _name_of(content: Content) -> str:
    named = (content.get(name) for name in ("name", "run", "ancestor", "revision", "incident"))
    return to_printable(next((one for one in named if one is not None), "of no name"))


def _parse_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except UNREADABLE:
        return text


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1


def require_incidents(connection: Connection, walk: Walk, dataset_id: int) -> None:
    """Require the incident of every act that had one, of a dataset whose log has been walked."""
    expected = Counter(_expected_incidents(walk))
    found = every(connection, _OF_DATASET, dataset=dataset_id) if expected else ()
    there = Counter((one["kind"], one["run"], one["sequence"]) for one in found)
    walk.report.checked["incidents"] += expected.total()
    for kind, run, sequence in (expected - there).elements():
        what = (
            f"the incident {kind} of run {to_printable(run)} after entry {to_printable(sequence)}"
        )
        walk.broken(Rank.DERIVED, (what, None), "is missing, though an act says that it was", None)


def _expected_incidents(walk: Walk) -> Iterator[_Told]:
    """The incidents that acts speak of."""
    claims: dict[Any, set[Any]] = defaultdict(set)  # of ranks, by branch
    for act in walk.acts:
        if act["kind"] not in _SAID:
            continue
        try:
            content = json.loads(act["content"])
            kind = _kind_of(act["kind"], content, claims)
            told = kind, content["run"], act["after_sequence"]
            hash(told)
        except UNREADABLE:  # which is said of the act itself
            continue
        if kind is not None:
            yield told


def _kind_of(said: str, content: Any, claims: dict[Any, set[Any]]) -> Kind | None:
    if said == "correction":
        return Kind.CORRECTION
    if said == "run_state":
        return Kind.REOPENED if content["state"] == "reopened" else None
    kind, claim = content["of_kind"], content["claim"]
    if kind == "rank":  # one that says what none before it did, while there was another
        before = claims[content["run"], content["branch"]]
        differs = bool(before) and claim not in before
        before.add(claim)
        return Kind.RANKS_DISAGREE if differs else None
    if kind == "audit_result":
        return Kind.AUDIT_CONTRADICTS if CONTRADICTS in claim.split() else None
    return {
        ("sampling", "contradicted"): Kind.SAMPLING_CONTRADICTED,
        ("batch_sizes", "refuted"): Kind.BATCH_SIZES_REFUTED,
    }.get((kind, claim))
