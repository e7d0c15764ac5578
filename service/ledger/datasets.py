"""Create datasets: their parents, their filter, and what was spent before."""

import json
import secrets
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

from pydantic import BaseModel
from sqlalchemy import Connection, Row, Table, insert, select

from accounting.events import UNIT_ROWS_MAX, NeighboringRelation
from accounting.filters import choose
from service.clock import now
from service.errors import (
    ConflictError,
    InvalidRequestError,
)
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache
from service.ledger.branches import insert_branch
from service.ledger.budgets import envelopes
from service.ledger.budgets.budget import UNSET
from service.ledger.budgets.lineage import RowsPerParent
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import (
    VERSION_BITS,
    find_dataset,
    find_run,
    lock_parents,
    rows_text,
)
from service.ledger.views import dataset_answer
from service.schemas.event_codec import MAIN, canonical, spans_of
from service.schemas.requests import (
    AtMostRows,
    Budget,
    EventMessage,
    NewDataset,
    PlannedEvent,
    RowsPerRecord,
    accepted_statuses,
    compose_unicode,
)
from service.schemas.responses import EVERY_STEP, DatasetAnswer
from service.storage.engine import upsert
from service.storage.tables import datasets, lineage, runs, settings_changes

OPENING: Final = "opening"  # the writer, and what the name of the run begins with
OPENINGS: Final = f"{OPENING}."  # so no run that a trainer registers begins with it
NAME_LENGTH: Final = 63  # of a run, at most
_TOO_FEW: Final = (
    "must be at least {0}: with exactly_one each of the {0} records of the parents has a row of "
    "its own; if some have none, attest at_most_one"
)
_SEEN_BEFORE: Final = (
    "cannot count in an envelope, of the dataset or of one that it was made from, which must be "
    "set before the first answer is seen"
)
_TOO_MANY: Final = f"must leave a record further up at most {UNIT_ROWS_MAX} rows"


