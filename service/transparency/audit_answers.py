"""What audits say: the numbers of their counts, worked out when they are asked for."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal

from sqlalchemy import Row

from accounting.auditing.one_run import (
    epsilon_at_least,
    level_of_audit,
    one_run_p_value,
    printed_p_value,
)
from accounting.guarantees import Status
from service.clock import stamp
from service.errors import InvalidRequestError
from service.schemas.findings import (
    AuditComparison,
    AuditFinding,
    AuditPlan,
    AuditResultFinding,
)
from service.schemas.ledger_document import LedgerDocument
from service.schemas.responses import Answer

LIMITS: Final = (
    "A bound from below for one attack. No finding is no evidence of privacy, and only faults that "
    "raise what this view shows can be found."
)


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


def compute_lower_epsilons(audit: AuditFinding, correct: int) -> tuple[float, float]:
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
        least, sharper = compute_lower_epsilons(plan, one.correct)
        stated.append(
            told
            | {"correct": one.correct, "level": level_of(plan), "epsilon_at_least": least}
            | {"sharper_epsilon_at_least": sharper, "contradicts": one.compared.contradicts}
        )
    return stated


def audit_answers(run: Row[Any], rows: Iterable[Row[Any]]) -> list[AuditAnswer]:
    """The audits of a run from the rows of its findings, the oldest first."""
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
    least = None if result is None else compute_lower_epsilons(audit, result.correct)
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
