"""The rows of API keys: created, given a new secret, revoked; each of it an act of the log.

When each key was last used is no fact: no number depends on it, and a backup leaves it out.
Requests note the time in memory. A thread stores what was noted once a minute, in a transaction of
its own: no request waits for it, and each process writes at most once a minute for each key.
"""

import hashlib
import json
import logging
import secrets
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.clock import now, stamp, utc
from service.errors import ConflictError, InvalidRequestError, LedgerError, NotFoundError
from service.identity.rate_limit import RATE_MAX, RATE_MIN
from service.ledger.log import leaves
from service.ledger.log.leaves import Act
from service.schemas.event_codec import canonical
from service.schemas.requests import PERSON_LENGTH_MAX, valid_name
from service.storage.engine import transaction, upsert
from service.storage.tables import api_keys, key_uses

KEY_PREFIX: Final = "dpl_"
KEY_BYTES: Final = 32  # of randomness; a fast hash is enough for a key that cannot be guessed
SHOWN_CHARACTERS: Final = 12  # characters of a key that are kept readable
KEY_DATASETS_MAX: Final = 1000  # that a key may name
BODY_BYTES_MIN: Final = 1024
GRACE_SECONDS: Final = 3600  # that an old secret works beside the new one
GRACE_SECONDS_MAX: Final = 30 * 24 * 3600
COMMAND_LINE: Final = "command-line"
KEY_FILE: Final = "admin-key-file"
START_TOKEN: Final = "start-token"  # noqa: S105 (a name)
# What the log of acts says of those who acted without a key; no key may pass for one of them.
RESERVED: Final = (COMMAND_LINE, KEY_FILE, START_TOKEN)
USES_SECONDS: Final = 60.0  # between two writes; a time that is shown is at most so old
_STOP_SECONDS: Final = 5.0
_LOGGER = logging.getLogger("dpledger.key_uses")


class Role(StrEnum):
    """What a key may do, and which scope a call needs."""

    VIEWER = "viewer"  # read
    TRAINER = "trainer"  # and register runs and send events
    OWNER = "owner"  # and change the settings of named datasets
    APPROVER = "approver"  # read, and decide about what another person asked for
    ADMIN = "admin"  # everything, on all datasets

    def may_call(self, *needed: "Role") -> bool:
        """Whether a key of this scope may make a call that needs one of those scopes."""
        return not _CALLS[self].isdisjoint(needed)


