"""Whether the database itself refuses to record the same thing twice."""

from collections.abc import Iterator
from typing import Final

from sqlalchemy import Connection, Index, PrimaryKeyConstraint, Table, UniqueConstraint, text

from service.operations.diagnostics.result import Finding, fail, ok
from service.storage.partitions import parts_of_entries
from service.storage.schema import metadata
from service.storage.tables import entries

_Key = tuple[str, frozenset[str]]  # a table and its columns
# Only an index that is whole and in use refuses a second row.
_POSTGRES: Final = text(
    "SELECT i.indexrelid AS index, c.relname AS relation, a.attname AS name FROM pg_index i "
    "JOIN pg_class c ON c.oid = i.indrelid "
    "JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY(i.indkey) "
    "WHERE i.indisunique AND i.indisvalid AND i.indislive "
    "AND i.indpred IS NULL AND i.indexprs IS NULL "
    "AND c.relnamespace = current_schema()::regnamespace"
)
_SQLITE: Final = text(
    "SELECT i.name AS index_name, t.name AS relation, c.name AS name FROM sqlite_master t "
    "JOIN pragma_index_list(t.name) i JOIN pragma_index_info(i.name) c "
    "WHERE t.type = 'table' AND i.\"unique\" AND NOT i.partial"
)
_REMEDY: Final = (
    "a role that owns the schema removed what keeps a fact from being recorded twice: stop the "
    "service, run `dpledger verify`, then restore a backup"
)


def unique_keys(connection: Connection) -> Finding:
    """Whether every key of the schema that is to be unique is kept so."""
    wanted = set(_declared_keys(parts_of_entries(connection)))
    missing = sorted(f"{table} ({', '.join(sorted(names))})"
                     for table, names in wanted - _existing_keys(connection))  # fmt: skip
    if missing:
        return fail("unique_keys", f"missing: {'; '.join(missing)}", _REMEDY)
    return ok("unique_keys", f"{len(wanted)} keys are unique")


def _declared_keys(parts: list[str]) -> Iterator[_Key]:
    for table in metadata.sorted_tables:
        for names in _keys_of(table):
            # A divided table keeps unique what has the dataset; of the rest, each part does.
            divided = table is entries and parts and entries.c.dataset_id.name not in names
            for name in parts if divided else (table.name,):
                yield name, names


def _keys_of(table: Table) -> Iterator[frozenset[str]]:
    for key in (*table.constraints, *table.indexes):
        names = frozenset(column.name for column in getattr(key, "columns", ()))
        if isinstance(key, UniqueConstraint) or (isinstance(key, Index) and key.unique):
            yield names
        # One column is the row's own number, which SQLite keeps without an index.
        if isinstance(key, PrimaryKeyConstraint) and len(names) > 1:
            yield names


def _existing_keys(connection: Connection) -> set[_Key]:
    query = _POSTGRES if connection.dialect.name == "postgresql" else _SQLITE
    found: dict[tuple[object, str], set[str]] = {}
    for index, relation, name in connection.execute(query):
        found.setdefault((index, relation), set()).add(name)
    return {(relation, frozenset(names)) for (_, relation), names in found.items()}
