"""Settings of a dataset that change: by whom, why, and on what was seen before. All is kept."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, exists, or_, select

from accounting.events import NeighboringRelation
from accounting.filters import choose, revision_share
from accounting.guarantees import Status
from service.clock import stamp
from service.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    PreconditionRequiredError,
)
from service.ledger import incidents
from service.ledger.budgets import envelopes
from service.ledger.budgets.budget import UNSET, accept_of, dataset_filter
from service.ledger.datasets import filter_record, note_settings
from service.ledger.incidents import DetailValue, Incident, Kind
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records, overdraft_act
from service.ledger.lookups import VERSION_BITS, find_dataset, lock_dataset
from service.ledger.open_reservations import void_open
from service.ledger.views import budget_of_dataset, dataset_answer
from service.schemas.event_codec import canonical
from service.schemas.requests import (
    Acceptable,
    Budget,
    ChangedBudget,
    DatasetChange,
    NewDataset,
    accepted_statuses,
)
from service.schemas.responses import Answer, DatasetAnswer, Page
from service.storage.tables import datasets, lineage, reservations, runs, settings_changes

_FAMILY: Final = or_(
    datasets.c.id == bindparam("dataset"),
    datasets.c.id.in_(
        select(lineage.c.dataset_id).where(lineage.c.ancestor_id == bindparam("dataset"))
    ),
)
_SEEN: Final = select(
    exists().where(
        _FAMILY,
        or_(
            datasets.c.head_sequence > 0,
            exists().where(reservations.c.dataset_id == datasets.c.id),
        ),
    )
)
_HISTORY: Final = (
    select(settings_changes)
    .where(
        settings_changes.c.dataset_id == bindparam("dataset"),
        settings_changes.c.revision > bindparam("after"),
    )
    .order_by(settings_changes.c.revision)
    .limit(bindparam("size"))
)


class SettingsAnswer(Answer):
    """A dataset's settings from some time on."""

    revision: int  # of the settings
    epsilon: float | None  # of the budget; null without one
    delta: float | None
    budget_revision: int  # the budget's number, which grows where answers were seen before
    delta_share: float  # of delta that a budget of this number may use
    accept: list[Acceptable]
    frozen: bool
    reason: str
    changed_by: str  # the key's name
    requested_by: str | None  # the key that asked for it, if another one approved it
    sequence: int  # the dataset's head at that time
    changed_at: str


class SettingsPage(Page):
    """Every revision of a dataset's settings, the oldest first."""

    settings: list[SettingsAnswer]


def etag(revision: int) -> str:
    """The settings' revision as an entity tag."""
    return f'"{revision}"'


def change(
    connection: Connection,
    name: str,
    new: DatasetChange,
    *,
    if_match: str | None,
    by: str,
    requested_by: str | None = None,
) -> DatasetAnswer:
    """Change a dataset's settings; what is spent stays, and no budget is ever removed.

    Args:
        connection: in a transaction.
        name: the dataset's.
        new: what changes, and why.
        if_match: the revision that the change was decided on, as the caller sent it.
        by: the key's name.
        requested_by: the key that asked for it, where `by` approved that.

    Raises:
        NotFoundError: there is no such dataset.
        PreconditionRequiredError: no revision was sent.
        PreconditionFailedError: it is not the present one.
        InvalidRequestError: nothing would change, or something that never may.
    """
    if new.void_reservations:  # the ancestors are locked first
        void_open(connection, find_dataset(connection, name), reason=new.reason, by=by)
    dataset = lock_dataset(connection, name)
    require_present(dataset, if_match)
    accept = accepted_statuses(new.accept) if new.accept else accept_of(dataset)
    values: dict[str, Any] = {}
    if accept != accept_of(dataset):
        _require_runs(connection, dataset, accept)
        _require_certified(dataset, accept, new.budget)
        values |= {"accept": canonical(sorted(accept)), "totals": None}
        connection.execute(runs.update().where(runs.c.dataset_id == dataset.id).values(totals=None))
    if new.budget is not None:
        values |= _budget(connection, dataset, new.budget, accept)
    if new.frozen is not None and new.frozen != dataset.frozen:
        values["frozen"] = new.frozen
    if not values and not new.void_reservations:
        raise InvalidRequestError(
            "body", f"the settings of {dataset.name} are already so: nothing would change"
        )
    return _store(connection, dataset, values, reason=new.reason, by=by, requested_by=requested_by)


