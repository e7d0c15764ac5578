"""Reading the ledger: guarantees, history and the ledger document. Nothing here writes."""

import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final, TypedDict

import numpy as np
from sqlalchemy import Connection, Row, bindparam, exists, select

from accounting import accountants, curves
from accounting.balances import Balance, OpenPass, advance, starts_anew
from accounting.events import Event, NeighboringRelation, Span
from service.answers import (
    EVERY_STEP,
    Curve,
    DatasetGuarantee,
    FinishedRun,
    GuaranteeAnswer,
    History,
    HistoryPoint,
    curve_answer,
    without_lower,
)
from service.answers import guarantee_answer as answer
from service.balances import dataset_balance, run_balance
from service.catalog import (
    MAIN,
    accept_of,
    dataset_of,
    find_dataset,
    find_run,
    run_answer,
    scope_of_dataset,
)
from service.documents import FORMAT, LedgerDocument, canonical, event_of, merged
from service.errors import InvalidRequestError
from service.hiding import NOTHING_HIDDEN, Hidden, hidden_of, told, why_shown
from service.tables import branches, distinct_events, entries, releases, runs

CURVE_SECONDS = 1.0  # of processor time, after which no further point is begun
HISTORY_SECONDS = 5.0  # the same for a history
READING = "rdp"  # what an append answers with: the cheapest accountant that serves every event


class Target(TypedDict):
    """What a guarantee is asked for: epsilon at this delta, or delta at this epsilon."""

    delta: float | None
    epsilon: float | None


_ANY_HIDING: Final = select(
    exists().where(runs.c.dataset_id == bindparam("dataset"), runs.c.release != EVERY_STEP)
)
_RELEASES: Final = (
    select(releases.c.branch_id, releases.c.step)
    .where(releases.c.run_id == bindparam("run"))
    .order_by(releases.c.branch_id, releases.c.step)
)


def guarantee_of(
    balance: Balance,
    dataset: Row[Any],
    *,
    sequence: int,
    delta: float | None = None,
    epsilon: float | None = None,
    accountant: str = accountants.BEST,
    hidden: Hidden = NOTHING_HIDDEN,
) -> GuaranteeAnswer:
    """What a balance of a dataset's events guarantees."""
    found = accountants.guarantee(
        balance,
        relation=NeighboringRelation(dataset.neighboring_relation),
        delta=delta,
        epsilon=epsilon,
        accept=accept_of(dataset),
        accountant=accountant,
    )
    found = told(found, hidden, accept=accept_of(dataset), accountant=accountant, epsilon=epsilon)
    return answer(
        found,
        balance=balance,
        sequence=sequence,
        release=hidden.release,
    )


def delta_of(dataset: Row[Any], run: Row[Any] | None = None) -> float | None:
    """The delta to answer at: the run's, else the dataset's budget's."""
    if run is not None and run.delta is not None:
        return float(run.delta)
    return None if dataset.budget_delta is None else float(dataset.budget_delta)


def _target(
    dataset: Row[Any], run: Row[Any] | None, delta: float | None, epsilon: float | None
) -> Target:
    if delta is not None and epsilon is not None:
        raise InvalidRequestError("query.epsilon", "give delta or epsilon, not both")
    if epsilon is not None:
        return Target(epsilon=epsilon, delta=None)
    delta = delta_of(dataset, run) if delta is None else delta
    if delta is None:
        raise InvalidRequestError(
            "query.delta", "must be given: neither the run nor the dataset's budget has one"
        )
    return Target(epsilon=None, delta=delta)


