"""Epochs of the ledger: each begins when an admin reconciled it with what it had lost.

What was lost is a branch of history that no log continues. Whoever still holds a head of it is told
who abandoned it and why, and not that the ledger was changed behind everybody's back.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, select

from service.tables import acts

RECONCILED: Final = "reconciled"
_RECONCILED: Final = (
    select(acts.c.content, acts.c.by, acts.c.position)
    .where(acts.c.dataset_id.is_(None), acts.c.kind == RECONCILED)
    .order_by(acts.c.position.desc())
)


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """The act that began an epoch."""

    epoch: int  # that it began
    reason: str
    by: str | None
    position: int  # of its leaf in the installation's log
    abandoned: dict[str | None, int]  # of each log that had lost leaves, how many it had had

    def abandons(self, dataset: str | None, *, size: int, epoch: int) -> bool:
        """Whether a head that does not fit the log any more is of what was lost before."""
        return epoch < self.epoch and size <= self.abandoned.get(dataset, 0)

    @property
    def text(self) -> str:
        """Who began the epoch, and why."""
        return f"Epoch {self.epoch} was begun by {self.by or 'the command line'}: {self.reason}"


def epoch_of(connection: Connection) -> int:
    """The present epoch: 0 where nothing was ever lost."""
    latest = connection.execute(_RECONCILED.limit(1)).one_or_none()
    return 0 if latest is None else _of(latest).epoch


def abandoned_by(
    connection: Connection, dataset: str | None, *, size: int, epoch: int
) -> Reconciliation | None:
    """The reconciliation that abandoned a head, if one did."""
    for row in connection.execute(_RECONCILED):
        found = _of(row)
        if found.abandons(dataset, size=size, epoch=epoch):
            return found
    return None


def _of(row: Any) -> Reconciliation:
    content = json.loads(row.content)
    return Reconciliation(
        epoch=content["epoch"],
        reason=content["reason"],
        by=row.by,
        position=row.position,
        abandoned={one["dataset"]: one["size"] for one in content["abandoned"]},
    )
