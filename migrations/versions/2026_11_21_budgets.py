"""budgets that hold: filters, reservations, lineage, corrections, incidents; facts insert-only."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_BEFORE = 6.0  # the order that budgets of (3, 1e-5) had, for datasets that had none
_INSERT_ONLY = ("entries", "settings_changes", "corrections", "incidents", "releases")


def _moment(name: str, *, nullable: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _count(name: str, *, default: str | None = None) -> sa.Column[object]:
    text = None if default is None else sa.text(default)
    return sa.Column(name, sa.BigInteger(), server_default=text, nullable=False)


def upgrade() -> None:
    _widen_datasets()
    _widen_runs()
    for table in ("distinct_events", "run_balances"):
        op.add_column(table, _count("reserved_steps", default="0"))
        op.add_column(table, _count("reserved_passes", default="0"))
    op.add_column(
        "distinct_events",
        sa.Column("by_pass", sa.Boolean(), server_default=sa.false(), nullable=False),
    )
    op.execute(
        "UPDATE distinct_events SET by_pass = true WHERE content LIKE '%\"steps_per_pass\":%'"
    )
    op.create_index(
        "ix_distinct_events_by_pass",
        "distinct_events",
        ["dataset_id"],
        sqlite_where=sa.text("by_pass"),
        postgresql_where=sa.text("by_pass"),
    )
    # Where branches of before began is not known, and nothing is guessed.
    op.add_column("branches", sa.Column("from_branch_id", _ID, nullable=True))
    _create_lineage()
    _create_settings_changes()
    _create_reservations()
    _create_corrections()
    _create_incidents()
    _hold()


def _filters(table: str) -> None:
    """Turn each budget's order into the record of its filter."""
    bind = op.get_bind()
    for row in bind.execute(sa.text(f"SELECT id, budget_order FROM {table}")).all():  # noqa: S608
        if row.budget_order is None and table == "runs":
            continue
        order = _BEFORE if row.budget_order is None else row.budget_order
        record = json.dumps(
            {"kind": "fixed_order_renyi", "orders": [order], "weights": [1.0]},
            sort_keys=True,
            separators=(",", ":"),
        )
        bind.execute(
            sa.text(f"UPDATE {table} SET budget_filter = :record WHERE id = :id"),  # noqa: S608
            {"record": record, "id": row.id},
        )


def _widen_datasets() -> None:
    op.add_column("datasets", sa.Column("budget_filter", sa.Text(), nullable=True))
    for name, default in (("budget_revision", "0"), ("revision", "1")):
        default_text = sa.text(default)
        op.add_column(
            "datasets", sa.Column(name, sa.Integer(), server_default=default_text, nullable=False)
        )
    op.add_column("datasets", sa.Column("rows_per_parent_record", sa.String(16)))
    op.add_column("datasets", _count("version", default="0"))
    op.add_column("datasets", sa.Column("totals", sa.Text()))
    op.add_column("datasets", sa.Column("totals_version", sa.String(32)))
    _filters("datasets")
    # Services of an older version fail rather than write what they do not know of.
    op.drop_column("datasets", "budget_order")


def _widen_runs() -> None:
    for column in (
        sa.Column("budget_filter", sa.Text()),
        sa.Column("totals", sa.Text()),
        sa.Column("totals_version", sa.String(32)),
        sa.Column("on_plan", sa.Boolean()),
    ):
        op.add_column("runs", column)
    _filters("runs")
    op.drop_column("runs", "budget_order")


def _create_lineage() -> None:
    op.create_table(
        "lineage",
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("ancestor_id", _ID, nullable=False),
        sa.Column("parent", sa.Boolean(), nullable=False),
        sa.Column("exactly_one", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name="fk_lineage_dataset_id"),
        sa.ForeignKeyConstraint(["ancestor_id"], ["datasets.id"], name="fk_lineage_ancestor_id"),
        sa.PrimaryKeyConstraint("dataset_id", "ancestor_id", name="pk_lineage"),
    )
    op.create_index("ix_lineage_ancestor_id", "lineage", ["ancestor_id"])


