"""Audits: what an attack on a run says of its epsilon from below, beside the certificate.

An audit is registered before any score is looked at, and its result is recorded once. Both are
findings: insert-only, in the dataset's log, in the ledger document. Numbers are worked out from the
counts when they are asked for.
"""

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal

from sqlalchemy import Connection, Row, bindparam, insert, select

from accounting.events import BallsAndBins, Full, Poisson, Sampling
from accounting.guarantees import Status
from accounting.one_run_audit import (
    EPSILON_MAX,
    epsilon_at_least,
    level_of_audit,
    one_run_p_value,
    printed_p_value,
)
from service.clock import now, stamp
from service.errors import ConflictError, InvalidRequestError, NotFoundError
from service.guarantees.guarantee import Question, run_guarantee
from service.guarantees.recorded_facts import run_facts
from service.ledger import incidents
from service.ledger.incidents import Incident, Kind
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import dataset_of, find_branch, find_run, lock_run
from service.ledger.views import AUDITED
from service.schemas.event_codec import MAIN, canonical
from service.schemas.findings import (
    CONTRADICTS,
    OF_PEOPLE,
    AuditComparison,
    AuditFinding,
    AuditPlan,
    AuditResult,
    AuditResultFinding,
    BatchSizesFinding,
    NewAudit,
)
from service.schemas.ledger_document import LedgerDocument
from service.schemas.responses import EVERY_STEP, Answer, OutsideGuarantee
from service.storage.tables import findings

LIMITS: Final = (
    "A bound from below for one attack. No finding is no evidence of privacy, and only faults that "
    "raise what this view shows can be found."
)
_AUDITS: Final = (
    select(findings)
    .where(findings.c.run_id == bindparam("run"), findings.c.kind.in_(("audit", "audit_result")))
    .order_by(findings.c.id)
)
_OF_ADDED: Final = (Full, Poisson)  # a null record in the batch is as an absent one
_OF_ABSENT: Final = (*_OF_ADDED, BallsAndBins)  # their bounds do not use the dataset's size


class SharperBound(Answer):
    """The same counts by the bound that some mechanism attains."""

    theorem: Literal["one-run-audit"]
    status: Status
    epsilon_at_least: float


class AuditAnswer(Answer):
    """An audit, and what it says."""

    run: str
    number: int
    name: str | None
    method: Literal["one_run"]
    canaries: int
    guesses: int
    delta: float
    significance: float
    level: float
    out: Literal["absent", "null", "replaced"]
    view: Literal["every_step", "last_iterate"]
    canary_unit: Literal["record", "person"]
    synthetic: bool
    state: Literal["registered", "ended", "estimate"]
    correct: int | None
    theorem: Literal["one-run-audit-as-printed"]
    status: Status
    epsilon_at_least: float | None
    sharper: SharperBound | None
    compared: AuditComparison | None
    limits: str
    registered_at: str
    ended_at: str | None


class AuditList(Answer):
    """All audits of a run, the oldest first."""

    audits: list[AuditAnswer]


@lru_cache(maxsize=1024)
def _least(
    canaries: int, guesses: int, correct: int, delta: float, level: float
) -> tuple[float, float]:
    """The epsilon of the headline, and that of the sharper bound."""
    counts = {"canaries": canaries, "guesses": guesses, "correct": correct}
    printed = epsilon_at_least(printed_p_value, **counts, delta=delta, level=level)
    return printed, epsilon_at_least(one_run_p_value, **counts, delta=delta, level=level)


def level_of(audit: AuditFinding) -> float:
    """The level at which an audit rejects claims: if registered, its part of the significance."""
    if not audit.registered:
        return audit.significance
    return level_of_audit(audit.number, audit.significance)


def found_of(audit: AuditFinding, correct: int) -> tuple[float, float]:
    """Epsilon at least: by the printed formula, and by the bound that is attained. Lower."""
    return _least(audit.canaries, audit.guesses, correct, audit.delta, level_of(audit))


