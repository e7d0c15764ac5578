"""Alerts for a budget that runs low or is exceeded: one for each threshold passed."""

import math

from service.ledger.append.state import DatasetState, RunState
from service.ledger.budgets.budget import Budget
from service.ledger.incidents import Incident, Kind
from service.ledger.log.row_records import overdraft_act


def raise_budget_alerts(book: DatasetState, run: RunState) -> None:
    """Note each budget that has passed a threshold or its limit since it was looked at last."""
    scopes = [(book, book.scope), (book, run.scope)]
    scopes += [(ancestor, ancestor.scope) for ancestor, _ in book.ancestors]
    for home, scope in scopes:
        if scope is not None:
            _compare(home, run, scope)


def _compare(home: DatasetState, run: RunState, scope: Budget) -> None:
    share = scope.share
    before, scope.told = scope.told, share
    passed = [mark for mark in home.thresholds if before < mark <= share]
    if share == math.inf and before < math.inf:
        _note(home, run, scope, Kind.OVERDRAFT, share)
    elif passed:
        _note(home, run, scope, Kind.THRESHOLD, passed[-1])


def _note(home: DatasetState, run: RunState, scope: Budget, kind: Kind, share: float) -> None:
    answer = scope.answer()
    detail = {name: answer[name] for name in ("spent", "reserved", "remaining")}
    if kind is Kind.THRESHOLD:
        detail["fraction"] = share
    detail |= {"dataset": home.name, "run": run.name, "scope": scope.name, "limit": scope.epsilon}
    happened = Incident(
        dataset_id=home.id, run_id=run.id, kind=kind, sequence=home.head, detail=detail
    )
    home.notes.incidents.append(happened)
    if kind is Kind.OVERDRAFT:
        home.note([overdraft_act(happened, run=run.name)])
