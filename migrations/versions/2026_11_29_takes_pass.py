"""which branches go on in the pass that was open where they began."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Until now none did: each was counted as if nothing was known of its place in a pass.
    op.add_column(
        "branches",
        sa.Column("takes_pass", sa.Boolean(), server_default=sa.false(), nullable=False),
    )


def downgrade() -> None:
    branches = sa.table("branches", sa.column("takes_pass", sa.Boolean()))
    query = sa.select(sa.func.count()).where(branches.c.takes_pass)
    if op.get_bind().scalar(query):
        raise RuntimeError("The schema before has no place for branches that go on in a pass.")
    op.drop_column("branches", "takes_pass")
