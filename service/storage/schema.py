"""What every table is made with: the metadata, and the types of numbers and of names."""

from sqlalchemy import BigInteger, Integer, MetaData, String

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
ShortText = String(63)
# Who acts: a key's name, or issuer#subject of a person or a pod; SQLite checks no lengths.
ActorText = String(512).with_variant(String(63), "sqlite")
