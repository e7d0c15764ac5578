"""Compare stored totals with what the entries add up to."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, bindparam, select

from accounting.event_counts import OpenPass
from accounting.events import Event, Span
from service.ledger.append.admission import count_reserved
from service.ledger.append.state_rows import VERSION, run_tally, tally_of
from service.ledger.budgets.accumulator import BudgetAccumulator
from service.ledger.budgets.budget import PLAN
from service.ledger.budgets.pass_positions import position_of
from service.ledger.budgets.steps_and_passes import by_pass
from service.schemas.event_codec import MAIN, content_of, event_of, plan_of
from service.storage.tables import (
    branches,
    corrections,
    datasets,
    distinct_events,
    entries,
    lineage,
    reservations,
    run_balances,
    runs,
)
from service.transparency.verification.log import Walk
from service.transparency.verification.report import Broken, Rank, VerificationReport, to_printable
from service.transparency.verification.rows import UNREADABLE, BranchState, Names, every

_AHEAD: Final = ("steps", "passes", "begun")  # are kept of what is reserved, too
_KEPT: Final = (*_AHEAD, "starts", *(f"reserved_{name}" for name in _AHEAD))
_DATASET: Final[BindParameter[Any]] = bindparam("dataset")
_OF_DATASET: Final = select(
    distinct_events.c.id,
    distinct_events.c.content,
    distinct_events.c.by_pass,
    *(distinct_events.c[name] for name in _KEPT),
).where(distinct_events.c.dataset_id == _DATASET)
_OF_RUNS: Final = (
    select(run_balances)
    .join(runs, runs.c.id == run_balances.c.run_id)
    .where(runs.c.dataset_id == _DATASET)
)
_RESERVATIONS: Final = (
    select(
        reservations.c.branch_id,
        reservations.c.name,
        reservations.c.event_id,
        reservations.c.first_step,
        reservations.c.end_step,
    )
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(reservations.c.dataset_id == _DATASET)
    .order_by(reservations.c.branch_id, reservations.c.first_step)
)
_RUNS: Final = select(runs).where(runs.c.dataset_id == _DATASET).order_by(runs.c.id)
_CORRECTED: Final = select(corrections.c.run_id).where(corrections.c.dataset_id == _DATASET)
_ENTRIES: Final = (
    select(entries.c.branch_id, entries.c.first_step, entries.c.steps, entries.c.event_id)
    .where(entries.c.run_id == bindparam("run"))
    .order_by(entries.c.sequence)
)
_REFOLDED: Final = "differs from what the entries add up to"
_Count = tuple[int, ...]  # as _KEPT
Held = dict[Any, Counter[tuple[Event, str]]]  # by run: (event, one of _AHEAD)
_DATASETS: Final = select(datasets).order_by(datasets.c.id)
_LINEAGE: Final = select(lineage)
_RUN_TOTALS: Final = (
    select(runs)
    .where(runs.c.dataset_id == bindparam("dataset"), runs.c.budget_epsilon.is_not(None))
    .order_by(runs.c.id)
)


@dataclass(slots=True)
class Sums:
    """What stands beside the entries of one dataset, whose log has been walked."""

    connection: Connection
    walk: Walk
    dataset_row: Mapping[str, Any]

    @property
    def names(self) -> Names:
        """The dataset's rows."""
        assert self.walk.names is not None  # noqa: S101
        return self.walk.names

    def require(self) -> None:
        """Compare everything."""
        if self.dataset_row["head_sequence"] != self.walk.sequence:
            known = isinstance(self.dataset_row["head_sequence"], int)
            least = min(self.dataset_row["head_sequence"], self.walk.sequence) if known else 0
            what = f"the head, {to_printable(self.dataset_row['head_sequence'])}"
            self._broken(what, f"is not the last entry, {self.walk.sequence}", least + 1)
        for state in self.names.branches.values():
            self._branch(state)
        try:
            expected = self._expected()
        except UNREADABLE as error:
            self._broken("its reservations", f"cannot be counted: {error}")
            return
        self._counts(expected)
        if self.walk.report.sound(self.walk.dataset):  # else they rest on what is broken
            self._plans()

    def _broken(self, what: str, why: str, sequence: int | None = None) -> None:
        self.walk.broken(Rank.DERIVED, (what, sequence), why, None)

    def _branch(self, state: BranchState) -> None:
        """Where a branch stands, and the pass that is open on it."""
        row = state.row
        place = self.names.place(row["run_id"], row["id"])
        self.walk.report.checked["branches"] += 1
        if row["next_step"] != state.next_step:
            self._broken(
                place, f"stands at {to_printable(row['next_step'])}, its entries end elsewhere"
            )
        told = (row["pass_event_id"], row["pass_position"])
        _, found = self.names.line(state)
        content = content_of(found.event) if isinstance(found, OpenPass) else None
        same = (self.names.events.get(told[0]), told[1]) == (content, position_of(found))
        if not same:
            self._broken(place, "has another pass open than its entries leave")

    # ---- counts

    def _expected(self) -> tuple[dict[tuple[Any, str], _Count], dict[str, _Count]]:
        """The counts by run and content, and those of the dataset by content."""
        walk, names = self.walk, self.names
        every_lease, named = self._held(named=False), self._held(named=True)
        runs_: dict[tuple[Any, str], list[int]] = defaultdict(lambda: [0] * len(_KEPT))
        total: dict[str, list[int]] = defaultdict(lambda: [0] * len(_KEPT))
        for slot in names.slots.values():
            content = names.events[slot.event_id]
            runs_[slot.run_id, content][0] += slot.steps
            total[content][0] += slot.steps
        for index, counted in ((1, walk.passes), (2, walk.begun), (3, walk.starts)):
            for (run, event), count in counted.items():
                runs_[run, content_of(event)][index] += count
                total[content_of(event)][index] += count
        for held, of_run in ((named, True), (every_lease, False)):
            for run, counts in held.items():
                for (event, what), count in counts.items():
                    content, index = content_of(event), _KEPT.index(f"reserved_{what}")
                    (runs_[run, content] if of_run else total[content])[index] += count
        return _nonzero(runs_), _nonzero(total)

    def _held(self, *, named: bool) -> Held:
        """What is held ahead by each run, from the rows of its reservations alone."""
        spans: dict[Any, list[Span]] = defaultdict(list)
        names = self.names
        for reservation in every(self.connection, _RESERVATIONS, dataset=self.dataset_row["id"]):
            state = names.branches[reservation["branch_id"]]
            steps = reservation["end_step"] - max(reservation["first_step"], state.next_step)
            if steps > 0 and (reservation["name"] is not None or not named):
                event = event_of(names.events[reservation["event_id"]], names.dataset_size)
                spans[reservation["branch_id"]].append(Span(event=event, steps=steps))
        found: Held = defaultdict(Counter)
        for branch, ahead_of_it in spans.items():
            state = names.branches[branch]
            counts = count_reserved(names.line(state)[1], ahead_of_it)
            for event, count in counts.items():
                for what in _AHEAD:
                    found[state.row["run_id"]][event, what] += getattr(count, what)
        return found

    def _counts(self, expected: tuple[dict[tuple[Any, str], _Count], dict[str, _Count]]) -> None:
        of_runs, total = expected
        names, seen = self.names, set()
        for row in every(self.connection, _OF_DATASET, dataset=self.dataset_row["id"]):
            content, counts = row["content"], tuple(row[name] for name in _KEPT)
            if counts != total.pop(content, (0,) * len(_KEPT)) or not self._marked(row):
                self._broken(f"the count of {to_printable(content)}", _REFOLDED)
        for row in every(self.connection, _OF_RUNS, dataset=self.dataset_row["id"]):
            key = row["run_id"], names.events.get(row["event_id"], "")
            counts = tuple(row[name] for name in _KEPT)
            seen.add(key)
            if counts != of_runs.get(key, (0,) * len(_KEPT)):
                self._broken(self._place(*key), _REFOLDED)
        for content in total:
            self._broken(f"the count of {to_printable(content)}", "is missing")
        for key in of_runs.keys() - seen:
            self._broken(self._place(*key), "is missing")
        self.walk.report.checked["counts"] += len(of_runs) + len(names.events)

    def _marked(self, row: Mapping[str, Any]) -> bool:
        """Whether an event whose passes count is known as such: others are not added up again."""
        try:
            event = event_of(row["content"], self.names.dataset_size)
        except UNREADABLE:
            return False
        return bool(row["by_pass"]) == by_pass(event)

    def _place(self, run: Any, content: str) -> str:
        return f"run {to_printable(self.names.runs.get(run))}, the count of {to_printable(content)}"

    # ---- plans

    def _plans(self) -> None:
        """Whether runs whose plan holds their budget kept to it."""
        found = list(every(self.connection, _RUNS, dataset=self.dataset_row["id"]))
        planned = [run for run in found if _held_by_plan(run)]
        corrected = {
            one["run_id"]
            for one in (
                every(self.connection, _CORRECTED, dataset=self.dataset_row["id"])
                if planned
                else ()
            )
        }
        for run in found:
            kept = None
            if run in planned:
                kept = run["id"] not in corrected and self._kept_to(run)
            if run["on_plan"] is None or kept is None:
                right = run["on_plan"] is kept
            else:
                right = bool(run["on_plan"]) == kept
            if not right:
                self._broken(f"run {run['name']}", "says of its plan what its entries do not")

    def _kept_to(self, run: Mapping[str, Any]) -> bool:
        """Whether every entry of a run is what its plan has at its place."""
        names = self.names
        try:
            plan = plan_of(run["plan"], names.dataset_size)
        except UNREADABLE:
            return False
        places, end = [], 0
        for span in plan:
            places.append((end, end + span.steps, content_of(span.event)))
            end += span.steps
        for one in every(self.connection, _ENTRIES, run=run["id"]):
            first, last = one["first_step"], one["first_step"] + one["steps"]
            if names.branches[one["branch_id"]].row["name"] != MAIN or last > end:
                return False
            content = names.events[one["event_id"]]
            if any(low < last and first < high and content != said for low, high, said in places):
                return False
        return True