def run_guarantee(
    connection: Connection,
    run_name: str,
    *,
    delta: float | None,
    epsilon: float | None,
    accountant: str,
) -> GuaranteeAnswer:
    """What a run has spent, over all its branches.

    Raises:
        NotFoundError: there is no such run.
        InvalidRequestError: no delta is known, or both delta and epsilon are given.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    return guarantee_of(
        run_balance(connection, run.id, dataset.dataset_size),
        dataset,
        sequence=dataset.head_sequence,
        accountant=accountant,
        hidden=_hidden(connection, run, dataset),
        **_target(dataset, run, delta, epsilon),
    )


def _hidden(connection: Connection, run: Row[Any], dataset: Row[Any]) -> Hidden:
    """What the run hides; its document is only read where it may matter."""
    if run.release == EVERY_STEP:
        return NOTHING_HIDDEN
    if reason := why_shown(run.state, reopened=run.reopened):
        return Hidden(release=run.release, reason=reason)
    document = _document(connection, run, dataset)
    return hidden_of(LedgerDocument.model_validate(document))


def finished_run(connection: Connection, run_name: str) -> FinishedRun:
    """A run at its end; with its guarantee where it declared what it hides and a delta is known.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    delta = delta_of(dataset_of(connection, run), run)
    guarantee = None
    if run.release != EVERY_STEP and delta is not None:
        guarantee = run_guarantee(
            connection, run_name, delta=delta, epsilon=None, accountant=accountants.BEST
        )
    return FinishedRun(**dict(run_answer(connection, run)), guarantee=guarantee)


def dataset_guarantee(
    connection: Connection,
    name: str,
    *,
    delta: float | None,
    epsilon: float | None,
    accountant: str,
) -> DatasetGuarantee:
    """What all runs of a dataset have spent together.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidRequestError: no delta is known, or both delta and epsilon are given.
    """
    dataset = find_dataset(connection, name)
    found = guarantee_of(
        dataset_balance(connection, dataset),
        dataset,
        sequence=dataset.head_sequence,
        accountant=accountant,
        **_target(dataset, None, delta, epsilon),
    )
    if connection.scalar(_ANY_HIDING, {"dataset": dataset.id}):
        found = without_lower(found)
    scope = scope_of_dataset(connection, dataset)
    return DatasetGuarantee(
        **found.model_dump(),
        dataset=dataset.name,
        without_reservations=found,
        budget=scope.answer() if scope else None,
    )


def _recorded(connection: Connection, run: Row[Any]) -> Iterable[Row[Any]]:
    """The run's entries in the order of recording, with their event and branch."""
    query = (
        select(
            entries.c.sequence,
            entries.c.branch_id,
            entries.c.first_step,
            entries.c.steps,
            entries.c.verdict,
            distinct_events.c.content,
        )
        .join(distinct_events, distinct_events.c.id == entries.c.event_id)
        .where(entries.c.run_id == run.id)
        .order_by(entries.c.sequence)
    )
    return connection.execute(query)


def history(connection: Connection, run_name: str, *, delta: float | None, points: int) -> History:
    """Epsilon after evenly spaced numbers of steps, the last included; fewer if they take long.

    Raises:
        NotFoundError: there is no such run.
        InvalidRequestError: no delta is known.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    at = _target(dataset, run, delta, None)["delta"]
    recorded = list(_recorded(connection, run))
    total = sum(row.steps for row in recorded)
    marks = sorted({-(-total * i // points) for i in range(1, points + 1)} - {0})
    balances = list(_balances_at(recorded, marks, dataset.dataset_size))
    relation, accept = NeighboringRelation(dataset.neighboring_relation), accept_of(dataset)
    found: dict[int, HistoryPoint] = {}
    start = time.thread_time()
    for index in curves.spread(len(balances)):
        mark, sequence, balance = balances[index]
        bound = accountants.best_bound(balance, relation=relation, delta=at, accept=accept)
        epsilon = bound.epsilon if bound else None
        found[index] = HistoryPoint(steps=mark, sequence=sequence, epsilon=epsilon)
        if time.thread_time() - start > HISTORY_SECONDS:
            break
    return History(run=run.name, delta=at or 0.0, points=[found[i] for i in sorted(found)])


def curve(connection: Connection, run_name: str, *, points: int) -> Curve:
    """A run's privacy profile at up to `points` epsilons, and what it says of membership tests.

    Fewer where each takes long: any number of points bounds the rest.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    balance = run_balance(connection, run.id, dataset.dataset_size)
    relation, accept = NeighboringRelation(dataset.neighboring_relation), accept_of(dataset)
    grid = curves.epsilon_grid(balance, relation=relation, points=points, accept=accept)
    start = time.thread_time()
    found = curves.privacy_profile(
        balance,
        relation=relation,
        epsilons=grid,
        accept=accept,
        enough=lambda: time.thread_time() - start > CURVE_SECONDS,
    )
    if run.release != EVERY_STEP:  # what all iterates attain, those that are shown need not
        found = replace(found, lower=np.zeros_like(found.lower))
    return curve_answer(
        found,
        run=run.name,
        relation=relation,
        steps=sum(balance.steps.values()),
        sequence=dataset.head_sequence,
        points=points,
    )


