"""iterates that were shown, and runs that were reopened."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "releases",
        sa.Column("id", _ID, nullable=False),
        sa.Column("run_id", _ID, nullable=False),
        sa.Column("branch_id", _ID, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_releases_run_id")),
        sa.ForeignKeyConstraint(["branch_id"], ["branches.id"], name=op.f("fk_releases_branch_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
        sa.UniqueConstraint("branch_id", "step", name=op.f("uq_releases_branch_id_step")),
    )
    op.create_index(op.f("ix_releases_run_id"), "releases", ["run_id"])
    op.add_column(
        "runs", sa.Column("reopened", sa.Boolean(), server_default=sa.false(), nullable=False)
    )
    op.execute(sa.text("UPDATE runs SET reopened = true WHERE state = 'reopened'"))


def downgrade() -> None:
    op.drop_table("releases")
    op.drop_column("runs", "reopened")
