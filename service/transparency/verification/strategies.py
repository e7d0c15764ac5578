"""Compare strategies with their digests, and what steps say of them with what they are."""

from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import Connection, select

from service.schemas.correlated.strategies import read_strategy, strategy_digest, strategy_fault
from service.schemas.requests import StepMessage
from service.storage.tables import datasets, distinct_events, strategies
from service.transparency.verification.report import Broken, Rank, VerificationReport, to_printable
from service.transparency.verification.rows import UNREADABLE, every

_ALL: Final = select(strategies.c.digest, strategies.c.content).order_by(strategies.c.digest)
_STEPS: Final = (
    select(datasets.c.name, distinct_events.c.content)
    .join(datasets, datasets.c.id == distinct_events.c.dataset_id)
    .where(distinct_events.c.content.like('%"matrix_gaussian"%'))
    .order_by(distinct_events.c.id)
)
_STEP: Final[TypeAdapter[StepMessage]] = TypeAdapter(StepMessage)


def require_strategies(connection: Connection, report: VerificationReport) -> None:
    """Require that each strategy is what its digest says, and moves no record further than told."""
    kept: dict[str, str] = {}
    for row in every(connection, _ALL):
        report.checked["strategies"] += 1
        if _is_itself(row):
            kept[row["digest"]] = row["content"]
        else:
            _broken(report, None, row["digest"], "is another one than its digest says")
    for row in every(connection, _STEPS):
        try:
            step = _STEP.validate_json(row["content"])
            fault = strategy_fault(step.mechanism, step.sampling, kept)
        except UNREADABLE as error:
            fault = f"cannot be read: {type(error).__name__}"
        if fault is not None:
            _broken(report, row["name"], "a step of correlated noise", fault)


def _is_itself(row: dict[str, Any]) -> bool:
    try:
        read_strategy(row["content"])
        return bool(strategy_digest(row["content"]) == row["digest"])
    except UNREADABLE:
        return False


def _broken(report: VerificationReport, dataset: str | None, what: str, why: str) -> None:
    place = Broken(
        dataset=dataset, rank=Rank.DERIVED, position=None, what=to_printable(what), why=why
    )
    report.add(place)