def _balances_at(
    recorded: Iterable[Row[Any]], marks: list[int], dataset_size: int
) -> Iterable[tuple[int, int, Balance]]:
    """(steps, sequence, balance) each time the steps recorded so far reach a mark."""
    steps: Counter[Event] = Counter()
    passes: Counter[Event] = Counter()
    starts: Counter[Event] = Counter()
    open_passes: dict[int, OpenPass | None] = {}
    done, waiting = 0, iter(marks)
    mark = next(waiting, None)
    for row in recorded:
        event = event_of(row.content, dataset_size)
        left = row.steps
        while left:
            count = left if mark is None else min(left, mark - done)
            span, before = Span(event=event, steps=count), open_passes.get(row.branch_id)
            steps[event] += count
            starts[event] += starts_anew(before, span)
            more, open_passes[row.branch_id] = advance(before, span)
            passes.update(more)
            done, left = done + count, left - count
            if done == mark:
                counted = {key: value for key, value in passes.items() if value}
                begun = {key: value for key, value in starts.items() if value}
                yield done, row.sequence, Balance(steps=dict(steps), passes=counted, starts=begun)
                mark = next(waiting, None)


def refold(connection: Connection, run: Row[Any], dataset_size: int) -> Balance:
    """The run's balance from its entries alone; the stored one is a cache of this."""
    recorded = list(_recorded(connection, run))
    total = sum(row.steps for row in recorded)
    if not total:
        return Balance()
    return next(iter(_balances_at(recorded, [total], dataset_size)))[2]


def ledger_document(connection: Connection, run_name: str) -> str:
    """The run's ledger document in canonical JSON.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    return canonical(_document(connection, run, dataset_of(connection, run)))


def _document(connection: Connection, run: Row[Any], dataset: Row[Any]) -> dict[str, Any]:
    """The run's ledger document."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    beyond: dict[int, list[tuple[int, int, str]]] = {}
    for row in _recorded(connection, run):
        part = (row.first_step, row.steps, row.content)
        spans.setdefault(row.branch_id, []).append(part)
        if row.verdict == "overdraft":
            beyond.setdefault(row.branch_id, []).append((row.first_step, row.steps, "{}"))
    query = select(branches).where(branches.c.run_id == run.id).order_by(branches.c.id)
    found = list(connection.execute(query))
    document: dict[str, Any] = {
        "format": FORMAT,
        "neighboring_relation": dataset.neighboring_relation,
        "dataset_size": dataset.dataset_size,
        "release": run.release,
        "assumptions": json.loads(run.assumptions),
        "events": [],
        "run": run.name,
        "state": run.state,
        "dataset": dataset.name,
        "accept": json.loads(dataset.accept),
        "labels": json.loads(run.labels),
    }
    optional = {
        "delta": delta_of(dataset, run),
        "plan": None if run.plan is None else json.loads(run.plan),
        "overdrafts": [
            {"branch": branch.name, **part}
            for branch in found
            for part in merged(beyond.get(branch.id, []))
        ],
        "reopened": run.reopened,
        "branches": [
            {
                "name": branch.name,
                "from_step": branch.from_step,
                "events": merged(spans.get(branch.id, [])),
            }
            for branch in found
            if branch.name != MAIN
        ],
        "releases": [
            {"branch": branch.name, "step": row.step}
            for row in connection.execute(_RELEASES, {"run": run.id})
            for branch in found
            if branch.id == row.branch_id
        ],
    }
    main = next(branch for branch in found if branch.name == MAIN)
    document["events"] = merged(spans.get(main.id, []))
    document |= {key: value for key, value in optional.items() if value}
    return document