def require_present(dataset: Row[Any], if_match: str | None) -> None:
    """Refuse a change that was decided on settings other than the present ones.

    Raises:
        PreconditionRequiredError: no revision was sent.
        PreconditionFailedError: it is not the present one.
    """
    if if_match is None:
        raise PreconditionRequiredError(
            "Send the revision of the settings, which GET returns in ETag, as If-Match."
        )
    if if_match not in (etag(dataset.revision), str(dataset.revision)):
        raise PreconditionFailedError(
            f"The settings are at revision {dataset.revision} now.", revision=dataset.revision
        )


def _require_runs(connection: Connection, dataset: Row[Any], accept: frozenset[Status]) -> None:
    """Refuse to drop a status that the own budget of a run rests on."""
    held = select(runs.c.budget_filter, runs.c.on_plan).where(
        runs.c.dataset_id == dataset.id, runs.c.budget_filter.is_not(None)
    )
    for run in connection.execute(held):
        if run.on_plan and not accept >= accept_of(dataset):
            raise InvalidRequestError(
                "body.accept", "a run follows a plan whose certificate needs this status"
            )
        kind = json.loads(run.budget_filter)["kind"]
        if kind == envelopes.KIND:
            if not accept >= accept_of(dataset):
                raise InvalidRequestError(
                    "body.accept", "a run's envelope was certified with this status"
                )
            continue
        if choose(kind, epsilon=1.0, delta=1e-5).status not in accept:
            raise InvalidRequestError(
                "body.accept", "the filter of a run's own budget needs this status"
            )


def _require_certified(
    dataset: Row[Any], accept: frozenset[Status], budget: ChangedBudget | None
) -> None:
    """Refuse to drop a status that the certificate of an envelope may rest on."""
    present = json.loads(dataset.budget_filter)["kind"]
    replaced = budget is not None and budget.filter is not None
    if present == envelopes.KIND and not replaced and not accept >= accept_of(dataset):
        raise InvalidRequestError("body.accept", "the envelope was certified with this status")


def _budget(
    connection: Connection, dataset: Row[Any], limit: ChangedBudget, accept: frozenset[Status]
) -> dict[str, Any]:
    """The columns of another limit; none if it is the present one."""
    same = (limit.epsilon, limit.delta) == (dataset.budget_epsilon, dataset.budget_delta)
    if same and limit.filter is None and limit.orders is None and limit.envelope is None:
        return {}
    values = {"budget_epsilon": limit.epsilon, "budget_delta": limit.delta}
    if not connection.scalar(_SEEN, {"dataset": dataset.id}):
        wished = _requested_budget(dataset, limit)
        if wished is None:
            return {**values, "totals": None}
        chosen = filter_record(
            wished,
            accept,
            scope=f"dataset:{dataset.name}",
            relation=NeighboringRelation(dataset.neighboring_relation),
            dataset_size=dataset.dataset_size,
        )
        return {**values, "budget_filter": chosen, "totals": None}
    for name in ("filter", "orders", "envelope"):
        if getattr(limit, name) is not None:
            raise InvalidRequestError(f"body.budget.{name}", "cannot change once answers were seen")
    if dataset.budget_delta not in (None, limit.delta):
        raise InvalidRequestError("body.budget.delta", "cannot change once answers were seen")
    try:
        dataset_filter(dataset).at(epsilon=limit.epsilon, delta=limit.delta)
    except ValueError as error:
        raise InvalidRequestError("body.budget", str(error)) from None
    return {**values, "budget_revision": dataset.budget_revision + 1}


def _requested_budget(dataset: Row[Any], limit: ChangedBudget) -> Budget | None:
    """The budget before any answer: as it is named now, else as it was; None if a plan chose it."""
    if limit.filter is not None:
        return Budget(**dict(limit))
    named: dict[str, Any] = {"epsilon": limit.epsilon, "delta": limit.delta}
    if limit.orders is not None:
        named["orders"] = limit.orders
    if limit.envelope is not None:
        named["envelope"] = limit.envelope
    present = json.loads(dataset.budget_filter)
    if present["kind"] == envelopes.KIND:
        named.setdefault("envelope", envelopes.item_messages(present))
        named.setdefault("orders", present["orders"] or None)
        return Budget(**named, filter="envelope")
    created = NewDataset.model_validate(json.loads(dataset.request))
    if created.for_ is not None and set(named) == {"epsilon", "delta"}:
        return None  # the order of a plan stays: to price it takes too long here
    named.setdefault("orders", _named_orders(dataset, present))
    return Budget(**named, filter=present["kind"])


