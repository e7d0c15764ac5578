"""how often loaders began anew."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# How often an event came first on a branch of a run, or after another event.
FOLLOWING = """
SELECT run_id, event_id, before_id, count(*) AS times
FROM (
    SELECT run_id, event_id,
           lag(event_id) OVER (PARTITION BY branch_id ORDER BY first_step) AS before_id
    FROM entries
) AS following
WHERE before_id IS NULL OR before_id <> event_id
GROUP BY run_id, event_id, before_id
"""
ADD_TO_RUN = """
UPDATE run_balances SET starts = starts + :times WHERE run_id = :run AND event_id = :event
"""
SUM_OF_RUNS = """
UPDATE distinct_events SET starts = coalesce(
    (SELECT sum(starts) FROM run_balances WHERE event_id = distinct_events.id), 0)
"""


def upgrade() -> None:
    for table in ("distinct_events", "run_balances"):
        starts = sa.Column("starts", sa.BigInteger(), server_default=sa.text("0"), nullable=False)
        op.add_column(table, starts)
    _count(op.get_bind())
    # Without a default, appends of an older version that still runs fail rather than count none.
    with op.batch_alter_table("run_balances", schema=None) as batch_op:
        batch_op.alter_column("starts", server_default=None)


def _count(connection: sa.Connection) -> None:
    """Count the starts in what was recorded: a count of some of them would raise lower bounds."""
    events = connection.execute(sa.text("SELECT id, content FROM distinct_events"))
    sampling = {row.id: json.loads(row.content)["sampling"] for row in events}
    starts = [
        {"run": row.run_id, "event": row.event_id, "times": row.times}
        for row in connection.execute(sa.text(FOLLOWING))
        if "steps_per_pass" in sampling[row.event_id]
        and sampling.get(row.before_id) != sampling[row.event_id]
    ]
    if starts:
        connection.execute(sa.text(ADD_TO_RUN), starts)
        connection.execute(sa.text(SUM_OF_RUNS))


def downgrade() -> None:
    for table in ("run_balances", "distinct_events"):
        op.drop_column(table, "starts")
