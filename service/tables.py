"""The tables. Entries are insert-only; balances are a cache of a fold over them."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite numbers rows by itself only in a column that is exactly INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")
Name = String(63)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("scope", String(16), nullable=False),
    Column("prefix", String(16), nullable=False),  # enough to recognise a key, not to use it
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of the whole key
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("revoked_at", DateTime(timezone=True)),
)

datasets = Table(
    "datasets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("dataset_size", BigInteger, nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("privacy_unit", Text, nullable=False),
    Column("budget_epsilon", Double),
    Column("budget_delta", Double),
    Column("budget_order", Double),  # the Renyi filter's order; fixed with the budget
    Column("accept", Text, nullable=False),  # JSON list of statuses
    Column("request", Text, nullable=False),  # canonical JSON of the creation
    Column("head_sequence", BigInteger, nullable=False),  # of the latest entry; 0 before the first
    Column("created_at", DateTime(timezone=True), nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Name, nullable=False, unique=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False, index=True),
    Column("writer", String(128), nullable=False),
    Column("delta", Double),
    Column("release", String(16), nullable=False),
    Column("assumptions", Text, nullable=False),  # JSON object
    Column("plan", Text),  # JSON list of events
    Column("labels", Text, nullable=False),  # JSON object
    Column("budget_epsilon", Double),
    Column("budget_delta", Double),
    Column("budget_order", Double),
    Column("request", Text, nullable=False),
    Column("state", String(16), nullable=False),
    # Whether steps were ever recorded after its end; for good.
    Column("reopened", Boolean, nullable=False, server_default=false()),
    Column("created_at", DateTime(timezone=True), nullable=False),
)

# Each different step a dataset has seen, once; the counts are the dataset's balance.
distinct_events = Table(
    "distinct_events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("content", String(512), nullable=False),  # canonical JSON of mechanism and sampling
    Column("steps", BigInteger, nullable=False),
    Column("passes", BigInteger, nullable=False),
    # SQLite cannot drop the default of the migration from a table that others refer to.
    Column("starts", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("dataset_id", "content"),
)

run_balances = Table(
    "run_balances",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("event_id", ForeignKey("distinct_events.id"), primary_key=True),
    Column("steps", BigInteger, nullable=False),
    Column("passes", BigInteger, nullable=False),
    Column("starts", BigInteger, nullable=False),
)

branches = Table(
    "branches",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("name", Name, nullable=False),
    Column("writer", String(128), nullable=False),
    Column("from_step", BigInteger, nullable=False),
    Column("next_step", BigInteger, nullable=False),
    # The pass that is open where steps are counted by pass.
    Column("pass_event_id", ForeignKey("distinct_events.id")),
    Column("pass_position", BigInteger),
    Column("created_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("run_id", "name"),
)

# Iterates that were shown to somebody; facts, like entries, and never deleted.
releases = Table(
    "releases",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
    Column("step", BigInteger, nullable=False),  # the iterate after this step
    Column("recorded_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("branch_id", "step"),
)

entries = Table(
    "entries",
    metadata,
    Column("dataset_id", ForeignKey("datasets.id"), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("event_id", ForeignKey("distinct_events.id"), nullable=False),
    Column("mode", String(8), nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("recorded_at", DateTime(timezone=True), nullable=False),
    CheckConstraint("steps > 0", name="steps_positive"),
    Index("ix_entries_branch_id_first_step", "branch_id", "first_step", unique=True),
    Index("ix_entries_run_id_sequence", "run_id", "sequence"),
)
