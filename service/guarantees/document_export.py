"""A run's ledger document, written from its entries."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, select

from service.guarantees.replay import corrections_of, read_entries
from service.ledger.budgets.strategies import kept_strategies
from service.ledger.lookups import branches_of
from service.schemas.correlated.strategies import find_strategy_names
from service.schemas.event_codec import LEDGER_FORMAT, MAIN, merge_spans
from service.storage.tables import findings, releases

_RELEASES: Final = (
    select(releases.c.branch_id, releases.c.step)
    .where(releases.c.run_id == bindparam("run"))
    .order_by(releases.c.branch_id, releases.c.step)
)
_FINDINGS: Final = (
    select(findings.c.content).where(findings.c.run_id == bindparam("run")).order_by(findings.c.id)
)
_Spans = dict[int, list[tuple[int, int, str]]]  # (first step, steps, content) by branch


def document_of(
    connection: Connection, run: Row[Any], dataset: Row[Any], *, delta: float | None
) -> dict[str, Any]:
    """The run's ledger document; delta is what it is to be read at."""
    spans, beyond, admitted = _spans(read_entries(connection, run))
    found = branches_of(connection, run)
    names = {branch.id: branch.name for branch in found}
    main = next(branch for branch in found if branch.name == MAIN)
    document: dict[str, Any] = {
        "format": LEDGER_FORMAT,
        "neighboring_relation": dataset.neighboring_relation,
        "dataset_size": dataset.dataset_size,
        "release": run.release,
        "assumptions": json.loads(run.assumptions),
        "events": merge_spans(spans.get(main.id, [])),
        "run": run.name,
        "state": run.state,
        "dataset": dataset.name,
        "accept": json.loads(dataset.accept),
        "labels": json.loads(run.labels),
    }
    optional = {
        "delta": delta,
        "plan": None if run.plan is None else json.loads(run.plan),
        "overdrafts": _of_branches(names, beyond),
        "reserved": _of_branches(names, admitted),
        "by": run.by,
        "appended_by": list(dict.fromkeys(one.appended_by for one in found if one.appended_by)),
        "reopened": run.reopened,
        "branches": _branches(found, names, spans),
        "corrections": _corrections(corrections_of(connection, run), names),
        "releases": [
            {"branch": names[row.branch_id], "step": row.step}
            for row in connection.execute(_RELEASES, {"run": run.id})
        ],
        "findings": [
            json.loads(content) for content in connection.scalars(_FINDINGS, {"run": run.id})
        ],
    }
    document |= {key: value for key, value in optional.items() if value}
    if strategies := kept_strategies(connection, find_strategy_names(document)):
        document["strategies"] = strategies
    return document


def _of_branches(names: dict[int, str], spans: _Spans) -> list[dict[str, Any]]:
    """Steps of a verdict, by branch."""
    return [
        {"branch": name, **part}
        for branch_id, name in names.items()
        for part in merge_spans(spans.get(branch_id, []))
    ]


def _spans(rows: Iterable[Row[Any]]) -> tuple[_Spans, _Spans, _Spans]:
    """What was recorded, and what of it beyond a limit: as an overdraft, and as reserved."""
    spans: _Spans = {}
    marked: dict[str, _Spans] = {"overdraft": {}, "reserved": {}}
    for row in rows:
        part = (row.first_step, row.steps, row.content)
        spans.setdefault(row.branch_id, []).append(part)
        if row.verdict in marked:
            of_branch = marked[row.verdict].setdefault(row.branch_id, [])
            of_branch.append((row.first_step, row.steps, "{}"))
    return spans, marked["overdraft"], marked["reserved"]


def _branches(
    found: Sequence[Row[Any]], names: dict[int, str], spans: _Spans
) -> list[dict[str, Any]]:
    """The branches beside main, and where each of them began."""
    return [
        {
            "name": branch.name,
            "from_step": branch.from_step,
            "events": merge_spans(spans.get(branch.id, [])),
        }
        | ({"from_branch": names[branch.from_branch_id]} if branch.from_branch_id else {})
        | ({"order": branch.order} if branch.order else {})
        | ({"noise": branch.noise} if branch.noise else {})
        | ({"takes_pass": True} if branch.takes_pass else {})
        for branch in found
        if branch.name != MAIN
    ]


def _corrections(rows: Iterable[Row[Any]], names: dict[int, str]) -> list[dict[str, Any]]:
    return [
        {
            "branch": names[row.branch_id],
            "first_step": row.first_step,
            "steps": row.steps,
            **json.loads(row.content),
            "reason": row.reason,
        }
        for row in rows
    ]
