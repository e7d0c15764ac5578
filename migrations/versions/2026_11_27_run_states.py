"""runs that stopped at their budget: a longer word than the states before."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":  # SQLite does not count letters
        op.alter_column("runs", "state", type_=sa.String(32), existing_nullable=False)


def downgrade() -> None:
    known = "('active', 'finished', 'aborted', 'reopened')"
    op.execute(sa.text(f"UPDATE runs SET state = 'active' WHERE state NOT IN {known}"))  # noqa: S608
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("runs", "state", type_=sa.String(16), existing_nullable=False)
