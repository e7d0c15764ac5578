"""What must be true of a ledger after a race, from its rows and from what the clients were told.

The counts and costs are worked out here anew, by arithmetic of its own: steps and passes are
counted from the rows, and the three kinds of step of benchmarks/trainers.py cost what a Gaussian
release costs. Only the comparison with the fold of
`service.guarantees.guarantee` uses the service's code.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from benchmarks.trainers import CYCLE, KINDS, NOISES, kind_of
from service.guarantees.event_counts import dataset_counts, run_counts
from service.guarantees.recorded_facts import refold_run
from service.storage.tables import branches, datasets, distinct_events, entries, reservations, runs

SLACK: Final = 1e-9  # relative; of this file's floating-point sums, not of the service's
CYCLIC: Final = KINDS - 1

Line = dict[str, Any]
Counts = Counter[int]  # of steps by kind; of passes where those are what counts


@dataclass(slots=True)
class Account:
    """What all trainers wrote down, by branch."""

    lines: list[Line] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> "Account":
        """The account of a folder of logs; a last line that a kill cut off was never written."""
        texts = [path.read_text(encoding="ascii") for path in sorted(folder.glob("*.jsonl"))]
        return cls([json.loads(line) for text in texts for line in text.splitlines()])

    def of_kind(self, *kinds: str) -> list[Line]:
        """The lines that say one of these."""
        return [line for line in self.lines if line["what"] in kinds]

    def count(self, kind: str, **given: Any) -> int:
        """How many lines say so."""
        return sum(given.items() <= line.items() for line in self.of_kind(kind))


@dataclass(slots=True)
class Findings:
    """What was checked, and what is wrong."""

    faults: list[str] = field(default_factory=list)

    def require(self, truth: bool, fault: str) -> None:
        """Note a fault unless it is true."""
        if not truth:
            self.faults.append(fault)


def contents(connection: Connection, dataset: Row[Any], noise_multiplier: float) -> dict[int, int]:
    """The kind of each stored event, told apart by its noise."""
    query = select(distinct_events).where(distinct_events.c.dataset_id == dataset.id)
    noises = {
        row.id: json.loads(row.content)["mechanism"]["noise_multiplier"]
        for row in connection.execute(query)
    }
    return {key: NOISES.index(round(noise / noise_multiplier, 6)) for key, noise in noises.items()}


def added(rows: Iterable[Row[Any]], kinds: dict[int, int]) -> list[Counts]:
    """What each entry, in the order of recording, added: steps, or passes that it began."""
    found = []
    open_passes: dict[int, tuple[int, int]] = {}  # by branch: the next step, and the steps so far
    for row in rows:
        kind, count = kinds[row.event_id], row.steps
        if kind == CYCLIC:
            next_step, length = open_passes.get(row.branch_id, (-1, 0))
            length = length if next_step == row.first_step else 0
            count = -(-(length + row.steps) // CYCLE) - -(-length // CYCLE)
            open_passes[row.branch_id] = row.first_step + row.steps, length + row.steps
        found.append(Counter({kind: count}))
    return found


def cost(found: Counts, *, order: float, noise_multiplier: float) -> float:
    """RDP of counts at an order, in nats."""
    each = order / (2 * noise_multiplier**2)
    return each * sum(found[kind] / noise**2 for kind, noise in enumerate(NOISES))


def limit(*, epsilon: float, delta: float, order: float) -> float:
    """What a budget holds at an order, in nats, by the formula of Renyi filters."""
    return epsilon - math.log1p(-1 / order) + (math.log(delta) + math.log(order)) / (order - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The rows of a dataset, read in one transaction."""

    dataset: Row[Any]
    runs: dict[str, Row[Any]]
    branches: dict[tuple[str, str], Row[Any]]
    entries: list[Row[Any]]  # by sequence
    reservations: dict[str, Row[Any]]
    kinds: dict[int, int]

    @classmethod
    def read(cls, connection: Connection, name: str, noise_multiplier: float) -> "Ledger":
        """All of it."""
        dataset = connection.execute(select(datasets).where(datasets.c.name == name)).one()
        of_dataset = runs.c.dataset_id == dataset.id
        found = connection.execute(select(runs).where(of_dataset)).all()
        joined = select(branches, runs.c.name.label("run")).join(runs).where(of_dataset)
        ordered = select(entries).where(entries.c.dataset_id == dataset.id)
        held = select(reservations).where(reservations.c.dataset_id == dataset.id)
        return cls(
            dataset=dataset,
            runs={row.name: row for row in found},
            branches={(row.run, row.name): row for row in connection.execute(joined)},
            entries=list(connection.execute(ordered.order_by(entries.c.sequence))),
            reservations={row.name: row for row in connection.execute(held)},
            kinds=contents(connection, dataset, noise_multiplier),
        )

    def of_branch(self) -> dict[int, list[Row[Any]]]:
        """The entries of each branch, by first step."""
        found: dict[int, list[Row[Any]]] = defaultdict(list)
        for row in sorted(self.entries, key=lambda row: row.first_step):
            found[row.branch_id].append(row)
        return found

    def reserved(self, entry: Row[Any]) -> bool:
        """Whether some of an entry's steps were ever admitted ahead."""
        return any(
            row.branch_id == entry.branch_id
            and row.first_step < entry.first_step + entry.steps
            and entry.first_step < row.first_step + row.steps
            for row in self.reservations.values()
        )

    def left(self, row: Row[Any]) -> int:
        """The steps a reservation still holds; what was released or voided lies behind its end."""
        (branch,) = [one for one in self.branches.values() if one.id == row.branch_id]
        return max(0, int(row.end_step) - max(int(row.first_step), int(branch.next_step)))