def _create_settings_changes() -> None:
    op.create_table(
        "settings_changes",
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("revision", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("budget_epsilon", sa.Double()),
        sa.Column("budget_delta", sa.Double()),
        sa.Column("budget_revision", sa.Integer(), nullable=False),
        sa.Column("accept", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_by", sa.String(63), nullable=False),
        _count("sequence"),
        _moment("changed_at"),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name="fk_settings_changes_dataset_id"
        ),
        sa.PrimaryKeyConstraint("dataset_id", "revision", name="pk_settings_changes"),
    )
    op.execute(
        sa.text(
            "INSERT INTO settings_changes (dataset_id, revision, budget_epsilon, budget_delta, "
            "budget_revision, accept, reason, changed_by, sequence, changed_at) "
            "SELECT id, 1, budget_epsilon, budget_delta, 0, accept, 'creation', 'unknown', 0, "
            "created_at FROM datasets"
        )
    )


def _references(table: str, *names: str) -> list[sa.ForeignKeyConstraint]:
    targets = {
        "dataset_id": "datasets",
        "run_id": "runs",
        "branch_id": "branches",
        "event_id": "distinct_events",
        "incident_id": "incidents",
    }
    return [
        sa.ForeignKeyConstraint([name], [f"{targets[name]}.id"], name=f"fk_{table}_{name}")
        for name in names
    ]


def _create_reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", _ID, nullable=False),
        sa.Column("name", sa.String(63)),
        *(sa.Column(f"{noun}_id", _ID, nullable=False) for noun in _PLACE),
        *(_count(name) for name in ("first_step", "steps", "end_step")),
        sa.Column("state", sa.String(16), nullable=False),
        _moment("expires_at", nullable=True),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        _moment("created_at"),
        *_references("reservations", *(f"{noun}_id" for noun in _PLACE)),
        sa.PrimaryKeyConstraint("id", name="pk_reservations"),
        sa.UniqueConstraint("name", name="uq_reservations_name"),
    )
    op.create_index("ix_reservations_run_id", "reservations", ["run_id"])
    for columns in (["branch_id", "end_step"], ["dataset_id", "state"]):
        op.create_index(f"ix_reservations_{'_'.join(columns)}", "reservations", columns)


_PLACE = ("dataset", "run", "branch", "event")


def _create_corrections() -> None:
    op.create_table(
        "corrections",
        sa.Column("id", _ID, nullable=False),
        *(sa.Column(f"{noun}_id", _ID, nullable=False) for noun in _PLACE),
        _count("first_step"),
        _count("steps"),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("corrected_by", sa.String(63), nullable=False),
        _count("sequence"),
        _moment("recorded_at"),
        *_references("corrections", *(f"{noun}_id" for noun in _PLACE)),
        sa.PrimaryKeyConstraint("id", name="pk_corrections"),
    )
    op.create_index("ix_corrections_run_id", "corrections", ["run_id"])


def _create_incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", _ID, nullable=False),
        sa.Column("dataset_id", _ID, nullable=False),
        sa.Column("run_id", _ID),
        sa.Column("kind", sa.String(32), nullable=False),
        _count("sequence"),
        sa.Column("detail", sa.Text(), nullable=False),
        _moment("occurred_at"),
        *_references("incidents", "dataset_id", "run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_incidents"),
    )
    op.create_index("ix_incidents_dataset_id_id", "incidents", ["dataset_id", "id"])
    op.create_table(
        "deliveries",
        sa.Column("incident_id", _ID, nullable=False),
        sa.Column("target", sa.String(64), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _moment("next_attempt_at", nullable=True),
        _moment("delivered_at", nullable=True),
        *_references("deliveries", "incident_id"),
        sa.PrimaryKeyConstraint("incident_id", "target", name="pk_deliveries"),
    )


def _hold() -> None:
    """Let the database itself refuse to change or delete a fact."""
    if op.get_bind().dialect.name == "sqlite":
        for table in _INSERT_ONLY:
            for verb in ("UPDATE", "DELETE"):
                op.execute(
                    f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                    f"BEGIN SELECT RAISE(ABORT, '{table} is insert-only'); END"
                )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is insert-only', TG_TABLE_NAME; END $$"
    )
    for table in _INSERT_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    for table in ("deliveries", "incidents", "corrections", "reservations", "settings_changes"):
        op.drop_table(table)
    op.drop_table("lineage")
    if sqlite:
        for table in ("entries", "releases"):
            for verb in ("update", "delete"):
                op.execute(f"DROP TRIGGER {table}_no_{verb}")
    else:
        op.execute("DROP FUNCTION refuse_change() CASCADE")
    op.drop_column("branches", "from_branch_id")
    op.drop_index("ix_distinct_events_by_pass", table_name="distinct_events")
    op.drop_column("distinct_events", "by_pass")
    for table in ("distinct_events", "run_balances"):
        op.drop_column(table, "reserved_steps")
        op.drop_column(table, "reserved_passes")
    for table in ("datasets", "runs"):
        op.add_column(table, sa.Column("budget_order", sa.Double()))
        _orders(table)
        op.drop_column(table, "budget_filter")
        op.drop_column(table, "totals")
        op.drop_column(table, "totals_version")
    op.drop_column("runs", "on_plan")
    for name in ("budget_revision", "revision", "rows_per_parent_record", "version"):
        op.drop_column("datasets", name)


def _orders(table: str) -> None:
    bind = op.get_bind()
    query = sa.text(f"SELECT id, budget_filter, budget_epsilon FROM {table}")  # noqa: S608
    for row in bind.execute(query).all():
        if row.budget_epsilon is None:
            continue
        bind.execute(
            sa.text(f"UPDATE {table} SET budget_order = :order WHERE id = :id"),  # noqa: S608
            {"order": json.loads(row.budget_filter)["orders"][0], "id": row.id},
        )
