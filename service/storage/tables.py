"""The tables. Entries are insert-only; counts are a cache of a fold over them.

Facts are held insert-only by triggers of the migrations, on both databases (INSERT_ONLY).
"""

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
    LargeBinary,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

from service.storage.change_tables import change_decisions as change_decisions
from service.storage.change_tables import change_requests as change_requests
from service.storage.identity_tables import api_keys as api_keys
from service.storage.identity_tables import installation as installation
from service.storage.identity_tables import key_uses as key_uses
from service.storage.identity_tables import sessions as sessions
from service.storage.schema import ActorText, Id
from service.storage.schema import ShortText as NameText
from service.storage.schema import metadata as metadata
from service.trace_context import TRACEPARENT_LENGTH

datasets = Table(
    "datasets",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", NameText, nullable=False, unique=True),
    Column("dataset_size", BigInteger, nullable=False),
    Column("neighboring_relation", String(32), nullable=False),
    Column("privacy_unit", Text, nullable=False),
    Column("budget_epsilon", Double),
    Column("budget_delta", Double),
    # JSON: the kind of filter, its orders and weights. Fixed at creation, budget or not, for an
    # order that was chosen after answers were seen would prove nothing.
    Column("budget_filter", Text),
    # How often the limit was set anew after answers were seen, and how often any setting was
    # (If-Match).
    Column("budget_revision", Integer, nullable=False, server_default=text("0")),
    Column("revision", Integer, nullable=False, server_default=text("1")),
    Column("accept", Text, nullable=False),  # JSON list of statuses
    # Whether nothing is admitted, here and in all that was made from it.
    Column("frozen", Boolean, nullable=False, server_default=false()),
    Column("rows_per_parent_record", String(16)),  # attested where the dataset has parents
    Column("request", Text, nullable=False),  # canonical JSON of the creation
    Column("head_sequence", BigInteger, nullable=False),  # of the latest entry; 0 before the first
    # Moves with every change under the dataset's lock: what was read at a version is still so.
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    # JSON: what the filter adds up, of this dataset and of all that descend from it; a cache of a
    # fold that this version of the accounting made.
    Column("totals", Text),
    Column("totals_version", String(32)),
    # Its Merkle log: how many leaves, and the roots of the perfect subtrees they fall into.
    Column("log_size", BigInteger, nullable=False, server_default=text("0")),
    Column("log_frontier", LargeBinary),  # none before the first leaf
    Column("created_at", DateTime(timezone=True), nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", NameText, nullable=False, unique=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False, index=True),
    Column("writer", String(128), nullable=False),
    Column("delta", Double),
    Column("release", String(16), nullable=False),
    Column("assumptions", Text, nullable=False),  # JSON object
    Column("plan", Text),  # JSON list of events
    Column("labels", Text, nullable=False),  # JSON object
    Column("budget_epsilon", Double),
    Column("budget_delta", Double),
    Column("budget_filter", Text),
    # JSON: what the dataset's filter and the run's own add up, as in datasets.
    Column("totals", Text),
    Column("totals_version", String(32)),
    # Of a run whose own budget is held by its plan: whether it has kept to it so far.
    Column("on_plan", Boolean),
    Column("request", Text, nullable=False),
    Column("by", ActorText),  # the key that registered it
    Column("state", String(32).with_variant(String(16), "sqlite"), nullable=False),
    # Whether it ever went on after its end; for good.
    Column("reopened", Boolean, nullable=False, server_default=false()),
    Column("created_at", DateTime(timezone=True), nullable=False),
)

# Each different step a dataset has seen, once; a dataset's event counts.
distinct_events = Table(
    "distinct_events",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("content", String(512), nullable=False),  # canonical JSON of mechanism and sampling
    Column("steps", BigInteger, nullable=False),
    Column("passes", BigInteger, nullable=False),
    Column("starts", BigInteger, nullable=False, server_default=text("0")),
    # Admitted ahead and not yet recorded.
    Column("reserved_steps", BigInteger, nullable=False, server_default=text("0")),
    Column("reserved_passes", BigInteger, nullable=False, server_default=text("0")),
    Column("by_pass", Boolean, nullable=False, server_default=false()),  # passes are what counts
    # Passes by the noise of their first step.
    Column("begun", BigInteger, nullable=False, server_default=text("0")),
    Column("reserved_begun", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("dataset_id", "content"),
    # Few, but needed whole whenever one of them changes: the migration says that it has those alone
    # that are by pass. Said here, it would load PostgreSQL's dialect into a service on SQLite.
    Index("ix_distinct_events_by_pass", "dataset_id"),
)

# How noise is correlated over the steps of a pass, named by its content. Insert-only.
strategies = Table(
    "strategies",
    metadata,
    Column("digest", String(71), primary_key=True),
    Column("content", Text, nullable=False),  # canonical JSON
    Column("by", ActorText),  # the key that stored it
    Column("created_at", DateTime(timezone=True), nullable=False),
)

run_balances = Table(
    "run_balances",
    metadata,
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("event_id", ForeignKey("distinct_events.id"), primary_key=True),
    Column("steps", BigInteger, nullable=False),
    Column("passes", BigInteger, nullable=False),
    Column("starts", BigInteger, nullable=False),
    Column("reserved_steps", BigInteger, nullable=False, server_default=text("0")),
    Column("reserved_passes", BigInteger, nullable=False, server_default=text("0")),
    Column("begun", BigInteger, nullable=False),
    Column("reserved_begun", BigInteger, nullable=False, server_default=text("0")),
)

branches = Table(
    "branches",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("name", NameText, nullable=False),
    Column("writer", String(128), nullable=False),
    # Whose steps before from_step it shares. No foreign key: SQLite could not drop it again.
    Column("from_branch_id", Id),
    Column("from_step", BigInteger, nullable=False),
    # What was said of the order of the records: fresh or continued; none where nothing was.
    Column("order", String(16)),
    # What was said of its correlated noise: fresh, or nothing.
    Column("noise", String(16)),
    # Whether the pass that was open where it began is this branch's from there on.
    Column("takes_pass", Boolean, nullable=False, server_default=false()),
    Column("next_step", BigInteger, nullable=False),
    # The pass that is open where steps are counted by pass. The position is negative where passes
    # may begin elsewhere than they are counted from; 0 without an event before any step of such. It
    # is larger by 2^41 where correlated noise may be used elsewhere.
    Column("pass_event_id", ForeignKey("distinct_events.id")),
    Column("pass_position", BigInteger),
    Column("by", ActorText),  # the key that opened it
    Column("appended_by", ActorText),  # the key that appended last; each change is an act
    Column("created_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("run_id", "name"),
)

# Which datasets a dataset was made from, at any remove. Fixed at creation.
lineage = Table(
    "lineage",
    metadata,
    Column("dataset_id", ForeignKey("datasets.id"), primary_key=True),
    Column("ancestor_id", ForeignKey("datasets.id"), primary_key=True, index=True),
    Column("parent", Boolean, nullable=False),  # named in the request, not further up
    Column("exactly_one", Boolean, nullable=False),  # row for each record, on the whole path
    Column("most_rows", Integer, nullable=False),  # of a record, on the whole path
)

# Every budget and list of statuses a dataset ever had, and why it changed. Insert-only.
settings_changes = Table(
    "settings_changes",
    metadata,
    Column("dataset_id", ForeignKey("datasets.id"), primary_key=True),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("budget_epsilon", Double),
    Column("budget_delta", Double),
    Column("budget_revision", Integer, nullable=False),
    Column("accept", Text, nullable=False),
    Column("frozen", Boolean, nullable=False, server_default=false()),
    Column("reason", Text, nullable=False),
    Column("changed_by", ActorText, nullable=False),  # the key's name
    Column("sequence", BigInteger, nullable=False),  # the dataset's head at that time
    Column("changed_at", DateTime(timezone=True), nullable=False),
    Column("requested_by", ActorText),  # the key that asked for it, where another one approved it
)

# Steps admitted ahead. One row each; what is left of it is end_step less the branch's next step.
reservations = Table(
    "reservations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", NameText, unique=True),  # null for what a run's plan reserves
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
    Column("event_id", ForeignKey("distinct_events.id"), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),  # that were admitted
    Column("end_step", BigInteger, nullable=False),  # the step after the last that may still run
    # open, released or voided. An open one is pending, recorded or forfeited by steps and clock.
    Column("state", String(16), nullable=False),
    Column("expires_at", DateTime(timezone=True)),
    Column("request", Text, nullable=False),
    Column("reason", Text),  # of an admin who voided it
    Column("by", ActorText),  # the key that reserved
    Column("created_at", DateTime(timezone=True), nullable=False),
    Index("ix_reservations_branch_id_end_step", "branch_id", "end_step"),
    Index("ix_reservations_dataset_id_state", "dataset_id", "state"),
)

# What was really done where an entry was mistaken. Insert-only, and enforced only upwards.
corrections = Table(
    "corrections",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("run_id", ForeignKey("runs.id"), nullable=False, index=True),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("event_id", ForeignKey("distinct_events.id"), nullable=False),
    Column("reason", Text, nullable=False),
    Column("corrected_by", ActorText, nullable=False),
    Column("sequence", BigInteger, nullable=False),  # the dataset's head at that time
    Column("recorded_at", DateTime(timezone=True), nullable=False),
)

# Events that need attention. Insert-only; webhooks use the same id.
incidents = Table(
    "incidents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("run_id", ForeignKey("runs.id")),
    Column("kind", String(32), nullable=False),
    Column("sequence", BigInteger, nullable=False),  # the dataset's head after it
    Column("detail", Text, nullable=False),  # JSON object
    Column("occurred_at", DateTime(timezone=True), nullable=False),
    Index("ix_incidents_dataset_id_id", "dataset_id", "id"),
)

# What was done about incidents: whether one is open, and whose it is, follows. Insert-only.
incident_notes = Table(
    "incident_notes",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id"), nullable=False),
    Column("incident_id", ForeignKey("incidents.id"), nullable=False),
    Column("action", String(16), nullable=False),  # comment, assign, acknowledge or reopen
    Column("text", Text, nullable=False),
    Column("assignee", ActorText),  # of an assignment: the key's name; none for no key
    Column("by", ActorText, nullable=False),  # the key's name
    Column("noted_at", DateTime(timezone=True), nullable=False),
    Index("ix_incident_notes_incident_id_action_id", "incident_id", "action", "id"),
)

# Which incidents a webhook has taken, and when to try the others again.
deliveries = Table(
    "deliveries",
    metadata,
    Column("incident_id", ForeignKey("incidents.id"), primary_key=True),
    Column("target", String(64), primary_key=True),  # SHA-256 of the address
    Column("attempts", Integer, nullable=False),
    Column("next_attempt_at", DateTime(timezone=True)),  # none once it is over
    Column("delivered_at", DateTime(timezone=True)),
)

# Released iterates; facts, like entries, and never deleted.
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

# What a trainer's client read from the code that runs; no epsilon depends on it. Insert-only.
findings = Table(
    "findings",
    metadata,
    Column("id", Id, primary_key=True),
    Column("run_id", ForeignKey("runs.id"), nullable=False),
    Column("branch_id", ForeignKey("branches.id"), nullable=False),
    Column("kind", String(16), nullable=False),
    # What is compared: a sampling's status, a rank's world size and fingerprint, a verdict.
    Column("claim", String(80), nullable=False),
    Column("content", Text, nullable=False),  # canonical JSON of the message
    Column("digest", String(64), nullable=False),  # SHA-256 of the content
    Column("recorded_at", DateTime(timezone=True), nullable=False),
    UniqueConstraint("branch_id", "digest"),
    Index("ix_findings_run_id_kind", "run_id", "kind"),
    Index("ix_findings_branch_id_kind_claim", "branch_id", "kind", "claim"),
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
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # of the request; not in the leaf
    # Its hash in the dataset's log; service.ledger.log.leaves says of what.
    Column("leaf", LargeBinary),
    CheckConstraint("steps > 0", name="steps_positive"),
    Index("ix_entries_branch_id_first_step", "branch_id", "first_step", unique=True),
    Index("ix_entries_run_id_sequence", "run_id", "sequence"),
    sqlite_with_rowid=False,  # its key is then no index of its own: one page less in each commit
)

# Whatever else happened, in words, as leaves of the logs between the entries. Insert-only.
acts = Table(
    "acts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("dataset_id", ForeignKey("datasets.id")),  # none: the installation's log
    Column("position", BigInteger, nullable=False),  # of the leaf, from 0
    Column("after_sequence", BigInteger, nullable=False),  # the entry it stands behind
    Column("kind", String(32), nullable=False),
    Column("content", Text, nullable=False),  # canonical JSON
    Column("by", ActorText),  # the key that did it, if any
    Column("acted_at", DateTime(timezone=True), nullable=False),
    Column("traceparent", String(TRACEPARENT_LENGTH)),  # as of entries
    Column("leaf", LargeBinary, nullable=False),
    UniqueConstraint("dataset_id", "position"),
    Index("ix_acts_dataset_id_after_sequence", "dataset_id", "after_sequence"),
)

# The root of each complete subtree of 256**level leaves, so that a proof reads few rows.
log_tiles = Table(
    "log_tiles",
    metadata,
    Column("dataset_id", ForeignKey("datasets.id"), primary_key=True),
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("tile_index", BigInteger, primary_key=True, autoincrement=False),
    Column("root", LargeBinary, nullable=False),
)

INSERT_ONLY = (
    entries, settings_changes, corrections, incidents, releases, findings, acts, log_tiles,
    incident_notes, change_requests, change_decisions, strategies,
)  # fmt: skip
