"""what trainers' clients found in the code that runs."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "findings",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("branch_id", _ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("claim", sa.String(80), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_findings_run_id"),
        sa.ForeignKeyConstraint(["branch_id"], ["branches.id"], name="fk_findings_branch_id"),
        sa.PrimaryKeyConstraint("id", name="pk_findings"),
        sa.UniqueConstraint("branch_id", "digest", name="uq_findings_branch_id_digest"),
    )
    for columns in (["run_id", "kind"], ["branch_id", "kind", "claim"]):
        op.create_index(f"ix_findings_{'_'.join(columns)}", "findings", columns)
    _hold()


def _hold() -> None:
    """Let the database itself refuse to change or delete a finding."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER findings_no_{verb.lower()} BEFORE {verb} ON findings "
                "BEGIN SELECT RAISE(ABORT, 'findings is insert-only'); END"
            )
        return
    op.execute(
        "CREATE TRIGGER findings_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON findings "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def downgrade() -> None:
    op.drop_table("findings")  # its triggers go with it
