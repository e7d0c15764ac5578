"""The facts of a certificate, read from the ledger: of a run, or of a dataset with all its runs."""

import json
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BindParameter, Connection, Row, bindparam, func, select

from service.clock import stamp
from service.errors import TooExpensiveError
from service.guarantees.document_export import document_of
from service.guarantees.event_counts import count_reserved_anew
from service.ledger.budgets.budget import delta_of
from service.ledger.budgets.lineage import ITSELF, RowsPerParent, rows_of
from service.ledger.budgets.strategies import kept_strategies
from service.ledger.dataset_settings import settings_history
from service.ledger.incidents import Kind
from service.ledger.lookups import dataset_of, find_dataset, find_run
from service.ledger.views import dataset_answer
from service.schemas.correlated.strategies import find_strategy_names
from service.schemas.event_codec import content_of, event_of
from service.storage.tables import (
    change_decisions,
    change_requests,
    corrections,
    datasets,
    distinct_events,
    entries,
    findings,
    incidents,
    lineage,
    releases,
    reservations,
    runs,
)
from service.transparency.certificates.schema import DISTINCT_MAX, RUNS_MAX

_ROWS_MAX: Final = 80_000  # of entries and what lies beside them
_EVENTS_MAX: Final = 5000  # that are left of entries once equal neighbours are one
LIMITS_MAX: Final = 200
_DATASETS_MAX: Final = 100
# What an auditor should know beside the ledger document, which has corrections and overdrafts.
_MATTER: Final = (
    Kind.OVERDRAFT, Kind.REOPENED, Kind.RECORDED_AFTER_RELEASE, Kind.SAMPLING_CONTRADICTED,
    Kind.RANKS_DISAGREE, Kind.BATCH_SIZES_REFUTED, Kind.AUDIT_CONTRADICTS, Kind.NOISE_REUSED,
)  # fmt: skip

_RUN: Final[BindParameter[Any]] = bindparam("run")
_ROWS: Final = tuple(
    select(func.count()).select_from(table).where(table.c.run_id == _RUN)
    for table in (entries, corrections, releases, findings)
)
_RUNS: Final = (
    select(runs).where(runs.c.dataset_id == bindparam("dataset")).order_by(runs.c.id)
    .limit(RUNS_MAX + 1)
)  # fmt: skip
_INCIDENTS: Final = (
    select(
        incidents.c.kind,
        func.count().label("count"),
        func.min(incidents.c.sequence).label("first_sequence"),
        func.max(incidents.c.sequence).label("last_sequence"),
    )
    .where(
        incidents.c.run_id == _RUN,
        incidents.c.dataset_id == bindparam("dataset"),
        incidents.c.kind.in_([kind.value for kind in _MATTER]),
    )
    .group_by(incidents.c.kind)
    .order_by(incidents.c.kind)
)
# Of each correction and each void of one reservation. A void of all of a dataset's reservations is
# a change of settings, and its limit names who asked.
_APPROVED: Final = (
    select(
        change_requests.c.kind,
        change_requests.c.target,
        change_requests.c.change,
        change_requests.c.reason,
        change_requests.c.by.label("requested_by"),
        change_decisions.c.by.label("approved_by"),
        change_decisions.c.decided_at,
        func.coalesce(runs.c.id, reservations.c.run_id).label("run"),
    )
    .join(change_decisions, change_decisions.c.request_id == change_requests.c.id)
    .outerjoin(
        runs,
        (change_requests.c.kind == "correction") & (runs.c.name == change_requests.c.target),
    )
    .outerjoin(
        reservations,
        (change_requests.c.kind == "void") & (reservations.c.name == change_requests.c.target),
    )
    .where(
        change_requests.c.dataset_id == bindparam("dataset"),
        change_requests.c.target.is_not(None),
        change_decisions.c.decision == "approved",
    )
    .order_by(change_requests.c.id)
)
_BELOW: Final = (
    select(datasets, lineage.c.exactly_one, lineage.c.most_rows)
    .join(lineage, lineage.c.dataset_id == datasets.c.id)
    .where(lineage.c.ancestor_id == bindparam("dataset"))
    .order_by(datasets.c.id)
    .limit(_DATASETS_MAX)
)
_RESERVED: Final = (
    select(distinct_events)
    .where(
        distinct_events.c.dataset_id == bindparam("dataset"),
        (distinct_events.c.reserved_steps != 0) | (distinct_events.c.reserved_passes != 0),
    )
    .order_by(distinct_events.c.id)
    .limit(DISTINCT_MAX + 1)
)


class _Allowance:
    """What may still be read."""

    def __init__(self) -> None:
        self._left = _ROWS_MAX
        self._events = _EVENTS_MAX

    def take(self, connection: Connection, run: Row[Any]) -> None:
        for query in _ROWS:
            self._left -= connection.scalar(query, {"run": run.id}) or 0
        if self._left < 0:
            raise TooExpensiveError(
                f"A certificate is of at most {_ROWS_MAX} entries, corrections and findings."
            )

    def count(self, document: dict[str, Any]) -> dict[str, Any]:
        parts = [document, *document.get("branches", [])]
        self._events -= sum(len(part["events"]) for part in parts)
        if self._events < 0:
            raise TooExpensiveError(
                f"A certificate is of at most {_EVENTS_MAX} changes from one event to another."
            )
        return document


def facts_of_run(connection: Connection, name: str) -> tuple[dict[str, Any], float | None]:
    """A run's facts, and the delta to read them at.

    Raises:
        NotFoundError: there is no such run.
        TooExpensiveError: there are too many.
    """
    run = find_run(connection, name)
    dataset = dataset_of(connection, run)
    home = _home(connection, dataset, [run], rows=ITSELF)
    home = home | {"reserved": [], "strategies": {}}
    facts = _facts(connection, dataset, [home], {"kind": "run", "name": run.name})
    return facts, delta_of(dataset, run)