def _nonzero(counts: Mapping[Any, list[int]]) -> dict[Any, Any]:
    return {key: tuple(found) for key, found in counts.items() if any(found)}


def _held_by_plan(run: Mapping[str, Any]) -> bool:
    """Whether a run was registered with a plan that was to hold its own budget."""
    try:
        return PLAN in json.loads(run["budget_filter"] or "{}")
    except UNREADABLE:
        return False  # the run's act says what is wrong with it


@dataclass(slots=True)
class TotalsCheck:
    """The sums of every budget; once the counts that they rest on were found to be right."""

    connection: Connection
    report: VerificationReport

    def require(self) -> None:
        """Compare all of them, but those that rest on what is broken."""
        rows = list(every(self.connection, _DATASETS))
        names = {row["id"]: row["name"] for row in rows}
        rest_on: dict[Any, set[Any]] = defaultdict(set)
        for one in every(self.connection, _LINEAGE):
            rest_on[one["ancestor_id"]].add(names.get(one["dataset_id"]))
        sound = {name for name in names.values() if self.report.sound(name)}
        for row in rows:
            if rest_on[row["id"]] | {row["name"]} <= sound:
                self._dataset(row)

    def _dataset(self, row: Mapping[str, Any]) -> None:
        dataset = row["name"]
        own: Any = SimpleNamespace(**{**row, "totals": None})
        self._same(dataset, row, "the sums of its budget", lambda: tally_of(self.connection, own))
        for run in every(self.connection, _RUN_TOTALS, dataset=row["id"]):
            self._run(dataset, own, run)

    def _run(self, dataset: str, dataset_row: Any, run: Mapping[str, Any]) -> None:
        row: Any = SimpleNamespace(**{**run, "totals": None})
        what = f"run {to_printable(run['name'])}, the sums of its budget"
        self._same(dataset, run, what, lambda: run_tally(self.connection, dataset_row, row))

    def _same(
        self,
        dataset: str,
        row: Mapping[str, Any],
        what: str,
        accumulator: Callable[[], BudgetAccumulator | None],
    ) -> None:
        if row["totals"] is None or row["totals_version"] != VERSION:
            return  # they are added up anew before they are used
        self.report.checked["sums"] += 1
        try:
            found = accumulator()
        except UNREADABLE as error:
            why = f"cannot be added up: {type(error).__name__}"
        else:
            if found is not None and found.stored() == row["totals"]:
                return
            why = "differ from what the entries add up to"
        self.report.add(
            Broken(dataset=dataset, rank=Rank.DERIVED, position=None, what=what, why=why)
        )