def insert_named(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """Insert a row unless one of that name is there; whether it was inserted."""
    statement = upsert(connection.dialect.name, table).values(values).on_conflict_do_nothing()
    return connection.execute(statement.returning(table.c.id)).first() is not None


def insert_lineage(connection: Connection, dataset: Row[Any], new: NewDataset) -> None:
    """Say what a dataset was made from, at any remove.

    Raises:
        NotFoundError: there is no such parent.
        InvalidRequestError: a parent is the dataset itself or has another relation or unit, nothing
            is attested, a record further up could have more than one row, or the dataset is too
            small to have exactly one row for each record of its parents.
    """
    if bool(new.parents) != (new.rows_per_parent_record is not None):
        raise InvalidRequestError(
            "body.rows_per_parent_record",
            "must attest, if there are parents, that each of their records has at_most_one or "
            'exactly_one row, or up to {"at_most": k} rows, made from that record alone',
        )
    made = _parse_attestation(new.rows_per_parent_record)
    rows: dict[int, dict[str, Any]] = {}
    records = 0  # of the parents so far: no two of them share a row of the dataset
    for index, name in enumerate(new.parents):
        parent = find_dataset(connection, name)
        location = f"body.parents[{index}]"
        _require_fitting(parent, dataset, location, made)
        records += parent.dataset_size
        for row in _rows(connection, dataset, parent, made):
            if row["ancestor_id"] in rows:
                raise InvalidRequestError(
                    location, "shares an ancestor with another: its records may have two rows"
                )
            if row["most_rows"] > UNIT_ROWS_MAX:
                raise InvalidRequestError("body.rows_per_parent_record", _TOO_MANY)
            rows[row["ancestor_id"]] = row
    if made.exactly_one and dataset.dataset_size < records:
        raise InvalidRequestError("body.dataset_size", _TOO_FEW.format(records))
    if rows:
        connection.execute(insert(lineage), list(rows.values()))


def _parse_attestation(rows: RowsPerRecord | None) -> RowsPerParent:
    if isinstance(rows, AtMostRows):
        return RowsPerParent(exactly_one=False, most=rows.at_most)
    return RowsPerParent(exactly_one=rows == "exactly_one")


def _require_fitting(
    parent: Row[Any], dataset: Row[Any], location: str, made: RowsPerParent
) -> None:
    if parent.id == dataset.id:
        raise InvalidRequestError(location, "must be another dataset")
    if parent.neighboring_relation != dataset.neighboring_relation:
        raise InvalidRequestError(location, "must have the same neighboring_relation")
    same = compose_unicode(parent.privacy_unit) == compose_unicode(dataset.privacy_unit)
    if made.most > 1 and same:
        raise InvalidRequestError(location, "must have another privacy_unit: it has several rows")
    if made.most == 1 and not same:
        raise InvalidRequestError(location, "must have the same privacy_unit")


def _rows(
    connection: Connection, dataset: Row[Any], parent: Row[Any], made: RowsPerParent
) -> list[dict[str, Any]]:
    """What the lineage says of one parent and of all that it was made from."""
    above = connection.execute(select(lineage).where(lineage.c.dataset_id == parent.id)).all()
    found = [(parent.id, made)]
    for one in above:
        exactly_one = made.exactly_one and one.exactly_one
        found.append((one.ancestor_id, RowsPerParent(exactly_one, made.most * one.most_rows)))
    return [
        {
            "dataset_id": dataset.id,
            "ancestor_id": ancestor,
            "parent": ancestor == parent.id,
            "exactly_one": rows.exactly_one,
            "most_rows": rows.most,
        }
        for ancestor, rows in found
    ]


def opening_name(dataset_name: str) -> str:
    """The run that holds what was spent before the ledger."""
    name = f"{OPENINGS}{dataset_name}"
    if len(name) <= NAME_LENGTH:
        return name
    # Long names may begin alike.
    return f"{name[: NAME_LENGTH - 17]}-{sha256(dataset_name.encode()).hexdigest()[:16]}"


def open_counts(
    connection: Connection, dataset: Row[Any], events: Sequence[PlannedEvent], *, by: str
) -> None:
    """Record what was spent before the ledger as a run of its own, which is closed at once.

    Raises:
        InvalidRequestError: the events do not fit the dataset.
        ConflictError: there is a run of that name.
    """
    size, location = dataset.dataset_size, "body.opening_balance"
    spans_of(events, dataset_size=size, first_step=0, location=location)  # says where one is wrong
    run_id = _insert_run(connection, dataset, opening_name(dataset.name), by)
    messages, first = [], 0
    for event in events:
        messages.append(EventMessage.model_construct(**{**dict(event), "first_step": first}))
        first += event.steps
    opening = Append(
        run_name=opening_name(dataset.name), branch_name=MAIN, mode="record", events=messages, by=by
    )
    work = DatasetCache().open(connection, [opening.place])
    opening.apply(work, now())
    work.write()
    connection.execute(runs.update().where(runs.c.id == run_id).values(state="finished"))
    ended = build_log_records(connection, "run_state", dataset_id=dataset.id, row=run_id, by=by)
    append_leaves(connection, dataset.id, ended)


def _insert_run(connection: Connection, dataset: Row[Any], name: str, by: str) -> int:
    values = {
        "name": name,
        "dataset_id": dataset.id,
        "writer": OPENING,
        "release": EVERY_STEP,
        "assumptions": "{}",
        "labels": "{}",
        "request": "{}",
        "by": by,
        "state": "active",
        "created_at": now(),
    }
    if not insert_named(connection, runs, values):
        raise ConflictError(f"There is a run named {name}, which the opening balance needs.")
    run_id: int = find_run(connection, name).id
    insert_branch(connection, run_id, name=MAIN, writer=OPENING, from_step=0, by=by)
    note_run(connection, find_run(connection, name))
    return run_id


def note_run(connection: Connection, run: Row[Any]) -> None:
    """Say in the log that a run was registered, with its branch main."""
    for kind in ("run", "branch"):
        registered = build_log_records(
            connection, kind, dataset_id=run.dataset_id, run_id=run.id, by=run.by
        )
        append_leaves(connection, run.dataset_id, registered)


def _request(message: BaseModel) -> str:
    return canonical(message.model_dump(mode="json", by_alias=True, exclude={"writer"}))


def _same(stored: str, message: BaseModel) -> bool:
    """Whether a stored request says the same, with texts that look the same.

    An older version stored fewer fields.
    """
    said = json.loads(stored)
    if "writer" in type(message).model_fields:
        said["writer"] = message.writer  # type: ignore[attr-defined]
    known = type(message).model_validate(said)
    return known == message or compose_unicode(known.model_dump()) == compose_unicode(
        message.model_dump()
    )


def filter_record(
    budget: Budget | None,
    accept: frozenset[Any],
    *,
    scope: str,
    relation: NeighboringRelation,
    dataset_size: int,
) -> str:
    """The record of the filter that holds a budget; without one, that of a usual budget's.

    Raises:
        InvalidRequestError: the filter is not one that the statuses accept, or has other orders or
            items.
        BudgetExhaustedError: the items of an envelope are more than the budget holds.
    """
    if budget is not None and budget.filter == envelopes.KIND:
        return envelopes.envelope_record(
            budget, scope=scope, relation=relation, accept=accept, dataset_size=dataset_size
        )
    envelopes.require_no_items(budget)
    kind = budget.filter if budget else "fixed_order_renyi"
    epsilon, delta = (budget.epsilon, budget.delta) if budget else UNSET
    orders = budget.orders if budget else None
    try:
        chosen = choose(kind, orders=orders, epsilon=epsilon, delta=delta)
    except ValueError as error:
        raise InvalidRequestError("budget.orders", str(error).removeprefix("orders: ")) from None
    if chosen.status not in accept and budget is not None:
        raise InvalidRequestError(
            "budget.filter", f"its theorem is {chosen.status}, which accept does not list"
        )
    return canonical(chosen.record())


def create_dataset(
    connection: Connection, new: NewDataset, *, by: str, planned: str | None = None
) -> tuple[DatasetAnswer, bool]:
    """Create a dataset, or find the one that the same request created; whether it is new.

    Args:
        connection: in a transaction.
        new: the dataset.
        by: the key's name.
        planned: the record of the filter that was chosen for the plan of `new`.

    Raises:
        ConflictError: another request created a dataset of that name.
        NotFoundError: there is no such parent.
        InvalidRequestError: the parents do not fit, or the filter or the opening balance.
    """
    if new.opening_balance and new.budget and new.budget.filter == envelopes.KIND:
        raise InvalidRequestError("body.opening_balance", _SEEN_BEFORE)
    accept = accepted_statuses(new.accept)
    moment = now()
    lock_parents(connection, new.parents)
    created = insert_named(
        connection,
        datasets,
        {
            "name": new.name,
            "dataset_size": new.dataset_size,
            "neighboring_relation": new.neighboring_relation,
            "privacy_unit": new.privacy_unit,
            "budget_epsilon": new.budget.epsilon if new.budget else None,
            "budget_delta": new.budget.delta if new.budget else None,
            "budget_filter": planned
            or filter_record(
                new.budget,
                accept,
                scope=f"dataset:{new.name}",
                relation=NeighboringRelation(new.neighboring_relation),
                dataset_size=new.dataset_size,
            ),
            "accept": canonical(sorted(accept)),
            "rows_per_parent_record": rows_text(new.rows_per_parent_record),
            "request": _request(new),
            "head_sequence": 0,
            "version": secrets.randbits(VERSION_BITS),
            "created_at": moment,
        },
    )
    dataset = find_dataset(connection, new.name)
    if not _same(dataset.request, new):
        raise ConflictError("A dataset of that name was created by another request.")
    if created:
        insert_lineage(connection, dataset, new)
        if new.opening_balance:
            _require_no_envelope_above(connection, dataset)
        note_settings(connection, dataset, reason="creation", by=by)
        for kind in ("dataset", "lineage", "settings"):
            append_leaves(
                connection,
                dataset.id,
                build_log_records(connection, kind, dataset_id=dataset.id, by=by),
            )
        if new.opening_balance:
            open_counts(connection, dataset, new.opening_balance, by=by)
    return dataset_answer(connection, find_dataset(connection, new.name)), created


def _require_no_envelope_above(connection: Connection, dataset: Row[Any]) -> None:
    """Refuse what was spent before where it counts in an envelope that was set meanwhile.

    Raises:
        InvalidRequestError: a dataset that this one was made from has an envelope.
    """
    above = select(datasets.c.budget_filter).join(lineage, lineage.c.ancestor_id == datasets.c.id)
    for record in connection.scalars(above.where(lineage.c.dataset_id == dataset.id)):
        if json.loads(record)["kind"] == envelopes.KIND:
            raise InvalidRequestError("body.opening_balance", _SEEN_BEFORE)


def note_settings(
    connection: Connection,
    dataset: Row[Any],
    *,
    reason: str,
    by: str,
    requested_by: str | None = None,
) -> None:
    """Keep a dataset's settings, as its row has them, in its history."""
    kept = ("budget_epsilon", "budget_delta", "budget_revision", "accept", "frozen", "revision")
    connection.execute(
        insert(settings_changes).values(
            dataset_id=dataset.id,
            reason=reason,
            changed_by=by,
            requested_by=requested_by,
            sequence=dataset.head_sequence,
            changed_at=now(),
            **{name: getattr(dataset, name) for name in kept},
        )
    )
