"""The tables of keys and sessions, and what every table is made with."""

from sqlalchemy import BigInteger, Column, DateTime, Double, Integer, MetaData, String, Table, Text

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
NameText = String(63)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", NameText, nullable=False, unique=True),
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
)

# Who is signed in with a browser. Kept by hashes alone; a session is one key's and ends with it. No
# part of what is backed up, so that none is there again after a restore.
sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),  # SHA-256 of what the cookie holds
    Column("key_digest", String(64), nullable=False, index=True),  # of the secret that signed in
    Column("created_at", DateTime(timezone=True), nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
)

# When each key was last used, at most a minute late. No fact and no part of what is backed up.
key_uses = Table(
    "key_uses",
    metadata,
    Column("name", NameText, primary_key=True),
    Column("used_at", DateTime(timezone=True), nullable=False),
)
