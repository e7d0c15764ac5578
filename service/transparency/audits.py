"""Audits of a run, beside its certificate.

An audit is registered before any score is looked at, and its result is recorded once. Both are
findings: insert-only, in the dataset's log, in the ledger document.
"""

import hashlib
import math
from typing import Any, Final

from sqlalchemy import Connection, Row, bindparam, insert, select

from accounting.auditing.one_run import EPSILON_MAX, one_run_p_value
from accounting.events import BallsAndBins, Full, Poisson, Sampling
from service.clock import now
from service.errors import ConflictError, InvalidRequestError, NotFoundError
from service.guarantees.guarantee import Question, run_guarantee
from service.guarantees.recorded_facts import run_facts
from service.ledger import incidents
from service.ledger.incidents import Incident, Kind
from service.ledger.log.leaves import append_leaves
from service.ledger.log.row_records import build_log_records
from service.ledger.lookups import dataset_of, find_branch, find_run, lock_run
from service.schemas.event_codec import MAIN, canonical
from service.schemas.findings import (
    COMPARED_MAX,
    CONTRADICTS,
    OF_PEOPLE,
    AuditComparison,
    AuditFinding,
    AuditPlan,
    AuditResult,
    AuditResultFinding,
    NewAudit,
)
from service.schemas.responses import EVERY_STEP
from service.storage.tables import findings
from service.transparency.audit_answers import (
    AuditAnswer,
    AuditList,
    audit_answers,
    compute_lower_epsilons,
    level_of,
)

_AUDITS: Final = (
    select(findings)
    .where(findings.c.run_id == bindparam("run"), findings.c.kind.in_(("audit", "audit_result")))
    .order_by(findings.c.id)
)
_OF_ADDED: Final = (Full, Poisson)  # a null record in the batch is as an absent one
_OF_ABSENT: Final = (*_OF_ADDED, BallsAndBins)  # their bounds do not use the dataset's size


def list_audits(connection: Connection, run_name: str) -> AuditList:
    """All audits of a run.

    Raises:
        NotFoundError: there is no such run.
    """
    run = find_run(connection, run_name)
    return AuditList(audits=audit_answers(run, connection.execute(_AUDITS, {"run": run.id}).all()))


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
    if found.epsilon is None or found.epsilon > COMPARED_MAX:
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
        "epsilon_at_least": max(compute_lower_epsilons(audit, correct)),
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
    return next(one for one in audit_answers(run, rows) if one.number == number)


def find_audit(connection: Connection, run_name: str, number: int) -> AuditAnswer:
    """An audit of a run.

    Raises:
        NotFoundError: there is no such run or audit.
    """
    run = find_run(connection, run_name)
    _plan(connection, run, number)
    return _one(connection, run, number)