def check_steps(ledger: Ledger, account: Account, findings: Findings) -> None:
    """Every acknowledged step is there once, as it was sent, and no step that nobody sent."""
    sequences = [row.sequence for row in ledger.entries]
    head = ledger.dataset.head_sequence
    findings.require(sequences == list(range(1, head + 1)), "sequences have gaps")
    asked: dict[tuple[str, str], int] = defaultdict(int)
    told: dict[tuple[str, str], int] = defaultdict(int)
    for line in account.of_kind("sent", "taken"):
        known = told if line["what"] == "taken" else asked
        place = line["run"], line["branch"]
        known[place] = max(known[place], line["first"] + line["steps"])
    by_branch = ledger.of_branch()
    for place, branch in ledger.branches.items():
        step = branch.from_step
        for row in by_branch.get(branch.id, []):
            findings.require(row.first_step == step, f"{place}: a gap or an overlap at {step}")
            kinds = {kind_of(branch.name, s) for s in range(step, step + row.steps)}
            findings.require(kinds == {ledger.kinds[row.event_id]}, f"{place}: altered at {step}")
            step = row.first_step + row.steps
        findings.require(step == branch.next_step, f"{place}: next_step is not the end")
        findings.require(told[place] <= step, f"{place}: acknowledged steps were lost at {step}")
        invented = step > max(asked[place], branch.from_step)
        findings.require(not invented, f"{place}: steps were invented before {step}")


def check_counts(connection: Connection, ledger: Ledger, findings: Findings) -> None:
    """Balances equal the fold over the entries, this file's and the service's."""
    size = ledger.dataset.dataset_size
    parts = ("steps", "passes", "begun", "starts")
    total: dict[str, Counter[Any]] = {part: Counter() for part in parts}
    for name, row in ledger.runs.items():
        stored = run_counts(connection, row.id, size)
        findings.require(stored == refold_run(connection, row, size), f"{name}: not the refold")
        for part, counted in total.items():
            counted.update(getattr(stored, part))
    whole = dataset_counts(connection, ledger.dataset)
    for part, counted in total.items():
        findings.require(getattr(whole, part) == +counted, f"dataset: {part} are not the runs'")
    found = sum(added(ledger.entries, ledger.kinds), Counter())
    query = select(distinct_events).where(distinct_events.c.dataset_id == ledger.dataset.id)
    for row in connection.execute(query):
        kind = ledger.kinds[row.id]
        stored_count = row.passes if kind == CYCLIC else row.steps
        findings.require(stored_count == found[kind], f"kind {kind}: {stored_count}, {found[kind]}")


def check_reservations(
    connection: Connection, ledger: Ledger, account: Account, findings: Findings
) -> int:
    """What is reserved is what the open reservations have left; how many steps that is."""
    for line in account.of_kind("reserved"):
        row = ledger.reservations.get(line["name"])
        same = row is not None and row.steps == line["steps"]
        findings.require(same, f"{line['name']}: an admitted reservation was lost")
    for line in account.of_kind("released"):
        row = ledger.reservations[line["name"]]
        findings.require(row.state == "released", f"{line['name']}: not released")
    for name in ledger.reservations.keys() - {line["name"] for line in account.of_kind("asked")}:
        findings.require(False, f"{name}: a reservation was invented")
    left: Counter[int] = Counter()
    for row in ledger.reservations.values():
        left[row.event_id] += ledger.left(row)
    query = select(distinct_events).where(distinct_events.c.dataset_id == ledger.dataset.id)
    for row in connection.execute(query):
        equal = row.reserved_steps == left[row.id]
        findings.require(equal, f"reserved: {row.reserved_steps}, and {left[row.id]} are left")
    return left.total()


def check_limit(
    ledger: Ledger,
    findings: Findings,
    *,
    epsilon: float,
    delta: float,
    order: float,
    noise_multiplier: float,
) -> tuple[float, float]:
    """No admission passed the limit: what was admitted in all, and what was spent, of the limit.

    Spending only grows. So it is enough to look at what had been recorded when the last charge was
    admitted that was not reserved before and cost something; and at all that was admitted, which is
    every entry that was judged within the budget and what open reservations hold.
    """
    each = cost(Counter({0: 1}), order=order, noise_multiplier=noise_multiplier)
    most = limit(epsilon=epsilon, delta=delta, order=order) / each
    before = spent = admitted = 0.0
    for row, more in zip(ledger.entries, added(ledger.entries, ledger.kinds), strict=True):
        price = cost(more, order=order, noise_multiplier=noise_multiplier) / each
        spent += price
        admitted += price if row.verdict == "within" else 0.0
        if row.mode == "charge" and price and not ledger.reserved(row):
            before = spent
    admitted += sum(ledger.left(row) for row in ledger.reservations.values())
    passed = f"the last charge was admitted at {before / most:.9f} of the limit"
    findings.require(before <= most * (1 + SLACK), passed)
    passed = f"{admitted / most:.9f} of the limit was admitted"
    findings.require(admitted <= most * (1 + SLACK), passed)
    return admitted / most, spent / most
