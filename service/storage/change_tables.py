"""The tables of changes that wait for another person, and of what was decided.

Both are insert-only: whether a change is pending follows from them, the clock and the revision of
the dataset.
"""

from sqlalchemy import Column, DateTime, ForeignKey, Integer, String, Table, Text

from service.storage.schema import ActorText, Id, ShortText, metadata

change_requests = Table(
    "change_requests",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", ShortText, nullable=False, unique=True),  # random
    Column("dataset_id", ForeignKey("datasets.id"), index=True),
    Column("kind", String(16), nullable=False),
    Column("target", ShortText),  # the run or the reservation that it is about, if any
    Column("change", Text, nullable=False),  # canonical JSON of the body that would be applied
    Column("revision", Integer),  # of the settings that it was decided on; none if none matters
    Column("reason", Text, nullable=False),
    Column("by", ActorText, nullable=False),  # the key's name
    Column("person", ActorText, nullable=False),  # who held the key
    Column("requested_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

change_decisions = Table(
    "change_decisions",
    metadata,
    # One decision a request, whatever two writers do at once.
    Column("request_id", ForeignKey("change_requests.id"), primary_key=True, autoincrement=False),
    Column("decision", String(16), nullable=False),  # approved, rejected or withdrawn
    Column("reason", Text, nullable=False),
    Column("by", ActorText, nullable=False),
    Column("person", ActorText, nullable=False),
    Column("decided_at", DateTime(timezone=True), nullable=False),
)