def _named_orders(dataset: Row[Any], present: Mapping[str, Any]) -> list[float] | None:
    """The orders of the present filter, if they are not those that its limit leads to."""
    epsilon, delta = UNSET
    if dataset.budget_epsilon is not None:
        epsilon, delta = dataset.budget_epsilon, dataset.budget_delta
    usual = choose(present["kind"], epsilon=epsilon, delta=delta).record()
    return None if usual["orders"] == present["orders"] else present["orders"]


def _store(
    connection: Connection,
    before: Row[Any],
    values: dict[str, Any],
    *,
    reason: str,
    by: str,
    requested_by: str | None,
) -> DatasetAnswer:
    connection.execute(
        datasets.update()
        .where(datasets.c.id == before.id)
        .values(**values, revision=before.revision + 1, version=secrets.randbits(VERSION_BITS))
    )
    dataset = find_dataset(connection, before.name)
    _require_accepted(dataset)
    note_settings(connection, dataset, reason=reason, by=by, requested_by=requested_by)
    changed = build_log_records(
        connection, "settings", dataset_id=dataset.id, row=dataset.revision, by=by
    )
    append_leaves(connection, dataset.id, changed)
    answer = dataset_answer(connection, dataset)
    overdrawn = _is_newly_overdrawn(connection, before, answer)
    _tell(connection, dataset, answer, overdrawn=overdrawn, reason=reason, by=by)
    return answer


def _is_newly_overdrawn(connection: Connection, before: Row[Any], answer: DatasetAnswer) -> bool:
    """Whether a change newly exceeds a limit, or leaves it exceeded without an incident."""
    if answer.budget is None or not answer.budget.overdrawn:
        return False
    earlier = budget_of_dataset(connection, before)
    if earlier is None or not earlier.overdrawn:
        return True
    # Another version of the accounting may have found it exceeded, and told of nothing.
    return not incidents.is_overdraft_told(connection, before.id, f"dataset:{before.name}")


def _require_accepted(dataset: Row[Any]) -> None:
    """Refuse a list of statuses without that of the filter's own theorem."""
    held_by = dataset_filter(dataset)
    if held_by.kind == envelopes.KIND:  # its theorem is accepted with the budget
        return
    if dataset.budget_epsilon is not None and held_by.status not in accept_of(dataset):
        raise InvalidRequestError(
            "body.accept", f"must list {held_by.status}, as the budget's filter is"
        )


def _tell(
    connection: Connection,
    dataset: Row[Any],
    answer: DatasetAnswer,
    *,
    overdrawn: bool,
    reason: str,
    by: str,
) -> None:
    """Raise an incident, and one more where the limit is newly exceeded."""
    changed: dict[str, DetailValue] = {
        "dataset": dataset.name,
        "scope": f"dataset:{dataset.name}",
        "limit": dataset.budget_epsilon,
        "spent": answer.spent,
        "revision": dataset.revision,
        "frozen": str(bool(dataset.frozen)).lower(),
        "reason": reason,
    }
    if answer.budget is not None:
        changed["share"] = answer.budget.share
    kinds = [Kind.SETTINGS_CHANGED]
    if overdrawn:
        kinds.append(Kind.OVERDRAFT)
    happened = [
        Incident(dataset_id=dataset.id, kind=kind, sequence=dataset.head_sequence, detail=changed)
        for kind in kinds
    ]
    incidents.record_incidents(connection, happened)
    overdrafts = [one for one in happened if one.kind is Kind.OVERDRAFT]
    append_leaves(
        connection, dataset.id, [overdraft_act(one, run=None, by=by) for one in overdrafts]
    )


def settings_history(
    connection: Connection, name: str, *, after: int, size: int
) -> tuple[list[SettingsAnswer], int | None]:
    """A dataset's settings after a revision, and the revision to continue from.

    Raises:
        NotFoundError: there is no such dataset.
    """
    asked = {"dataset": find_dataset(connection, name).id, "after": after, "size": size + 1}
    rows = connection.execute(_HISTORY, asked).all()
    further = rows[size - 1].revision if len(rows) > size else None
    return [_answer(row) for row in rows[:size]], further


def _answer(row: Row[Any]) -> SettingsAnswer:
    return SettingsAnswer(
        revision=row.revision,
        epsilon=row.budget_epsilon,
        delta=row.budget_delta,
        budget_revision=row.budget_revision,
        delta_share=revision_share(row.budget_revision),
        accept=json.loads(row.accept),
        frozen=row.frozen,
        reason=row.reason,
        changed_by=row.changed_by,
        requested_by=row.requested_by,
        sequence=row.sequence,
        changed_at=stamp(row.changed_at),
    )