_CALLS: Final = {  # of each scope: the needed scopes of the calls that it may make
    Role.VIEWER: frozenset({Role.VIEWER}),
    Role.TRAINER: frozenset({Role.VIEWER, Role.TRAINER}),
    Role.OWNER: frozenset({Role.VIEWER, Role.TRAINER, Role.OWNER}),
    Role.APPROVER: frozenset({Role.VIEWER, Role.APPROVER}),
    Role.ADMIN: frozenset(Role),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a key is held to beside its scope; nothing, where it says nothing."""

    datasets: frozenset[str] | None = None  # names, also of datasets that do not exist yet
    expires_at: datetime | None = None
    requests_per_second: float | None = None  # of each process
    body_bytes_max: int | None = None

    def record(self) -> dict[str, Any]:
        """As the log of acts has it."""
        return {
            "datasets": None if self.datasets is None else sorted(self.datasets),
            "expires_at": None if self.expires_at is None else stamp(self.expires_at),
            "requests_per_second": self.requests_per_second,
            "body_bytes_max": self.body_bytes_max,
        }


FREE: Final = Terms()


def terms_of(row: Row[Any]) -> Terms:
    """What a stored key is held to."""
    return Terms(
        datasets=None if row.datasets is None else frozenset(json.loads(row.datasets)),
        expires_at=utc(row.expires_at),
        requests_per_second=row.requests_per_second,
        body_bytes_max=row.body_bytes_max,
    )


def digest_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def digests_in_force(row: Row[Any]) -> Iterator[tuple[str, datetime | None]]:
    """The digests that a stored key answers to, and until when; none of a revoked one."""
    if row.revoked_at is not None:
        return
    expires_at = utc(row.expires_at)
    yield row.digest, expires_at
    if row.previous_digest is not None:
        until = utc(row.previous_until)
        yield row.previous_digest, until if expires_at is None else min(until, expires_at)


def create_key(
    connection: Connection,
    *,
    name: str,
    scope: Role,
    key: str | None = None,
    person: str | None = None,
    terms: Terms = FREE,
    by: str = COMMAND_LINE,
) -> str:
    """Store a new key and return it; it is never readable again.

    Args:
        connection: in a transaction.
        name: of the key; never reused.
        scope: what it may do.
        key: its secret; by default a new one.
        person: who holds it; by default a person of the key's own name.
        terms: what it is held to.
        by: the key that creates it.

    Raises:
        ConflictError: the name was used before.
        InvalidRequestError: the name or the terms cannot be.
    """
    _require_name("name", name)
    person = name if person is None else person
    if person != KEY_FILE or by != KEY_FILE:
        _require_person(person)
    _require_terms(scope, terms)
    key = key or _new_secret()
    row = {"name": name, "person": person, "scope": scope, "digest": digest_of(key)}
    row |= terms.record()
    datasets = None if terms.datasets is None else canonical(sorted(terms.datasets))
    stored = {"datasets": datasets, "expires_at": terms.expires_at}
    try:
        connection.execute(
            insert(api_keys).values(
                row | stored | {"prefix": key[:SHOWN_CHARACTERS], "created_at": now()}
            )
        )
    except IntegrityError as error:
        raise ConflictError("A key of that name, or this key, already exists.") from error
    leaves.append_leaves(connection, None, [Act("key_created", row, by)])
    return key


def rotate_key(
    connection: Connection,
    name: str,
    *,
    grace_seconds: int = GRACE_SECONDS,
    expires_at: datetime | None = None,
    by: str = COMMAND_LINE,
) -> str:
    """Give a key a new secret and return it; the old one works until the grace has passed.

    One before the old one, whose grace has not passed, stops at once: two work at a time.

    Raises:
        NotFoundError: there is no key of that name.
        ConflictError: it was revoked, or has expired and is given no new time.
        InvalidRequestError: the grace or the new time cannot be.
    """
    row = locked_key(connection, name)
    if not 0 <= grace_seconds <= GRACE_SECONDS_MAX:
        raise InvalidRequestError("grace_seconds", f"must lie in [0, {GRACE_SECONDS_MAX}]")
    _require_future(expires_at)
    ends = utc(row.expires_at) if expires_at is None else expires_at
    if row.revoked_at is not None or (ends is not None and ends <= now()):
        raise ConflictError("The key was revoked, or has expired; create one with another name.")
    key, until = _new_secret(), now() + timedelta(seconds=grace_seconds)
    digests = {"digest": digest_of(key), "previous_digest": row.digest}
    connection.execute(
        update(api_keys)
        .where(api_keys.c.id == row.id)
        .values(
            digests
            | {"prefix": key[:SHOWN_CHARACTERS], "previous_until": until, "expires_at": ends}
        )
    )
    content = digests | {"name": name, "previous_until": stamp(until)}
    content["expires_at"] = None if ends is None else stamp(ends)
    leaves.append_leaves(connection, None, [Act("key_rotated", content, by)])
    return key


def list_keys(connection: Connection) -> list[Row[Any]]:
    """Every key ever created, without its secret."""
    return list(connection.execute(select(api_keys).order_by(api_keys.c.id)))


def revoke_key(
    connection: Connection, name: str, *, reason: str | None = None, by: str = COMMAND_LINE
) -> None:
    """Stop a key, and every secret it had, from working; its row stays.

    Raises:
        NotFoundError: there is none of that name.
    """
    row = locked_key(connection, name)
    if row.revoked_at is not None:
        return
    connection.execute(update(api_keys).where(api_keys.c.id == row.id).values(revoked_at=now()))
    content = {"name": name} if reason is None else {"name": name, "reason": reason}
    leaves.append_leaves(connection, None, [Act("key_revoked", content, by)])


def any_key(connection: Connection) -> bool:
    """Whether a key was ever created; a revoked one has ended the start token, too."""
    return bool(connection.scalar(select(func.count()).select_from(api_keys)))


def _new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def locked_key(connection: Connection, name: str) -> Row[Any]:
    """The row of a key, which no other transaction changes until this one ends.

    Raises:
        NotFoundError: there is none of that name.
    """
    query = select(api_keys).where(api_keys.c.name == name).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("There is no such key.")
    return row


def person_of(row: Row[Any]) -> str:
    """Who holds a stored key; a key from before persons is a person of its own."""
    return str(row.name if row.person is None else row.person)


def _require_name(field: str, name: str) -> None:
    if not valid_name(name):
        raise InvalidRequestError(field, "must match [a-z0-9][a-z0-9._-]{0,62}")
    if name in RESERVED:
        raise InvalidRequestError(field, "is reserved: the log uses it for actions without a key")


def _require_person(person: str) -> None:
    """Refuse what can name no one; issuer#subject names a person as an identity provider does."""
    if "#" not in person:
        _require_name("person", person)
    elif not (person.isascii() and person.isprintable() and len(person) <= PERSON_LENGTH_MAX):
        raise InvalidRequestError(
            "person", f"has at most {PERSON_LENGTH_MAX} printable ASCII characters"
        )


def _require_future(expires_at: datetime | None) -> None:
    if expires_at is not None and expires_at <= now():
        raise InvalidRequestError("expires", "must lie in the future")


def _require_terms(scope: Role, terms: Terms) -> None:
    _require_future(terms.expires_at)
    if scope is Role.OWNER and terms.datasets is None:
        raise InvalidRequestError("dataset", "an owner's key names the datasets that it owns")
    if terms.datasets is not None:
        if scope is Role.ADMIN:
            raise InvalidRequestError("dataset", "an admin's key cannot be limited to datasets")
        if not 1 <= len(terms.datasets) <= KEY_DATASETS_MAX:
            raise InvalidRequestError("dataset", f"from 1 to {KEY_DATASETS_MAX} of them")
        if not all(map(valid_name, terms.datasets)):
            raise InvalidRequestError("dataset", "must match [a-z0-9][a-z0-9._-]{0,62}")
    rate, size = terms.requests_per_second, terms.body_bytes_max
    if rate is not None and not RATE_MIN <= rate <= RATE_MAX:
        message = f"must lie in [{RATE_MIN:g}, {RATE_MAX:g}]"
        raise InvalidRequestError("requests_per_second", message)
    if size is not None and not BODY_BYTES_MIN <= size <= 2**31:
        raise InvalidRequestError("body_bytes_max", f"must lie in [{BODY_BYTES_MIN}, {2**31}]")


class KeyUses:
    """The uses of keys that this process has seen, and the thread that stores them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._noted: dict[str, datetime] = {}  # by key; not stored yet
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dpledger-key-uses", daemon=True)

    def note(self, name: str) -> None:
        """A key was used now."""
        with self._lock:
            self._noted[name] = now()

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is left, and end."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def store(self) -> None:
        """Store what was noted; what the database does not take is kept for the next time."""
        with self._lock:
            noted, self._noted = self._noted, {}
        noted.pop(START_TOKEN, None)  # which is no key
        if not noted:
            return
        try:
            with transaction(self._engine) as connection:
                _store_uses(connection, noted)
        except LedgerError as error:
            _LOGGER.info("the times of use were not stored: %s", error.detail)
            with self._lock:
                self._noted = noted | self._noted

    def latest(self, connection: Connection) -> dict[str, datetime]:
        """When each key was last used, by name; another process's uses may be a minute late."""
        found = {row.name: utc(row.used_at) for row in connection.execute(select(key_uses))}
        with self._lock:
            noted = dict(self._noted)
        for name, moment in noted.items():
            found[name] = max(moment, found.get(name, moment))
        return found

    def _work(self) -> None:
        while not self._stopping.wait(USES_SECONDS):
            self.store()
        self.store()


def _store_uses(connection: Connection, noted: dict[str, datetime]) -> None:
    """In the order of names, so that two processes do not wait for each other."""
    rows = [{"name": name, "used_at": moment} for name, moment in sorted(noted.items())]
    insert = upsert(connection.dialect.name, key_uses)
    given = insert.excluded.used_at
    statement = insert.on_conflict_do_update(
        index_elements=["name"], set_={"used_at": given}, where=key_uses.c.used_at < given
    )
    connection.execute(statement, rows)
