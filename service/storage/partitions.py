"""Entries in several tables of PostgreSQL, by dataset: each is vacuumed and rebuilt by itself.

A dataset's entries are in one of them. A step of a branch is recorded once because each part keeps
it unique, and a branch has one dataset.
"""

from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.schema import AddConstraint, CreateIndex

from service.errors import StartupError
from service.storage.engine import hold, transaction
from service.storage.tables import entries

PARTS_MAX: Final = 1024
_PARTS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = to_regclass('entries') ORDER BY c.relname"
)
# What other roles may do with the table, which a new one does not know.
_GRANTS: Final = text(
    "SELECT format('GRANT %s ON entries TO %s%s', privilege_type, "
    "CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, "
    "CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) "
    "FROM pg_class c, aclexplode(c.relacl) "
    "WHERE c.oid = to_regclass('entries') AND grantee <> c.relowner"
)
_REFUSE_CHANGE: Final = (
    "CREATE TRIGGER {0}_insert_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {0} "
    "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
)
_REFUSE_NO_LEAF: Final = (
    "CREATE TRIGGER entries_have_leaves BEFORE INSERT ON entries FOR EACH ROW "
    "WHEN (NEW.leaf IS NULL) EXECUTE FUNCTION refuse_no_leaf()"
)


def parts_of_entries(connection: Connection) -> list[str]:
    """The tables that hold the entries of a PostgreSQL ledger, where there are several; or none."""
    return list(connection.execute(_PARTS).scalars())


def partition_entries(engine: Engine, parts: int) -> bool:
    """Divide the entries into parts by a hash of their dataset, in one transaction.

    Nothing is recorded meanwhile; each entry is copied once.

    Args:
        engine: a PostgreSQL database at this version's revision.
        parts: how many, in [2, 1024].

    Returns:
        Whether they were divided now; False where they are in as many parts already.

    Raises:
        StartupError: it is SQLite, or the entries are in another number of parts.
        UnavailableError: the database does not answer.
    """
    if engine.dialect.name != "postgresql":
        raise StartupError("--partitions: only a ledger on PostgreSQL can be divided.")
    if not 2 <= parts <= PARTS_MAX:
        raise StartupError(f"--partitions: {parts} is not in [2, {PARTS_MAX}].")
    with transaction(engine) as connection:
        hold(connection, alone=True)
        present = len(parts_of_entries(connection))
        if present not in (0, parts):
            raise StartupError(
                f"--partitions: the entries are in {present} parts already; that cannot be changed."
            )
        if not present:
            _divide(connection, parts)
    return not present


def _divide(connection: Connection, parts: int) -> None:
    run = connection.exec_driver_sql
    grants = list(connection.execute(_GRANTS).scalars())
    run(
        "CREATE TABLE entries_divided (LIKE entries INCLUDING DEFAULTS INCLUDING CONSTRAINTS) "
        "PARTITION BY HASH (dataset_id)"
    )
    names = [f"entries_{part:04}" for part in range(parts)]
    for part, name in enumerate(names):
        run(
            f"CREATE TABLE {name} PARTITION OF entries_divided "
            f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        )
    there = connection.scalar(text("SELECT count(*) FROM entries"))
    copied = run("INSERT INTO entries_divided SELECT * FROM entries").rowcount
    if copied != there:
        raise StartupError(f"--partitions: {copied} of {there} entries were copied.")
    run("DROP TABLE entries")
    run("ALTER TABLE entries_divided RENAME TO entries")
    _protect(connection, names)
    for grant in grants:
        run(grant)
    run("ANALYZE entries")


def _protect(connection: Connection, names: list[str]) -> None:
    """Make the keys, indexes and triggers that the table had; a part has what must be unique."""
    for constraint in (entries.primary_key, *entries.foreign_key_constraints):
        connection.execute(AddConstraint(constraint, isolate_from_table=False))
    for index in entries.indexes:
        if index.unique:
            columns = ", ".join(index.columns.keys())
            for name in names:
                connection.exec_driver_sql(f"CREATE UNIQUE INDEX ON {name} ({columns})")
        else:
            connection.execute(CreateIndex(index))
    for name in ("entries", *names):
        connection.exec_driver_sql(_REFUSE_CHANGE.format(name))
    connection.exec_driver_sql(_REFUSE_NO_LEAF)
