"""What can be seen in the database: its settings, its schema, its keys, its clock."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Connection, Engine, func, select, text

from service.clock import now, stamp, utc
from service.errors import StartupError
from service.operations.diagnostics.result import Finding, fail, ok, warn
from service.operations.diagnostics.trust import trust
from service.operations.diagnostics.unique_keys import unique_keys
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import snapshot
from service.storage.engine_probe import require_reliable
from service.storage.partitions import parts_of_entries
from service.storage.tables import INSERT_ONLY, acts, api_keys, datasets, entries, installation
from service.transparency.checkpoints import is_in_use

CLOCK_AHEAD_MAX: Final = timedelta(seconds=5)  # of the newest row, or of the database's own clock
EXPIRES_SOON: Final = timedelta(days=14)
_SQLITE_FULL: Final = 2  # of PRAGMA synchronous: a commit is on the disk
# Of pg_trigger.tgtype: once a statement, before it, and on delete, update and truncate.
_HOLDS: Final = 2 | 8 | 16 | 32
_REFUSES: Final = "BEGIN RAISE EXCEPTION '% is insert-only', TG_TABLE_NAME; END"
_TRIGGERS: Final = text(
    "SELECT c.relname AS relation, t.tgname AS name FROM pg_trigger t "
    "JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid "
    "WHERE t.tgtype = :kind AND t.tgenabled IN ('O', 'A') AND t.tgqual IS NULL "
    "AND t.tgattr::text = '' AND btrim(p.prosrc) = :body "
    "AND c.relnamespace = current_schema()::regnamespace"
)
_RESTORE_TRIGGERS: Final = (
    "a role that owns the schema removed triggers that protect facts: run `dpledger verify`, then "
    "restore a backup"
)


def ledger(engine: Engine, settings: Settings) -> Iterator[Finding]:
    """Look at a database that answers."""
    with snapshot(engine) as connection:
        yield from _durability(connection)
    found, needed = migrations.current(engine), migrations.head()
    if found != needed:
        remedy = "run `dpledger migrate`, or use the version that wrote it"
        yield fail("schema", f"revision {found or 'none'}, needed {needed}", remedy)
        return
    yield ok("schema", f"revision {found}")
    yield _reliable(engine)
    with snapshot(engine) as connection:
        yield triggers(connection)
        yield unique_keys(connection)
        newest = _newest(connection)
        yield _clock(connection, newest)
        yield _suspension(connection)
        yield from _keys(connection, settings)
        used = is_in_use(connection)
    yield from trust(settings, newest, used=used)


def _reliable(engine: Engine) -> Finding:
    try:
        require_reliable(engine)
    except StartupError as error:
        return fail("engine", str(error), "use a database that docs/guide/deploy.md lists")
    return ok("engine", "locks, triggers and snapshots hold")


def _durability(connection: Connection) -> Iterator[Finding]:
    if connection.dialect.name == "sqlite":
        mode = connection.scalar(text("PRAGMA journal_mode"))
        synchronous = connection.scalar(text("PRAGMA synchronous"))
        said = f"SQLite, journal_mode={mode}, synchronous={synchronous}"
        if mode == "wal" and synchronous >= _SQLITE_FULL:
            yield ok("durability", said)
        else:
            yield fail("durability", said, "keep the file on a local disk, not a network one")
        return
    yield from _postgres(lambda name: str(connection.scalar(text(f"SHOW {name}"))))
    query = text("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    if connection.scalar(query):
        remedy = "let the service be a role of its own: docs/guide/operate.md"
        yield warn("role", "a superuser, which can remove the triggers", remedy)
    elif connection.scalar(text(f"SELECT pg_has_role(relowner, 'MEMBER') FROM pg_class "  # noqa: S608
                                f"WHERE oid = to_regclass('{entries.name}')")):  # fmt: skip
        remedy = "let another role own them: docs/guide/operate.md"
        yield warn("role", "owns the tables and can remove the triggers", remedy)
    else:
        yield ok("role", "cannot remove the triggers")


def _postgres(show: Callable[[str], str]) -> Iterator[Finding]:
    names = ("server_version", "fsync", "full_page_writes", "synchronous_commit")
    said = "PostgreSQL " + ", ".join(f"{name}={show(name)}" for name in names)
    if show("fsync") == "off" or show("full_page_writes") == "off":
        yield fail("durability", said, "a crash may lose what was acknowledged: switch them on")
    elif show("transaction_read_only") == "on" and show("in_hot_standby") == "on":
        yield fail("durability", said, "this is a standby: name the primary")
    else:
        yield ok("durability", said)


def triggers(connection: Connection) -> Finding:
    """Whether the database itself refuses to change facts."""
    missing = sorted(_expected_triggers(connection) - _present(connection))
    if missing:
        return fail("triggers", f"missing or changed: {', '.join(missing)}", _RESTORE_TRIGGERS)
    return ok("triggers", f"{len(INSERT_ONLY)} tables are insert-only")


def _expected_triggers(connection: Connection) -> set[str]:
    names = [table.name for table in INSERT_ONLY]
    if connection.dialect.name == "sqlite":
        return {f"{name}_no_{verb}" for name in names for verb in ("update", "delete")}
    return {f"{name}_insert_only" for name in (*names, *parts_of_entries(connection))}


def _present(connection: Connection) -> set[str]:
    """The triggers that do what they are for."""
    if connection.dialect.name == "postgresql":
        rows = connection.execute(_TRIGGERS, {"kind": _HOLDS, "body": _REFUSES})
        return {row.name for row in rows if row.name == f"{row.relation}_insert_only"}
    rows = connection.execute(
        text("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    )
    return {
        row.name
        for row in rows
        for verb in ("UPDATE", "DELETE")
        if row.sql
        == f"CREATE TRIGGER {row.tbl_name}_no_{verb.lower()} BEFORE {verb} ON {row.tbl_name} "
        f"BEGIN SELECT RAISE(ABORT, '{row.tbl_name} is insert-only'); END"
    }


def _newest(connection: Connection) -> datetime | None:
    """When the newest rows were written."""
    heads = select(func.max(entries.c.recorded_at)).join(
        datasets,
        (datasets.c.id == entries.c.dataset_id) & (datasets.c.head_sequence == entries.c.sequence),
    )
    latest = select(acts.c.acted_at).order_by(acts.c.id.desc()).limit(1)
    found = [utc(one) for one in (connection.scalar(heads), connection.scalar(latest)) if one]
    return max(found, default=None)


def _clock(connection: Connection, newest: datetime | None) -> Finding:
    """Whether time goes on from the newest rows, and whether the database agrees."""
    present = now()
    if connection.dialect.name == "postgresql":
        server = utc(connection.execute(text("SELECT clock_timestamp()")).scalar_one())
        if abs(server - present) > CLOCK_AHEAD_MAX:
            said = f"here {stamp(present)}, the database's {stamp(server)}"
            return warn("clock", said, "synchronise the clocks")
    if newest is not None and newest - present > CLOCK_AHEAD_MAX:
        said = f"{stamp(present)}, before the newest row, {stamp(newest)}"
        return fail("clock", said, "set the clock right; reservations expire by it")
    return ok("clock", stamp(present))


def _suspension(connection: Connection) -> Finding:
    reason = connection.scalar(select(installation.c.suspended))
    if reason is not None:
        remedy = "nothing is recorded until an admin reconciles: docs/guide/operate.md"
        return fail("log", f"suspended: {reason}", remedy)
    return ok("log", "not suspended")


def _keys(connection: Connection, settings: Settings) -> Iterator[Finding]:
    rows = connection.execute(select(api_keys)).all()
    if not rows:
        yield _without_keys(settings)
        return
    present = now()
    held = [row for row in rows if row.revoked_at is None and _lasts(row, present)]
    admins = [row for row in held if row.scope == "admin"]
    if not admins:
        remedy = "run `dpledger keys create --scope admin --name NAME`"
        yield fail("keys", "no valid admin key", remedy)
    else:
        yield ok("keys", f"{len(held)} in force, {len(admins)} of them admin")
    soon = sorted(row.name for row in held if not _lasts(row, present + EXPIRES_SOON))
    if soon:
        said = f"within {EXPIRES_SOON.days} days: {', '.join(soon)}"
        yield warn("keys_expiring", said, "rotate them: docs/guide/operate.md")


def _lasts(row: Any, moment: Any) -> bool:
    return row.expires_at is None or utc(row.expires_at) > moment


def _without_keys(settings: Settings) -> Finding:
    if settings.loopback:
        remedy = "run `dpledger keys create --scope admin --name admin`"
        said = f"none: the start token in {settings.start_token_path} acts as an admin's key"
        return warn("keys", said, remedy)
    if settings.admin_key_file is not None:
        return ok("keys", f"none yet; the first comes from {settings.admin_key_file}")
    remedy = "run `dpledger keys create --scope admin --name NAME`, or set DPLEDGER_ADMIN_KEY_FILE"
    return fail("keys", f"none, and {settings.host} can be reached by others", remedy)