def stated_audits(document: LedgerDocument) -> list[dict[str, Any]]:
    """The audits with a result in a ledger document, as a certificate states them."""
    plans = {one.number: one for one in document.findings if isinstance(one, AuditFinding)}
    stated = []
    for one in document.findings:
        if not isinstance(one, AuditResultFinding):
            continue
        if (plan := plans.get(one.number)) is None or one.correct > plan.guesses:
            raise InvalidRequestError("findings", "an audit's result fits no audit")
        told = plan.model_dump(
            include={"number", "canaries", "guesses", "delta", "registered", "synthetic"}
        )
        least, sharper = found_of(plan, one.correct)
        stated.append(
            told
            | {"correct": one.correct, "level": level_of(plan), "epsilon_at_least": least}
            | {"sharper_epsilon_at_least": sharper, "contradicts": one.compared.contradicts}
        )
    return stated


def outside_of(document: LedgerDocument) -> list[OutsideGuarantee]:
    """What left the trainer beside the steps, and no epsilon covers."""
    real = {
        one.number
        for one in document.findings
        if isinstance(one, AuditFinding) and not one.synthetic
    }
    verdicts = [
        OutsideGuarantee(kind=one.kind, branch=one.branch, verdict=one.verdict)
        for one in document.findings
        if isinstance(one, BatchSizesFinding)
    ]
    results = (one for one in document.findings if isinstance(one, AuditResultFinding))
    return verdicts + [AUDITED] * any(one.number in real for one in results)


