"""what a branch says of the order in which its records come."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("branches", sa.Column("order", sa.String(16), nullable=True))
    # Until now every branch was to begin with a fresh order, and was counted so.
    branches = sa.table("branches", sa.column("name"), sa.column("order"))
    op.execute(branches.update().where(branches.c.name != "main").values(order="fresh"))


def downgrade() -> None:
    branches = sa.table("branches", sa.column("name"), sa.column("order"))
    fresh = sa.and_(branches.c.order == "fresh", branches.c.order.is_not(None))
    query = sa.select(sa.func.count()).where(branches.c.name != "main", ~fresh)
    if op.get_bind().scalar(query):
        raise RuntimeError("The schema before has no place for branches whose order is not fresh.")
    op.drop_column("branches", "order")
