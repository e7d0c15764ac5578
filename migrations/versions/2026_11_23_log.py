"""logs that show what was changed, and what a key may do.

Older ledgers get their logs from service.ledger.log.adoption, once the schema is the newest.
"""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    for column in (
        sa.Column("expires_at", _TIME),
        sa.Column("datasets", sa.Text()),
        sa.Column("requests_per_second", sa.Double()),
        sa.Column("body_bytes_max", sa.BigInteger()),
        sa.Column("previous_digest", sa.String(64)),
        sa.Column("previous_until", _TIME),
    ):
        op.add_column("api_keys", column)
    op.add_column(
        "datasets",
        sa.Column("log_size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column("datasets", sa.Column("log_frontier", sa.LargeBinary()))
    op.add_column("entries", sa.Column("leaf", sa.LargeBinary()))
    _create_acts()
    op.create_table(
        "log_tiles",
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("level", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tile_index", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_log_tiles_dataset_id"),
        sa.PrimaryKeyConstraint("dataset_id", "level", "tile_index", name="pk_log_tiles"),
    )
    for table in ("acts", "log_tiles"):
        _hold(table)
    _require_leaves()
    _create_installation()


def _create_acts() -> None:
    op.create_table(
        "acts",
        sa.Column("id", _ID, nullable=False),
        sa.Column("dataset_id", _ID),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("after_sequence", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("by", sa.String(63)),
        sa.Column("acted_at", _TIME, nullable=False),
        sa.Column("leaf", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_acts_dataset_id"),
        sa.PrimaryKeyConstraint("id", name="pk_acts"),
        sa.UniqueConstraint("dataset_id", "position", name="uq_acts_dataset_id_position"),
    )
    op.create_index("ix_acts_dataset_id_after_sequence", "acts", ["dataset_id", "after_sequence"])


def _create_installation() -> None:
    installation = op.create_table(
        "installation",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("ledger_id", sa.String(32), nullable=False),
        sa.Column("log_size", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("log_frontier", sa.LargeBinary(), nullable=False),
        sa.Column("suspended", sa.Text()),
        sa.Column("suspended_at", _TIME),
        sa.PrimaryKeyConstraint("id", name="pk_installation"),
    )
    first = {"id": 1, "ledger_id": secrets.token_hex(16), "log_size": 0, "log_frontier": b""}
    op.get_bind().execute(installation.insert().values(first))


def _require_leaves() -> None:
    """Let the database refuse entries of an older version that still runs: it makes no leaves."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE TRIGGER entries_have_leaves BEFORE INSERT ON entries WHEN NEW.leaf IS NULL "
            "BEGIN SELECT RAISE(ABORT, 'entries need a leaf'); END"
        )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION refuse_no_leaf() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'entries need a leaf'; END $$"
    )
    op.execute(
        "CREATE TRIGGER entries_have_leaves BEFORE INSERT ON entries FOR EACH ROW "
        "WHEN (NEW.leaf IS NULL) EXECUTE FUNCTION refuse_no_leaf()"
    )


def _hold(table: str) -> None:
    """Let the database itself refuse to change or delete a row."""
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is insert-only'); END"
            )
        return
    op.execute(
        f"CREATE TRIGGER {table}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
    )


def downgrade() -> None:
    for table in ("installation", "log_tiles", "acts"):
        op.drop_table(table)  # its triggers go with it
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TRIGGER entries_have_leaves")
    else:
        op.execute("DROP TRIGGER entries_have_leaves ON entries")
        op.execute("DROP FUNCTION refuse_no_leaf()")
    op.drop_column("entries", "leaf")
    for column in ("log_frontier", "log_size"):
        op.drop_column("datasets", column)
    for column in (
        "previous_until", "previous_digest", "body_bytes_max", "requests_per_second", "datasets",
        "expires_at",
    ):  # fmt: skip
        op.drop_column("api_keys", column)
