"""A revision after the present one, which only tests have, and the way back from it."""

import shutil
from pathlib import Path

from alembic import command
from sqlalchemy import Engine

from service.storage import migrations
from service.storage.engine import transaction

NEXT = "next"
SCRIPT = '''"""notes on entries, and a flag of runs that is copied from another."""

import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"


def upgrade() -> None:
    notes = op.create_table(
        "notes",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
    )
    op.create_index("ix_notes_first_step", "notes", ["first_step"])
    counted = "SELECT sequence, first_step FROM entries"
    op.execute("INSERT INTO notes (id, first_step) " + counted)
    op.add_column("run_balances", sa.Column("recorded", sa.BigInteger(), server_default="0"))
    op.execute("UPDATE run_balances SET recorded = steps")
    with op.batch_alter_table("run_balances") as batch:
        batch.alter_column("recorded", nullable=False, existing_server_default="0")


def downgrade() -> None:
    op.drop_column("run_balances", "recorded")
    op.drop_table("notes")
'''


def with_next_revision(folder: Path) -> Path:
    """A copy of the migrations that has the revision, too; its folder."""
    copied = folder / "migrations"
    shutil.copytree(migrations.MIGRATIONS, copied)
    script = SCRIPT.format(revision=NEXT, before=migrations.head())
    (copied / "versions" / "next.py").write_text(script, encoding="utf-8")
    return copied


def downgrade(engine: Engine, revision: str) -> None:
    """Bring the database back to an earlier revision, in one transaction."""
    with transaction(engine) as connection:
        config = migrations.configuration()
        config.attributes["connection"] = connection
        command.downgrade(config, revision)
