"""whose key did what, and datasets that are frozen."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_NAME = sa.String(63)
_KEYS = (("runs", "by"), ("branches", "by"), ("branches", "appended_by"), ("reservations", "by"))
_FROZEN = ("datasets", "settings_changes")


def upgrade() -> None:
    for table, column in _KEYS:
        op.add_column(table, sa.Column(column, _NAME))
    for table in _FROZEN:
        op.add_column(
            table,
            sa.Column("frozen", sa.Boolean(), server_default=sa.false(), nullable=False),
        )


def downgrade() -> None:
    for table in _FROZEN:
        op.drop_column(table, "frozen")
    for table, column in reversed(_KEYS):
        op.drop_column(table, column)