def facts_of_dataset(connection: Connection, name: str) -> tuple[dict[str, Any], float | None]:
    """A dataset's facts, those of what was made from it among them, and the delta to read them at.

    Raises:
        NotFoundError: there is no such dataset.
        TooExpensiveError: there are too many.
    """
    dataset, allowance = find_dataset(connection, name), _Allowance()
    below = connection.execute(_BELOW, {"dataset": dataset.id}).all()
    if len(below) >= _DATASETS_MAX:
        raise TooExpensiveError(f"A certificate is of fewer than {_DATASETS_MAX} datasets.")
    homes = []
    for row, rows in ((dataset, ITSELF), *((row, rows_of(row)) for row in below)):
        found = connection.execute(_RUNS, {"dataset": row.id}).all()
        if len(found) > RUNS_MAX:
            raise TooExpensiveError(f"A certificate is of at most {RUNS_MAX} runs of a dataset.")
        homes.append(_home(connection, row, found, rows=rows, allowance=allowance))
    facts = _facts(connection, dataset, homes, {"kind": "dataset", "name": dataset.name})
    return facts, delta_of(dataset)


def _facts(
    connection: Connection, dataset: Row[Any], homes: list[dict[str, Any]], subject: dict[str, str]
) -> dict[str, Any]:
    known = dataset_answer(connection, dataset).model_dump(
        include={
            "name", "dataset_size", "neighboring_relation", "privacy_unit",
            "rows_per_parent_record", "parents", "accept",
        }
    )  # fmt: skip
    return {
        "subject": subject,
        "sequence": dataset.head_sequence,
        "dataset": known | {"limits": _limits(connection, dataset)},
        "homes": homes,
    }


def _limits(connection: Connection, dataset: Row[Any]) -> list[dict[str, Any]]:
    """Every limit the dataset had, the oldest first."""
    found, further = settings_history(connection, dataset.name, after=0, size=LIMITS_MAX)
    if further is not None:
        raise TooExpensiveError(f"A certificate is of at most {LIMITS_MAX} changes of settings.")
    wanted = {
        "revision", "epsilon", "delta", "accept", "reason", "sequence", "changed_at", "changed_by",
        "requested_by",
    }  # fmt: skip
    return [one.model_dump(include=wanted) for one in found]


def _home(
    connection: Connection,
    dataset: Row[Any],
    found: Sequence[Row[Any]],
    *,
    rows: RowsPerParent,
    allowance: _Allowance | None = None,
) -> dict[str, Any]:
    allowance = allowance or _Allowance()
    for run in found:
        allowance.take(connection, run)
    approved = _approved_changes(connection, dataset)
    home = {
        "dataset": dataset.name,
        "dataset_size": dataset.dataset_size,
        "exactly_one": rows.exactly_one,
        "most_rows": rows.most,
        "reserved": _list_reserved(connection, dataset),
        "runs": [
            _run(connection, run, dataset, allowance) | approved.get(run.id, {}) for run in found
        ],
    }
    return home | {"strategies": kept_strategies(connection, find_strategy_names(home["reserved"]))}


def _run(
    connection: Connection, run: Row[Any], dataset: Row[Any], allowance: _Allowance
) -> dict[str, Any]:
    here = {"run": run.id, "dataset": dataset.id}
    ledger = document_of(connection, run, dataset, delta=delta_of(dataset, run))
    return {
        "ledger": allowance.count(ledger),
        "on_plan": run.on_plan,
        "incidents": [dict(row._mapping) for row in connection.execute(_INCIDENTS, here)],
    }


def _approved_changes(connection: Connection, dataset: Row[Any]) -> dict[int, dict[str, Any]]:
    """Corrections and voids that a second person approved, by run; without any, no entry."""
    found: dict[int, dict[str, Any]] = {}
    for row in connection.execute(_APPROVED, {"dataset": dataset.id}):
        change = json.loads(row.change)
        one = {
            "kind": row.kind,
            "reservation": row.target if row.kind == "void" else None,
            "branch": change.get("branch"),
            "first_step": change.get("first_step"),
            "steps": change.get("steps"),
            "reason": row.reason,
            "requested_by": row.requested_by,
            "approved_by": row.approved_by,
            "approved_at": stamp(row.decided_at),
        }
        found.setdefault(row.run, {"approved_changes": []})["approved_changes"].append(one)
    return found


def _list_reserved(connection: Connection, dataset: Row[Any]) -> list[dict[str, Any]]:
    """What was admitted ahead and has not run, of all runs together."""
    found = connection.execute(_RESERVED, {"dataset": dataset.id}).all()
    if len(found) > DISTINCT_MAX:
        raise TooExpensiveError(f"A certificate has at most {DISTINCT_MAX} different events.")
    anew = count_reserved_anew(connection, dataset.id, dataset.dataset_size).passes
    known = {event_of(row.content, dataset.dataset_size) for row in found}
    # Within a pass whose order may be used elsewhere steps count none as they were recorded, and
    # passes of another event where a correction says that they begin one.
    others = sorted(anew.keys() - known, key=content_of)
    return [
        *(
            {
                "steps": row.reserved_steps,
                "passes": row.reserved_passes,
                "begun": row.reserved_begun,
                "passes_anew": anew.get(event_of(row.content, dataset.dataset_size), 0),
                **json.loads(row.content),
            }
            for row in found
        ),
        *(
            {"steps": 0, "passes": 0, "begun": 0, "passes_anew": anew[event]}
            | json.loads(content_of(event))
            for event in others
        ),
    ]
