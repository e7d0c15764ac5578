"""change requests and their decisions, the person of a key, the key that asked for a setting."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INSERT_ONLY = ("change_requests", "change_decisions")
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(63)
ACTOR = sa.String(512).with_variant(sa.String(63), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("person", ACTOR))
    op.add_column("settings_changes", sa.Column("requested_by", ACTOR))
    op.create_table(
        "change_requests",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("dataset_id", ID),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("target", NAME),
        sa.Column("change", sa.Text, nullable=False),
        sa.Column("revision", sa.Integer),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", ACTOR, nullable=False),
        sa.Column("person", ACTOR, nullable=False),
        sa.Column("requested_at", TIME, nullable=False),
        sa.Column("expires_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_change_requests"),
        sa.UniqueConstraint("name", name="uq_change_requests_name"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_change_requests_dataset_id"
        ),
    )
    op.create_index("ix_change_requests_dataset_id", "change_requests", ["dataset_id"])
    op.create_table(
        "change_decisions",
        sa.Column("request_id", ID, nullable=False, autoincrement=False),
        sa.Column("decision", sa.String(16), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("by", ACTOR, nullable=False),
        sa.Column("person", ACTOR, nullable=False),
        sa.Column("decided_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("request_id", name="pk_change_decisions"),
        sa.ForeignKeyConstraint(
            ["request_id"], ["change_requests.id"], name="fk_change_decisions_request_id"
        ),
    )
    for table in INSERT_ONLY:
        _hold_insert_only(table)


def _hold_insert_only(table: str) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            f"CREATE TRIGGER {table}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(
            f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{table} is insert-only'); END"
        )


def downgrade() -> None:
    op.drop_table("change_decisions")  # triggers go with their tables
    op.drop_table("change_requests")
    op.drop_column("settings_changes", "requested_by")
    op.drop_column("api_keys", "person")
