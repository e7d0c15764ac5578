"""first schema: the tables, and the triggers that hold facts insert-only.

Its number goes on from those of development, whose last schema is the same but for rowids.
"""

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = None
branch_labels = None
depends_on = None

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
INSERT_ONLY = (
    "entries", "settings_changes", "corrections", "incidents", "releases", "findings", "acts",
    "log_tiles", "strategies",
)  # fmt: skip
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(63)
ACTOR = sa.String(512).with_variant(sa.String(63), "sqlite")
TIME = sa.DateTime(timezone=True)
ZERO = sa.text("0")
TARGETS = {
    "dataset_id": "datasets.id",
    "ancestor_id": "datasets.id",
    "run_id": "runs.id",
    "branch_id": "branches.id",
    "event_id": "distinct_events.id",
    "pass_event_id": "distinct_events.id",
    "incident_id": "incidents.id",
}


def _references(*names: str) -> list[sa.ForeignKeyConstraint]:
    return [sa.ForeignKeyConstraint([name], [TARGETS[name]]) for name in names]


def _given(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _counts_from_zero(*names: str) -> list[sa.Column[int]]:
    return [sa.Column(name, sa.BigInteger, server_default=ZERO, nullable=False) for name in names]


def _perhaps(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean, server_default=sa.false(), nullable=False)


sa.Table(
    "api_keys",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", NAME, nullable=False),
    *_given(sa.String(16), "scope", "prefix"),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    *_perhaps(TIME, "revoked_at", "expires_at"),
    sa.Column("datasets", sa.Text),
    sa.Column("requests_per_second", sa.Double),
    sa.Column("body_bytes_max", sa.BigInteger),
    sa.Column("previous_digest", sa.String(64)),
    sa.Column("previous_until", TIME),
    sa.UniqueConstraint("digest"),
    sa.UniqueConstraint("name"),
)
sa.Table(
    "sessions",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("key_digest", sa.String(64), nullable=False, index=True),
    sa.Column("principal", sa.Text),
    *_given(TIME, "created_at", "expires_at"),
)
sa.Table("key_uses", metadata, sa.Column("name", ACTOR, primary_key=True), *_given(TIME, "used_at"))
installation = sa.Table(
    "installation",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("ledger_id", sa.String(32), nullable=False),
    *_counts_from_zero("log_size"),
    sa.Column("log_frontier", sa.LargeBinary, nullable=False),
    sa.Column("suspended", sa.Text),
    sa.Column("suspended_at", TIME),
)
sa.Table(
    "datasets",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", NAME, nullable=False),
    *_given(sa.BigInteger, "dataset_size"),
    sa.Column("neighboring_relation", sa.String(32), nullable=False),
    sa.Column("privacy_unit", sa.Text, nullable=False),
    *_perhaps(sa.Double, "budget_epsilon", "budget_delta"),
    *_given(sa.Text, "accept", "request"),
    *_given(sa.BigInteger, "head_sequence"),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("budget_filter", sa.Text),
    sa.Column("budget_revision", sa.Integer, server_default=ZERO, nullable=False),
    sa.Column("revision", sa.Integer, server_default=sa.text("1"), nullable=False),
    sa.Column("rows_per_parent_record", sa.String(16)),
    *_counts_from_zero("version"),
    sa.Column("totals", sa.Text),
    sa.Column("totals_version", sa.String(32)),
    *_counts_from_zero("log_size"),
    sa.Column("log_frontier", sa.LargeBinary),
    _flag("frozen"),
    sa.UniqueConstraint("name"),
)
sa.Table(
    "lineage",
    metadata,
    sa.Column("dataset_id", ID, primary_key=True),
    sa.Column("ancestor_id", ID, primary_key=True, index=True),
    *_given(sa.Boolean, "parent", "exactly_one"),
    sa.Column("most_rows", sa.Integer, nullable=False),
    *_references("dataset_id", "ancestor_id"),
)
sa.Table(
    "settings_changes",
    metadata,
    sa.Column("dataset_id", ID, primary_key=True),
    sa.Column("revision", sa.Integer, primary_key=True, autoincrement=False),
    *_perhaps(sa.Double, "budget_epsilon", "budget_delta"),
    sa.Column("budget_revision", sa.Integer, nullable=False),
    *_given(sa.Text, "accept", "reason"),
    sa.Column("changed_by", ACTOR, nullable=False),
    *_given(sa.BigInteger, "sequence"),
    sa.Column("changed_at", TIME, nullable=False),
    _flag("frozen"),
    *_references("dataset_id"),
)
sa.Table(
    "distinct_events",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("dataset_id", ID, nullable=False),
    sa.Column("content", sa.String(512), nullable=False),
    *_given(sa.BigInteger, "steps", "passes"),
    *_counts_from_zero("starts", "reserved_steps", "reserved_passes"),
    _flag("by_pass"),
    *_counts_from_zero("begun", "reserved_begun"),
    *_references("dataset_id"),
    sa.UniqueConstraint("dataset_id", "content"),
    sa.Index(
        "ix_distinct_events_by_pass",
        "dataset_id",
        sqlite_where=sa.text("by_pass"),
        postgresql_where=sa.text("by_pass"),
    ),
)
sa.Table(
    "runs",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", NAME, nullable=False),
    sa.Column("dataset_id", ID, nullable=False, index=True),
    sa.Column("writer", sa.String(128), nullable=False),
    sa.Column("delta", sa.Double),
    sa.Column("release", sa.String(16), nullable=False),
    sa.Column("assumptions", sa.Text, nullable=False),
    sa.Column("plan", sa.Text),
    sa.Column("labels", sa.Text, nullable=False),
    *_perhaps(sa.Double, "budget_epsilon", "budget_delta"),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("state", sa.String(32).with_variant(sa.String(16), "sqlite"), nullable=False),
    sa.Column("created_at", TIME, nullable=False),
    _flag("reopened"),
    *_perhaps(sa.Text, "budget_filter", "totals"),
    sa.Column("totals_version", sa.String(32)),
    sa.Column("on_plan", sa.Boolean),
    sa.Column("by", ACTOR),
    *_references("dataset_id"),
    sa.UniqueConstraint("name"),
)
sa.Table(
    "run_balances",
    metadata,
    sa.Column("run_id", ID, primary_key=True),
    sa.Column("event_id", ID, primary_key=True),
    *_given(sa.BigInteger, "steps", "passes", "starts"),
    *_counts_from_zero("reserved_steps", "reserved_passes"),
    *_given(sa.BigInteger, "begun"),
    *_counts_from_zero("reserved_begun"),
    *_references("event_id", "run_id"),
)
sa.Table(
    "branches",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("run_id", ID, nullable=False),
    sa.Column("name", NAME, nullable=False),
    sa.Column("writer", sa.String(128), nullable=False),
    *_given(sa.BigInteger, "from_step", "next_step"),
    sa.Column("pass_event_id", ID),
    sa.Column("pass_position", sa.BigInteger),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("from_branch_id", ID),
    *_perhaps(ACTOR, "by", "appended_by"),
    *_perhaps(sa.String(16), "order", "noise"),
    _flag("takes_pass"),
    *_references("pass_event_id", "run_id"),
    sa.UniqueConstraint("run_id", "name"),
)
sa.Table(
    "reservations",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", NAME),
    *_given(ID, "dataset_id", "run_id", "branch_id", "event_id"),
    *_given(sa.BigInteger, "first_step", "steps", "end_step"),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("expires_at", TIME),
    sa.Column("request", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", TIME, nullable=False),
    sa.Column("by", ACTOR),
    *_references("dataset_id", "run_id", "branch_id", "event_id"),
    sa.UniqueConstraint("name"),
    sa.Index(None, "branch_id", "end_step"),
    sa.Index(None, "dataset_id", "state"),
    sa.Index(None, "run_id"),
)
sa.Table(
    "corrections",
    metadata,
    sa.Column("id", ID, primary_key=True),
    *_given(ID, "dataset_id", "run_id", "branch_id", "event_id"),
    *_given(sa.BigInteger, "first_step", "steps"),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("corrected_by", ACTOR, nullable=False),
    *_given(sa.BigInteger, "sequence"),
    sa.Column("recorded_at", TIME, nullable=False),
    *_references("dataset_id", "run_id", "branch_id", "event_id"),
    sa.Index(None, "run_id"),
)
sa.Table(
    "incidents",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("dataset_id", ID, nullable=False),
    sa.Column("run_id", ID),
    sa.Column("kind", sa.String(32), nullable=False),
    *_given(sa.BigInteger, "sequence"),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("occurred_at", TIME, nullable=False),
    *_references("dataset_id", "run_id"),
    sa.Index(None, "dataset_id", "id"),
)
sa.Table(
    "deliveries",
    metadata,
    sa.Column("incident_id", ID, primary_key=True),
    sa.Column("target", sa.String(64), primary_key=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    *_perhaps(TIME, "next_attempt_at", "delivered_at"),
    *_references("incident_id"),
)
sa.Table(
    "releases",
    metadata,
    sa.Column("id", ID, primary_key=True),
    *_given(ID, "run_id", "branch_id"),
    *_given(sa.BigInteger, "step"),
    sa.Column("recorded_at", TIME, nullable=False),
    *_references("run_id", "branch_id"),
    sa.UniqueConstraint("branch_id", "step"),
    sa.Index(None, "run_id"),
)
sa.Table(
    "findings",
    metadata,
    sa.Column("id", ID, primary_key=True),
    *_given(ID, "run_id", "branch_id"),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("claim", sa.String(80), nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("recorded_at", TIME, nullable=False),
    *_references("run_id", "branch_id"),
    sa.UniqueConstraint("branch_id", "digest"),
    sa.Index(None, "run_id", "kind"),
    sa.Index(None, "branch_id", "kind", "claim"),
)
sa.Table(
    "entries",
    metadata,
    sa.Column("dataset_id", ID, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    *_given(ID, "run_id", "branch_id", "event_id"),
    *_given(sa.BigInteger, "first_step", "steps"),
    sa.Column("mode", sa.String(8), nullable=False),
    sa.Column("verdict", sa.String(16), nullable=False),
    sa.Column("recorded_at", TIME, nullable=False),
    sa.Column("traceparent", sa.String(55)),
    sa.Column("leaf", sa.LargeBinary),
    sa.CheckConstraint("steps > 0", name="steps_positive"),
    *_references("branch_id", "dataset_id", "event_id", "run_id"),
    sa.Index(None, "branch_id", "first_step", unique=True),
    sa.Index(None, "run_id", "sequence"), sqlite_with_rowid=False,
)  # fmt: skip
sa.Table(
    "acts",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("dataset_id", ID),
    *_given(sa.BigInteger, "position", "after_sequence"),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("content", sa.Text, nullable=False),
    sa.Column("by", ACTOR),
    sa.Column("acted_at", TIME, nullable=False),
    sa.Column("traceparent", sa.String(55)),
    sa.Column("leaf", sa.LargeBinary, nullable=False),
    *_references("dataset_id"),
    sa.UniqueConstraint("dataset_id", "position"),
    sa.Index(None, "dataset_id", "after_sequence"),
)
sa.Table(
    "log_tiles",
    metadata,
    sa.Column("dataset_id", ID, primary_key=True),
    sa.Column("level", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("tile_index", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("root", sa.LargeBinary, nullable=False),
    *_references("dataset_id"),
)
sa.Table(
    "strategies",
    metadata,
    sa.Column("digest", sa.String(71), primary_key=True),
    *_given(sa.Text, "content"),
    sa.Column("by", ACTOR),
    sa.Column("created_at", TIME, nullable=False),
)


def upgrade() -> None:
    bind = op.get_bind()
    metadata.create_all(bind, checkfirst=False)
    first = {"id": 1, "ledger_id": secrets.token_hex(16), "log_size": 0, "log_frontier": b""}
    bind.execute(installation.insert().values(first))
    if bind.dialect.name == "sqlite":
        _create_sqlite_triggers()
    else:
        _create_postgresql_triggers()


def _create_sqlite_triggers() -> None:
    for table in INSERT_ONLY:
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is insert-only'); END"
            )
    op.execute(
        "CREATE TRIGGER entries_have_leaves BEFORE INSERT ON entries WHEN NEW.leaf IS NULL "
        "BEGIN SELECT RAISE(ABORT, 'entries need a leaf'); END"
    )


def _create_postgresql_triggers() -> None:
    for name, message in (
        ("refuse_change", "'% is insert-only', TG_TABLE_NAME"),
        ("refuse_no_leaf", "'entries need a leaf'"),
    ):
        op.execute(
            f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION {message}; END $$"
        )
    for table in INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    op.execute(
        "CREATE TRIGGER entries_have_leaves BEFORE INSERT ON entries FOR EACH ROW "
        "WHEN (NEW.leaf IS NULL) EXECUTE FUNCTION refuse_no_leaf()"
    )


def downgrade() -> None:
    metadata.drop_all(op.get_bind(), checkfirst=False)  # triggers go with their tables
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION refuse_change(), refuse_no_leaf()")
