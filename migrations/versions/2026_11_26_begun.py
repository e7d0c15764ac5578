"""at what noise passes began."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

TABLES = ("distinct_events", "run_balances")
ENTRIES = """
SELECT branch_id, run_id, event_id, steps FROM entries ORDER BY branch_id, first_step
"""
# What each open reservation still holds; without a name it is of a plan, which is not in its run's
# own counts.
HELD = """
SELECT reservations.branch_id, branches.run_id, reservations.event_id, reservations.name,
       reservations.end_step - CASE WHEN reservations.first_step > branches.next_step
                                    THEN reservations.first_step ELSE branches.next_step END
       AS steps
FROM reservations JOIN branches ON branches.id = reservations.branch_id
WHERE reservations.end_step > branches.next_step
  AND reservations.end_step > reservations.first_step
ORDER BY reservations.branch_id, reservations.first_step
"""
IN_RUN = "UPDATE run_balances SET {name} = :count WHERE run_id = :run AND event_id = :event"
IN_DATASET = "UPDATE distinct_events SET {name} = :count WHERE id = :event"

Open = tuple[Any, int] | None  # a sampling, and how far its latest pass has come


def upgrade() -> None:
    for table in TABLES:
        for name in ("begun", "reserved_begun"):
            count = sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)
            op.add_column(table, count)
    _count(op.get_bind())
    # Without a default, appends of an older version that still runs fail rather than count none.
    with op.batch_alter_table("run_balances", schema=None) as batch_op:
        batch_op.alter_column("begun", server_default=None)


def _count(connection: sa.Connection) -> None:
    """Count where passes began, in what was recorded and in what is reserved."""
    events = connection.execute(sa.text("SELECT id, content FROM distinct_events"))
    samplings = {row.id: json.loads(row.content)["sampling"] for row in events}
    recorded: Counter[tuple[int, int]] = Counter()  # by run and event
    ends: dict[int, Open] = {}  # of branches
    for row in connection.execute(sa.text(ENTRIES)):
        begun, ends[row.branch_id] = _follow(ends.get(row.branch_id), samplings[row.event_id], row)
        recorded[row.run_id, row.event_id] += begun
    held = list(connection.execute(sa.text(HELD)))
    every: Counter[tuple[int, int]] = Counter()
    named: Counter[tuple[int, int]] = Counter()
    for counts, rows in ((every, held), (named, [row for row in held if row.name is not None])):
        after = dict(ends)
        for row in rows:
            open_pass = after.get(row.branch_id)
            begun, after[row.branch_id] = _follow(open_pass, samplings[row.event_id], row)
            counts[row.run_id, row.event_id] += begun
    _write(connection, "begun", recorded, recorded)
    _write(connection, "reserved_begun", named, every)


def _follow(open_pass: Open, sampling: Mapping[str, Any], row: Any) -> tuple[int, Open]:
    """How many passes begin with steps that follow on a branch, and the pass that is then open."""
    length = sampling.get("steps_per_pass")
    if length is None:
        return 0, None
    position = open_pass[1] if open_pass is not None and open_pass[0] == sampling else length
    inside = min(row.steps, length - position)
    begun = -(-(row.steps - inside) // length)
    position = position + inside if not begun else row.steps - inside - (begun - 1) * length
    return begun, (sampling, position)


def _write(
    connection: sa.Connection,
    name: str,
    of_runs: Mapping[tuple[int, int], int],
    together: Mapping[tuple[int, int], int],
) -> None:
    total: Counter[int] = Counter()
    for (_, event), count in together.items():
        total[event] += count
    runs = [{"run": run, "event": event, "count": n} for (run, event), n in _some(of_runs)]
    events = [{"event": event, "count": n} for event, n in _some(total)]
    for statement, values in ((IN_RUN, runs), (IN_DATASET, events)):
        if values:
            connection.execute(sa.text(statement.format(name=name)), values)


def _some(counts: Mapping[Any, int]) -> Iterator[tuple[Any, int]]:
    return ((key, count) for key, count in counts.items() if count)


def downgrade() -> None:
    for table in reversed(TABLES):
        for name in ("reserved_begun", "begun"):
            op.drop_column(table, name)
