"""How the budgets of datasets stand, read again only if something has changed.

A dataset's version moves with each change of the dataset or of a descendant. Nothing else moves a
budget but the clock, by which reservations expire.
"""

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Connection, Row, Select, bindparam, func, select

from service.ledger.append.state_rows import DATASETS
from service.operations.budget_summaries import each_budget
from service.schemas.responses import BudgetAnswer
from service.storage.tables import branches, datasets, lineage, reservations
from service.storage.versioned_cache import VersionedCache

_KNOWN_MAX: Final = 50_000  # budgets; about a kilobyte each
_AT_ONCE: Final = 200  # datasets that are read together
BUDGETS_SECONDS: Final = 0.25  # of processor time for what has changed; the rest comes later

HEADS: Final[Select[Any]] = select(
    datasets.c.id, datasets.c.name, datasets.c.created_at, datasets.c.head_sequence,
    datasets.c.version, datasets.c.revision, datasets.c.budget_epsilon, datasets.c.budget_delta,
    datasets.c.frozen,
)  # fmt: skip
_EXPIRED: Final = (
    select(reservations.c.dataset_id, func.count())
    .join(branches, branches.c.id == reservations.c.branch_id)
    .where(
        reservations.c.state == "open",
        reservations.c.end_step > branches.c.next_step,
        reservations.c.expires_at <= bindparam("moment"),
    )
    .group_by(reservations.c.dataset_id)
)
_ANCESTORS: Final = select(lineage.c.dataset_id, lineage.c.ancestor_id).where(
    lineage.c.dataset_id.in_(bindparam("ids", expanding=True))
)


def expired_counts(connection: Connection, moment: datetime) -> dict[int, int]:
    """Return how many reservations of each dataset have expired."""
    return dict(map(tuple, connection.execute(_EXPIRED, {"moment": moment})))


def versions_of(
    connection: Connection, heads: Sequence[Row[Any]], expired: Mapping[int, int]
) -> dict[int, Hashable]:
    """Return what the budget of each dataset hangs on, by its id.

    Args:
        connection: to the database.
        heads: rows of HEADS.
        expired: how many reservations of each dataset have expired.
    """
    counted = Counter(expired)
    for line in connection.execute(_ANCESTORS, {"ids": list(expired)}) if expired else ():
        counted[line.ancestor_id] += expired[line.dataset_id]
    return {row.id: (row.version, row.revision, counted.get(row.id, 0)) for row in heads}


class Budgets:
    """The budgets that were read, for all that tell them; for any thread."""

    def __init__(self) -> None:
        self._known: VersionedCache[BudgetAnswer] = VersionedCache(_KNOWN_MAX)

    def read(
        self,
        connection: Connection,
        heads: Sequence[Row[Any]],
        versions: Mapping[int, Hashable],
        *,
        deadline: float,
        age_max: float = 0.0,
    ) -> dict[int, BudgetAnswer]:
        """Read the budgets that have changed, at least one; return all that are known, by dataset.

        Args:
            connection: to the database.
            heads: rows of HEADS; only datasets with a limit have a budget.
            versions: of all of them, as `versions_of` has it.
            deadline: the thread's processor time at which the rest is left for the next look.
            age_max: seconds that a budget which was left may be out of date.
        """
        # The time keeps apart the datasets of two databases that have the same number.
        keys = {row.id: (row.id, row.created_at) for row in heads if row.budget_epsilon is not None}
        found = {one: self._known.get(key, versions[one]) for one, key in keys.items()}
        changed = [one for one, budget in found.items() if budget is None]
        for first in range(0, len(changed), _AT_ONCE):
            if first and time.thread_time() > deadline:
                break
            rows = connection.execute(DATASETS, {"ids": changed[first : first + _AT_ONCE]}).all()
            for one, budget in each_budget(connection, rows):
                if budget is not None:
                    self._known.put(keys[one], versions[one], budget)
                if time.thread_time() > deadline:
                    break
        for one in changed:
            found[one] = self._known.get(keys[one], versions[one], age_max=age_max)
        return {one: budget for one, budget in found.items() if budget is not None}