def list_audits(connection: Connection, run_name: str) -> AuditList:
    """All audits of a run.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    return AuditList(audits=_answers(run, connection.execute(_AUDITS, {"run": run.id}).all()))


def _answers(run: Row[Any], rows: Iterable[Row[Any]]) -> list[AuditAnswer]:
    plans: dict[int, tuple[AuditFinding, str]] = {}
    results: dict[int, tuple[AuditResultFinding, str]] = {}
    for row in rows:
        at = stamp(row.recorded_at)
        if row.kind == "audit":
            plan = AuditFinding.model_validate_json(row.content)
            plans[plan.number] = plan, at
        else:
            result = AuditResultFinding.model_validate_json(row.content)
            results[result.number] = result, at
    return [
        _answer(run.name, *plan, *results.get(number, (None, None)))
        for number, plan in plans.items()
    ]


def _answer(
    run: str,
    audit: AuditFinding,
    registered_at: str,
    result: AuditResultFinding | None,
    ended_at: str | None,
) -> AuditAnswer:
    least = None if result is None else found_of(audit, result.correct)
    told = {name: getattr(audit, name) for name in AuditPlan.model_fields}
    return AuditAnswer(
        **told,
        run=run,
        number=audit.number,
        name=audit.name,
        level=level_of(audit),
        state="registered" if result is None else "ended" if audit.registered else "estimate",
        correct=None if result is None else result.correct,
        theorem="one-run-audit-as-printed",
        status=printed_p_value.status,
        epsilon_at_least=None if least is None else least[0],
        sharper=None
        if least is None
        else SharperBound(
            theorem="one-run-audit", status=one_run_p_value.status, epsilon_at_least=least[1]
        ),
        compared=None if result is None else result.compared,
        limits=LIMITS,
        registered_at=registered_at,
        ended_at=ended_at,
    )


def register_audit(
    connection: Connection, run_name: str, new: NewAudit, *, by: str | None = None
) -> tuple[AuditAnswer, bool]:
    """Record an audit before its scores are seen; whether it is new. A closed run takes them, too.

    Args:
        connection: in a transaction.
        run_name: the run's.
        new: the request; with `correct`, the counts of an audit that was not registered.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run.
        InvalidRequestError: the significance is not that of the run's first audit.
        ConflictError: another audit of the run has this name.
    """
    run, dataset = lock_run(connection, run_name)
    known = _plans(connection, run)
    plan = new.model_dump(include=set(AuditPlan.model_fields)) | {"name": new.name}
    for one in known:
        if new.name is not None and one.name == new.name:
            if one.model_dump(include=set(plan)) != plan:
                raise ConflictError(f"The run's audit {one.number} has this name.")
            return _one(connection, run, one.number), False
    if known and new.significance != known[0].significance:
        raise InvalidRequestError(
            "body.significance", f"must be {known[0].significance!r}, as of the run's first audit"
        )
    audit = AuditFinding(
        **plan, kind="audit", number=len(known) + 1, registered=new.correct is None
    )
    _insert(connection, run, dataset, audit, claim=str(audit.number), by=by)
    if new.correct is not None:
        reason = "The audit was not registered before its scores were seen."
        _end(connection, run, dataset, audit, new.correct, AuditComparison(reason=reason), by=by)
    return _one(connection, run, audit.number), True


def compare(
    connection: Connection, run_name: str, number: int, result: AuditResult
) -> AuditComparison:
    """What the run's certificate says now, and whether an audit contradicts it.

    Args:
        connection: a snapshot; a guarantee takes time, so that no lock should be held.
        run_name: the run's.
        number: of the audit.
        result: its result.

    Raises:
        NotFoundError: there is no such run or audit.
        InvalidRequestError: there are more right guesses than guesses.
        TooExpensiveError: too many entries would have to be read.
    """
    run = find_run(connection, run_name)
    audit = _plan(connection, run, number)
    if result.correct > audit.guesses:
        raise InvalidRequestError("body.correct", f"must lie in [0, {audit.guesses}]")
    dataset = dataset_of(connection, run)
    if reason := _incomparable(connection, run, dataset, audit):
        return AuditComparison(reason=reason)
    found = run_guarantee(connection, run_name, Question(delta=audit.delta))
    if found.epsilon is None:
        return AuditComparison(reason="The run has no certified epsilon.")
    p_value = _p_value(audit, result.correct, dataset.neighboring_relation, found.epsilon)
    return AuditComparison(
        epsilon=found.epsilon,
        delta=audit.delta,
        sequence=found.sequence,
        p_value=p_value,
        contradicts=audit.registered and p_value <= level_of(audit),
    )


def _p_value(audit: AuditFinding, correct: int, relation: str, epsilon: float) -> float:
    """The p-value of the run's claim about one canary's coin. Upper."""
    delta = audit.delta
    if relation == "add_or_remove_one" and audit.out == "replaced":  # removed, then added
        if epsilon > EPSILON_MAX / 2:
            return 1.0
        epsilon, delta = 2 * epsilon, (1 + math.exp(epsilon)) * delta * (1 + 1e-14)
    if epsilon > EPSILON_MAX or delta >= 1:
        return 1.0
    counts = {"canaries": audit.canaries, "guesses": audit.guesses, "correct": correct}
    return one_run_p_value(**counts, epsilon=epsilon, delta=delta)


def _incomparable(
    connection: Connection, run: Row[Any], dataset: Row[Any], audit: AuditFinding
) -> str | None:
    """Why the run's certificate is no claim about a canary's coin; None where it is one."""
    if audit.delta == 0:
        return "At delta 0 no run with Gaussian noise has a certificate."
    if audit.canary_unit == "person":
        return "The run's certificate is about one record."
    if run.release != EVERY_STEP and audit.view == "every_step":
        return "The run declares that it shows less than every step."
    relation = dataset.neighboring_relation
    if relation == "replace_special":
        return None if audit.out == "null" else "Under replace_special out means a null record."
    if relation == "replace_one":
        return None if audit.out == "replaced" else "Under replace_one out means another record."
    facts = run_facts(connection, run, dataset)
    allowed = _OF_ADDED if audit.out == "null" else _OF_ABSENT
    drawn: set[Sampling] = {event.sampling for counts in facts.accounts for event in counts.steps}
    if all(isinstance(sampling, allowed) for sampling in drawn):
        return None
    return f"For canaries that are {audit.out} only these samplings are compared: " + (
        "full and poisson." if audit.out == "null" else "full, poisson and balls_and_bins."
    )


def record_result(
    connection: Connection,
    run_name: str,
    number: int,
    result: AuditResult,
    compared: AuditComparison,
    *,
    by: str | None = None,
) -> tuple[AuditAnswer, bool]:
    """Record what came of an audit, once; whether it is new.

    Args:
        connection: in a transaction.
        run_name: the run's.
        number: of the audit.
        result: its result.
        compared: what `compare` answered.
        by: the key's name.

    Raises:
        NotFoundError: there is no such run or audit.
        ConflictError: the audit has another result.
    """
    run, dataset = lock_run(connection, run_name)
    audit = _plan(connection, run, number)
    known = _one(connection, run, number)
    if known.correct is None:
        _end(connection, run, dataset, audit, result.correct, compared, by=by)
        return _one(connection, run, number), True
    if known.correct != result.correct:
        raise ConflictError("The audit has another result; a result is recorded once.")
    return known, False


def _end(
    connection: Connection,
    run: Row[Any],
    dataset: Row[Any],
    audit: AuditFinding,
    correct: int,
    compared: AuditComparison,
    *,
    by: str | None,
) -> None:
    found = AuditResultFinding(
        kind="audit_result", number=audit.number, correct=correct, compared=compared
    )
    marks = [OF_PEOPLE] * (not audit.synthetic) + [CONTRADICTS] * compared.contradicts
    _insert(connection, run, dataset, found, claim=" ".join([str(audit.number), *marks]), by=by)
    if not compared.contradicts:
        return
    detail = {
        "dataset": dataset.name,
        "run": run.name,
        "audit": audit.number,
        "epsilon": compared.epsilon,
        "delta": compared.delta,
        "epsilon_at_least": max(found_of(audit, correct)),
        "p_value": compared.p_value,
        "level": level_of(audit),
    }
    happened = Incident(
        dataset_id=dataset.id,
        run_id=run.id,
        kind=Kind.AUDIT_CONTRADICTS,
        sequence=dataset.head_sequence,
        detail=detail,
    )
    incidents.record_incidents(connection, [happened])


def _insert(
    connection: Connection,
    run: Row[Any],
    dataset: Row[Any],
    found: AuditFinding | AuditResultFinding,
    *,
    claim: str,
    by: str | None,
) -> None:
    content = canonical(found.model_dump(mode="json", exclude_none=True))
    values = {
        "run_id": run.id,
        "branch_id": find_branch(connection, run.id, MAIN).id,
        "kind": found.kind,
        "claim": claim,
        "content": content,
        "digest": hashlib.sha256(content.encode()).hexdigest(),
        "recorded_at": now(),
    }
    number = connection.execute(
        insert(findings).values(values).returning(findings.c.id)
    ).scalar_one()
    records = build_log_records(connection, "finding", dataset_id=dataset.id, row=number, by=by)
    append_leaves(connection, dataset.id, records)


def _plans(connection: Connection, run: Row[Any]) -> list[AuditFinding]:
    rows = connection.execute(_AUDITS, {"run": run.id})
    return [AuditFinding.model_validate_json(row.content) for row in rows if row.kind == "audit"]


def _plan(connection: Connection, run: Row[Any], number: int) -> AuditFinding:
    for plan in _plans(connection, run):
        if plan.number == number:
            return plan
    raise NotFoundError("There is no audit of that number.")


def _one(connection: Connection, run: Row[Any], number: int) -> AuditAnswer:
    rows = connection.execute(_AUDITS, {"run": run.id}).all()
    return next(one for one in _answers(run, rows) if one.number == number)


def find_audit(connection: Connection, run_name: str, number: int) -> AuditAnswer:
    """An audit of a run.

    Raises:
        NotFoundError: there is no such run or audit.
    """
    run = find_run(connection, run_name)
    _plan(connection, run, number)
    return _one(connection, run, number)
