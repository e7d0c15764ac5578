"""The entries of a PostgreSQL ledger in several tables, by dataset, each with indexes of its own.

All entries of a dataset are in one of them. A step of a branch is recorded once because each part
keeps it unique, and a branch has one dataset.
"""

from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.schema import AddConstraint, CreateIndex

from service.errors import StartupError
from service.storage.engine import hold, transaction
from service.storage.tables import entries

# A query that does not name the dataset locks each part and its indexes.
PARTS_MAX: Final = 64
_PARTS: Final = text(
    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
    "WHERE i.inhparent = to_regclass('entries') ORDER BY c.relname"
)
_OWN: Final = text(
    "SELECT pg_get_userbyid(relowner) = current_user "
    "AND relnamespace = current_schema()::regnamespace "
    "FROM pg_class WHERE oid = to_regclass('entries')"
)
# What other roles may do: granted for the table, or to any new table by default.
_GRANTED: Final = text(
    "SELECT privilege_type, is_grantable, "
    "CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END AS role "
    "FROM pg_class c, aclexplode(c.relacl) "
    "WHERE c.oid = to_regclass(:name) AND grantee <> c.relowner"
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
    """Return the names of the tables that hold the entries, if these are divided; else none."""
    if connection.dialect.name != "postgresql":
        return []
    return list(connection.execute(_PARTS).scalars())


def partition_entries(engine: Engine, parts: int) -> bool:
    """Divide the entries of a ledger that has none yet into parts by a hash of their dataset.

    Args:
        engine: a PostgreSQL database at this version's revision.
        parts: how many, in [2, 64].

    Returns:
        Whether they were divided now; False where they are in as many parts already.

    Raises:
        StartupError: it is SQLite, it has entries, they are in another number of parts, or the role
            is not the owner of the table.
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
            divide_entries(connection, parts)
    return not present


def divide_entries(connection: Connection, parts: int) -> None:
    """Put a divided table in the place of the table of entries, which is empty.

    A reader that began before would find no rows in the new table: it must miss none.

    Raises:
        StartupError: there are entries, or the role is not the owner of the table.
    """
    run = connection.exec_driver_sql
    run("LOCK TABLE entries IN ACCESS EXCLUSIVE MODE")
    if connection.scalar(text("SELECT EXISTS (SELECT 1 FROM entries)")):
        raise StartupError(
            "--partitions: the ledger has entries. Divide a new ledger, and restore a backup of "
            "this one into it; nothing was changed."
        )
    if not connection.scalar(_OWN):
        raise StartupError(
            "--partitions: the role does not own the table entries, or another schema comes first "
            "in its search_path; nothing was changed."
        )
    granted = connection.execute(_GRANTED, {"name": "entries"}).all()
    run(
        "CREATE TABLE entries_divided (LIKE entries INCLUDING DEFAULTS INCLUDING CONSTRAINTS) "
        "PARTITION BY HASH (dataset_id)"
    )
    run("DROP TABLE entries")
    run("ALTER TABLE entries_divided RENAME TO entries")
    names = [f"entries_{part:02}" for part in range(parts)]
    for part, name in enumerate(names):
        run(
            f"CREATE TABLE {name} PARTITION OF entries "
            f"FOR VALUES WITH (MODULUS {parts}, REMAINDER {part})"
        )
    _protect(connection, names)
    for name in ("entries", *names):
        for one in connection.execute(_GRANTED, {"name": name}).all():
            run(f"REVOKE ALL ON {name} FROM {one.role}")
    for one in granted:
        option = " WITH GRANT OPTION" if one.is_grantable else ""
        run(f"GRANT {one.privilege_type} ON entries TO {one.role}{option}")


def _protect(connection: Connection, names: list[str]) -> None:
    """Make the keys, indexes and triggers that the table had; unique indexes on each part."""
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
