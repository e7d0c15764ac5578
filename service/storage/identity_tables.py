"""The tables of keys, sessions and the installation."""

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    text,
)

from service.storage.schema import ActorText, Id, ShortText, metadata

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", ShortText, nullable=False, unique=True),
    Column("scope", String(16), nullable=False),
    Column("prefix", String(16), nullable=False),  # enough to recognise a key, not to use it
    Column("digest", String(64), nullable=False, unique=True),  # SHA-256 of the whole key
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("revoked_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
    Column("datasets", Text),  # JSON list of the names it is limited to; none for all
    Column("requests_per_second", Double),  # none for what the settings say
    Column("body_bytes_max", BigInteger),
    # Of the secret before this one, which works until then beside it.
    Column("previous_digest", String(64)),
    Column("previous_until", DateTime(timezone=True)),
    Column("person", ActorText),  # who holds it; none for a person of the key's own name
)

# Who is signed in with a browser. Kept by hashes alone; a session is one key's and ends with it. No
# part of what is backed up, so that none is there again after a restore.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of what the cookie holds
    Column("key_digest", String(64), nullable=False, index=True),  # of the secret that signed in
    Column("principal", Text),  # JSON: a person, as an identity provider told it
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

# When each key was last used, at most a minute late. No fact and no part of what is backed up.
key_uses = Table(
    "key_uses",
    metadata,
    Column("name", ActorText, primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False),
)

# What is one in a database: its identity, the log of acts that belong to no dataset, and whether
# writing is refused because the database is not what it was.
installation = Table(
    "installation",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("ledger_id", String(32), nullable=False),  # random
    Column("log_size", BigInteger, nullable=False, server_default=text("0")),
    Column("log_frontier", LargeBinary, nullable=False),
    Column("suspended", Text),  # JSON: why
    Column("suspended_at", DateTime(timezone=True)),
)
