"""Looking again at everything that was certified, with the accounting of today."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, select

import accounting
from service.ledger.lookups import lock_dataset
from service.storage.engine import snapshot, transaction
from service.storage.tables import acts as table
from service.storage.tables import datasets
from service.transparency.certificates import records
from service.transparency.certificates.records import TOO_LOW, differences, is_later
from service.transparency.certificates.schema import Facts
from service.transparency.certificates.statements import account_of, statements_of
from service.transparency.recovery import ledger_status

_CERTIFIED: Final = (
    select(datasets.c.id, datasets.c.name)
    .where(datasets.c.id.in_(select(table.c.dataset_id).where(table.c.kind == records.CERTIFICATE)))
    .order_by(datasets.c.id)
)


@dataclass(frozen=True, slots=True)
class RecheckedNumber:
    """A certificate that today's accounting says otherwise than."""

    dataset: str
    content: dict[str, Any]  # of the restatement

    @property
    def too_low(self) -> bool:
        """Whether something was certified too low."""
        return any(one["direction"] == TOO_LOW for one in self.content["changes"])


def restate_all(engine: Engine, *, dry_run: bool) -> Iterator[RecheckedNumber]:
    """Compute again what earlier versions certified, and append where the answer is another.

    Args:
        engine: of the database.
        dry_run: append nothing.

    Raises:
        LedgerSuspendedError: the ledger contradicts what it signed.
        ArithmeticError: the log does not hold the facts of a certificate.
    """
    with snapshot(engine) as connection:
        certified = connection.execute(_CERTIFIED).all()
    for row in certified:
        with snapshot(engine) as connection:
            found = _otherwise(connection, row)
        for one in found:
            if dry_run or _append(engine, row, one):
                yield one


def _otherwise(connection: Connection, row: Any) -> list[RecheckedNumber]:
    """What is to be restated in a dataset's log."""
    found = []
    for position, before in records.latest_statements(connection, row.id).items():
        if is_later(accounting.__version__, before["core_version"]):
            changes = differences(before["statements"], _today(connection, row, before))
            if changes:
                version = accounting.__version__
                content = records.restatement_of(position, before, version, changes)
                found.append(RecheckedNumber(row.name, content))
    return found


def _today(connection: Connection, row: Any, before: dict[str, Any]) -> list[dict[str, Any]]:
    facts = records.facts_of(connection, row.id, before["facts_sha256"])
    if facts is None:
        raise ArithmeticError(f"The log of {row.name} does not hold what was certified.")
    deltas = list(dict.fromkeys(one["delta"] for one in before["statements"]))
    account = account_of(Facts.model_validate(facts))
    return [one.model_dump() for one in statements_of(account, deltas)]


def _append(engine: Engine, row: Any, found: RecheckedNumber) -> bool:
    """Append a restatement unless another process has just done so."""
    with transaction(engine) as connection:
        lock_dataset(connection, row.name)
        if (standing := ledger_status(connection)).state != "open":
            raise standing.refusal()
        sha256 = found.content["facts_sha256"]
        latest = records.latest_statements(connection, row.id, sha256=sha256)
        now = latest[found.content["position"]]["core_version"]
        if now != found.content["old_core_version"]:
            return False
        records.restate(connection, row.id, found.content)
        return True
