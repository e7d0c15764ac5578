"""incident notes: what was done about an incident, held insert-only."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

TABLE = "incident_notes"
ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
ACTOR = sa.String(512).with_variant(sa.String(63), "sqlite")


def upgrade() -> None:
    op.create_table(
        TABLE,
        sa.Column("id", ID, nullable=False),
        sa.Column("dataset_id", ID, nullable=False),
        sa.Column("incident_id", ID, nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("assignee", ACTOR),
        sa.Column("by", ACTOR, nullable=False),
        sa.Column("noted_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"pk_{TABLE}"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=f"fk_{TABLE}_dataset_id_datasets"
        ),
        sa.ForeignKeyConstraint(
            ["incident_id"], ["incidents.id"], name=f"fk_{TABLE}_incident_id_incidents"
        ),
    )
    columns = ["incident_id", "action", "id"]
    op.create_index(f"ix_{TABLE}_incident_id_action_id", TABLE, columns)
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {TABLE}_no_{verb.lower()} BEFORE {verb} ON {TABLE} "
                f"BEGIN SELECT RAISE(ABORT, '{TABLE} is insert-only'); END"
            )
    else:
        op.execute(
            f"CREATE TRIGGER {TABLE}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {TABLE} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    op.drop_table(TABLE)  # its triggers go with it
