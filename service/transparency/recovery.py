"""Suspension: nothing is written while the ledger contradicts what it has signed.

A head that this service signed and that no log continues shows that the database was put back to
an earlier state, or changed. Then writing is refused, until an admin opens the ledger to receive
again what it has lost (recovering: facts are recorded, nothing is admitted against a budget), and
declares it whole (reconciled: a new generation begins). Signed steps must be recorded again.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pydantic import Field
from sqlalchemy import Connection, Engine, func, select, update

from service.clock import now, stamp, utc
from service.errors import ConflictError, LedgerSuspendedError
from service.ledger.append.write_access import LedgerState, suspended_error
from service.ledger.incidents import Incident, Kind, record_incidents
from service.ledger.log.leaves import Act, append_leaves
from service.schemas.event_codec import canonical
from service.schemas.message import Body
from service.schemas.requests import Name, Text
from service.schemas.responses import Answer
from service.storage.engine import hold, snapshot, transaction
from service.storage.tables import datasets, distinct_events, installation
from service.transparency.checkpoint_comparison import (
    Contradicted,
    compare_head,
    find_contradicted_heads,
)
from service.transparency.checkpoints import LogHeads
from service.transparency.log_heads import Head, LeafCount
from service.transparency.reconciliation import (
    RECONCILED,
    RECONCILIATION_FORMAT,
    Reconciliation,
    ReconciliationStatement,
    ReportedHead,
    Suspension,
    merge_reported_heads,
)
from service.transparency.signing import Signer, require_signer

LOGS_MAX: Final = 1000  # named in one request
SUSPENDED: Final = "suspended"  # acts
RECOVERING: Final = "recovering"
_LOGGER = logging.getLogger("dpledger.suspension")
_DATASETS: Final = select(datasets.c.id, datasets.c.name, datasets.c.head_sequence)
_INSTALLATION: Final = select(installation).with_for_update()
_STEPS: Final = (
    select(datasets.c.name, func.sum(distinct_events.c.steps))
    .join(datasets, datasets.c.id == distinct_events.c.dataset_id)
    .group_by(datasets.c.name)
)


class Recovered(Body):
    """Why a suspended ledger is opened for what it has lost."""

    reason: Text


class Reconciled(Body):
    """Why a ledger is whole again."""

    reason: Text
    # Of datasets, how many of the steps that were signed never ran, by attestation.
    not_taken: dict[Name, LeafCount] = Field(default_factory=dict, max_length=LOGS_MAX)


class LostAnswer(Answer):
    """A head that was signed and that no log continues."""

    dataset: str | None  # none: the installation's log
    size: int
    root: str
    steps: int  # that were recorded then
    recorded_steps: int  # that are now
    missing_steps: int


class StandingAnswer(Answer):
    """Whether the ledger takes what is written to it; if not, what it has lost."""

    state: LedgerState
    reason: str | None
    since: str | None
    lost: list[LostAnswer]


@dataclass(frozen=True, slots=True)
class Lost:
    """A head that was signed and that no log continues."""

    head: Head
    recorded: int  # steps in its dataset now

    @property
    def missing_steps(self) -> int:
        """How many steps were signed and are not recorded now."""
        return max(0, self.head.steps - self.recorded)


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """Whether the ledger takes what is written to it."""

    state: LedgerState
    reason: str | None = None
    since: datetime | None = None
    lost: tuple[Lost, ...] = ()

    def refusal(self, reason: str = "") -> LedgerSuspendedError:
        """What a writer is told; the reason may name a dataset that the key does not reach."""
        return suspended_error(self.state, reason)


def standing(engine: Engine) -> LedgerStatus:
    """Where the ledger stands."""
    with snapshot(engine) as connection:
        return ledger_status(connection)


def ledger_status(connection: Connection) -> LedgerStatus:
    """Where the ledger stands, in a transaction."""
    row = connection.execute(select(installation)).one()
    if row.suspended is None:
        return LedgerStatus("open")
    told = Suspension.read(row.suspended)
    steps = {name: int(count) for name, count in connection.execute(_STEPS)}
    lost = tuple(Lost(one.head(), steps.get(one.dataset or "", 0)) for one in told.lost)
    since = None if row.suspended_at is None else utc(row.suspended_at)
    return LedgerStatus(told.state, told.reason, since, lost)


def suspend(
    engine: Engine, heads: Sequence[Head], *, generation: int, by: str, signer: Signer
) -> LedgerStatus:
    """Refuse to write from here on, if some of these signed heads are indeed contradicted.

    Args:
        engine: of the database.
        heads: that were signed by this service; who calls has checked that.
        generation: in which they were.
        by: the key's name of who showed them, or "witness".
        signer: the service's key, which signs what is known to be lost.
    """
    with transaction(engine) as connection:
        _lock(connection, {head.dataset for head in heads})
        present, key = LogHeads.of(connection), signer.public_key
        found = find_contradicted_heads(
            connection, present, heads, generation=generation, public_key=key
        )
        if found:
            _suspend(connection, found, generation=generation, by=by, signer=signer)
        return ledger_status(connection)


def _lock(connection: Connection, names: set[str | None]) -> None:
    """Datasets in the order of their ids, then the installation: as everybody locks.

    First those who write are waited for: what they commit is before the suspension.
    """
    hold(connection, alone=True)
    wanted = [name for name in names if name is not None]
    query = _DATASETS.where(datasets.c.name.in_(wanted)).order_by(datasets.c.id)
    connection.execute(query.with_for_update()).all()
    connection.execute(_INSTALLATION).all()


def _suspend(
    connection: Connection,
    found: Sequence[Contradicted],
    *,
    generation: int,
    by: str,
    signer: Signer,
) -> None:
    row = connection.execute(select(installation)).one()
    told = Suspension(state="suspended", reason=found[0].reason, lost=[])
    if row.suspended is not None:
        told = Suspension.read(row.suspended)
    known = told.proven(ledger_id=row.ledger_id, public_key=signer.public_key)
    lost = merge_reported_heads([*known, *(ReportedHead.of(one.head, generation) for one in found)])
    if row.suspended is not None and lost == told.lost == known:
        return
    told = told.with_more(lost, ledger_id=row.ledger_id, signer=signer)
    values = {
        "suspended": canonical(told.model_dump()),
        "suspended_at": row.suspended_at or now(),
    }
    connection.execute(update(installation).values(values))
    _log(connection, found, generation=generation, by=by)
    if row.suspended is None:
        _tell(connection, found)


def _log(
    connection: Connection, found: Sequence[Contradicted], *, generation: int, by: str
) -> None:
    """Say it in the installation's log, and in the service's."""
    lost = [ReportedHead.of(one.head, generation).model_dump() for one in found]
    append_leaves(connection, None, [Act(SUSPENDED, {"reason": found[0].reason, "lost": lost}, by)])
    _LOGGER.error("ledger suspended", extra={"reason": found[0].reason, "shown_by": by})


def _tell(connection: Connection, found: Iterable[Contradicted]) -> None:
    """Raise an incident for it."""
    for one in found:
        query = _DATASETS.where(datasets.c.name == one.head.dataset)
        for row in connection.execute(query):
            detail = {"dataset": row.name, "reason": one.reason}
            record_incidents(
                connection,
                [
                    Incident(
                        dataset_id=row.id,
                        kind=Kind.LEDGER_SUSPENDED,
                        sequence=row.head_sequence,
                        detail=detail,
                    )
                ],
            )


def recover(connection: Connection, *, reason: str, by: str | None) -> LedgerStatus:
    """Open a suspended ledger for what it has lost: facts are recorded, nothing is admitted.

    Raises:
        ConflictError: it is not suspended.
    """
    told = _read_suspension(connection)
    if told.state != RECOVERING:
        opened = told.model_copy(update={"state": RECOVERING})
        stored = canonical(opened.model_dump())
        connection.execute(update(installation).values(suspended=stored))
        append_leaves(connection, None, [Act(RECOVERING, {"reason": reason}, by)])
    return ledger_status(connection)


def reconcile(
    connection: Connection, given: Reconciled, *, by: str | None, signer: Signer | None
) -> LedgerStatus:
    """Declare a ledger whole that has what it had lost; a new generation begins.

    Raises:
        ConflictError: it is not suspended; or steps that were signed are not recorded.
        UnavailableError: there is no key to sign it with.
    """
    told = _read_suspension(connection)
    _require_recorded(ledger_status(connection).lost, given)
    statement = _build_statement(
        connection, told, given, by=by, public_key=require_signer(signer).public_key
    )
    signed = Reconciliation.signed(statement, require_signer(signer))
    append_leaves(connection, None, [Act(RECONCILED, signed.model_dump(), by)])
    connection.execute(update(installation).values(suspended=None, suspended_at=None))
    _LOGGER.warning("ledger reconciled", extra={"reason": given.reason, "key": by})
    return LedgerStatus("open")


def _require_recorded(lost: Iterable[Lost], given: Reconciled) -> None:
    missing = {
        str(one.head.dataset): one.missing_steps
        for one in lost
        if one.missing_steps > given.not_taken.get(str(one.head.dataset), 0)
    }
    if missing:
        text = ", ".join(f"{steps} of dataset {name}" for name, steps in sorted(missing.items()))
        raise ConflictError(
            f"Steps that were signed are not recorded: {text}. Send the spools that hold them.",
            missing_steps=missing,
        )


def _build_statement(
    connection: Connection, told: Suspension, given: Reconciled, *, by: str | None, public_key: str
) -> ReconciliationStatement:
    """What is abandoned: what was shown and signed, and does not fit the logs as they are now."""
    present = LogHeads.of(connection)
    shown = told.proven(ledger_id=present.ledger_id, public_key=public_key)
    abandoned = [
        one.head()
        for one in shown
        if isinstance(
            compare_head(
                connection, present, one.head(), generation=one.generation, public_key=public_key
            ),
            Contradicted,
        )
    ]
    concerned = {None, *(head.dataset for head in abandoned)}
    return ReconciliationStatement(
        format=RECONCILIATION_FORMAT,
        ledger_id=present.ledger_id,
        generation=max(present.generation(public_key), *(one.generation for one in shown), 0) + 1,
        reason=given.reason,
        by=by,
        abandoned=abandoned,
        continued=[head for head in present.in_order if head.dataset in concerned],
        not_taken=given.not_taken,
    )


def _read_suspension(connection: Connection) -> Suspension:
    row = connection.execute(_INSTALLATION).one()
    if row.suspended is None:
        raise ConflictError("The ledger is not suspended.")
    return Suspension.read(row.suspended)


def standing_answer(found: LedgerStatus, *, within: frozenset[str] | None = None) -> StandingAnswer:
    """A standing as it is told to a key that reaches these datasets, or all."""
    return StandingAnswer(
        state=found.state,
        reason=found.reason if within is None else None,
        since=None if found.since is None else stamp(found.since),
        lost=[
            LostAnswer(
                dataset=one.head.dataset,
                size=one.head.size,
                root=one.head.root,
                steps=one.head.steps,
                recorded_steps=one.recorded,
                missing_steps=one.missing_steps,
            )
            for one in found.lost
            if within is None or one.head.dataset in within
        ],
    )
