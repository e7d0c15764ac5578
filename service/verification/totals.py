"""What filters have added up, which budgets are held against, added up anew."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from sqlalchemy import Connection, bindparam, select

from service.book_rows import VERSION, run_tally, tally_of
from service.tables import datasets, lineage, runs
from service.tallies import Tally
from service.verification.names import UNREADABLE
from service.verification.report import Broken, Rank, Report, shown
from service.verification.rows import every

_DATASETS: Final = select(datasets).order_by(datasets.c.id)
_LINEAGE: Final = select(lineage)
_RUNS: Final = (
    select(runs)
    .where(runs.c.dataset_id == bindparam("dataset"), runs.c.budget_epsilon.is_not(None))
    .order_by(runs.c.id)
)


@dataclass(slots=True)
class Totals:
    """The sums of every budget; once the counts that they rest on were found to be right."""

    connection: Connection
    report: Report

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
        for run in every(self.connection, _RUNS, dataset=row["id"]):
            self._run(dataset, own, run)

    def _run(self, dataset: str, home: Any, run: Mapping[str, Any]) -> None:
        row: Any = SimpleNamespace(**{**run, "totals": None})
        what = f"run {shown(run['name'])}, the sums of its budget"
        self._same(dataset, run, what, lambda: run_tally(self.connection, home, row))

    def _same(
        self, dataset: str, row: Mapping[str, Any], what: str, tally: Callable[[], Tally | None]
    ) -> None:
        if row["totals"] is None or row["totals_version"] != VERSION:
            return  # they are added up anew before they are used
        self.report.checked["sums"] += 1
        try:
            found = tally()
        except UNREADABLE as error:
            why = f"cannot be added up: {type(error).__name__}"
        else:
            if found is not None and found.stored() == row["totals"]:
                return
            why = "differ from what the entries add up to"
        self.report.add(
            Broken(dataset=dataset, rank=Rank.DERIVED, position=None, what=what, why=why)
        )
