"""What an admin does with keys over HTTP: list, create, rotate, revoke."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError
from sqlalchemy import Connection, Row, select

from service.clock import now, stamp, utc
from service.errors import (
    AnotherPersonError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
)
from service.identity import keys
from service.identity.keys import (
    BODY_BYTES_MIN,
    GRACE_SECONDS,
    GRACE_SECONDS_MAX,
    KEY_DATASETS_MAX,
    SHOWN_CHARACTERS,
    START_TOKEN,
    Role,
    Terms,
)
from service.identity.rate_limit import RATE_MAX, RATE_MIN
from service.ledger.log.leaves import INSTALLATION_ROW
from service.ledger.lookups import page_of_rows
from service.schemas.message import Body, Within
from service.schemas.requests import Name, PersonName, Text
from service.schemas.responses import Answer, Page
from service.storage.tables import api_keys

BODY_BYTES_MOST: Final = 2**31
_MOMENT_MAX: Final = 40  # characters
_PLACES: Final = {"dataset": "datasets", "expires": "expires_at"}  # where a message says more
_FIRST: Final = (
    "must be admin: the first key ends the start token, and an admin must be able to go on"
)
_LAST: Final = "must be the key's name, to confirm that the last admin key in force is to end"


def _moment(text: str) -> datetime:
    """A time in ISO 8601; UTC where it names no zone."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _is_moment(text: str) -> str:
    try:
        _moment(text)
    except (ValueError, OverflowError):
        raise PydanticCustomError(
            "not_a_time", "must be a time such as 2027-01-31T12:00:00Z"
        ) from None
    return text


KeyMoment = Annotated[str, Field(max_length=_MOMENT_MAX), AfterValidator(_is_moment)]
KeyScope = Literal["viewer", "trainer", "owner", "approver", "admin"]
KeyRate = Annotated[float, Within(RATE_MIN, RATE_MAX)]
BodyBytes = Annotated[int, Within(BODY_BYTES_MIN, BODY_BYTES_MOST)]
GraceSeconds = Annotated[int, Within(0, GRACE_SECONDS_MAX)]


class NewKey(Body):
    """A key that an admin asks for."""

    name: Name
    scope: KeyScope
    person: PersonName | None = None
    datasets: Annotated[list[Name], Field(min_length=1, max_length=KEY_DATASETS_MAX)] | None = None
    expires_at: KeyMoment | None = None
    requests_per_second: KeyRate | None = None
    body_bytes_max: BodyBytes | None = None

    @property
    def terms(self) -> Terms:
        """What the key is held to."""
        return Terms(
            datasets=None if self.datasets is None else frozenset(self.datasets),
            expires_at=None if self.expires_at is None else _moment(self.expires_at),
            requests_per_second=self.requests_per_second,
            body_bytes_max=self.body_bytes_max,
        )


_ADMIN_KEYS: Final = (
    select(api_keys.c.name, api_keys.c.expires_at)
    .where(api_keys.c.scope == Role.ADMIN, api_keys.c.revoked_at.is_(None))
    .order_by(api_keys.c.id)
)


class KeyRotation(Body):
    """How a key gets a new secret."""

    grace_seconds: GraceSeconds = GRACE_SECONDS
    expires_at: KeyMoment | None = None
    prefix: Annotated[str, Field(min_length=1, max_length=SHOWN_CHARACTERS)] | None = None


class KeyRevocation(Body):
    """Why a key stops working."""

    reason: Text
    confirm_name: Name | None = None


class KeyAnswer(Answer):
    """A key without its secret."""

    name: str
    scope: KeyScope
    person: str
    state: Literal["active", "expired", "revoked"]
    prefix: str
    datasets: list[str] | None
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    previous_until: str | None
    requests_per_second: float | None
    body_bytes_max: int | None
    last_used_at: str | None


class KeySecret(KeyAnswer):
    """A key with its new secret, which is never told again."""

    secret: str


class KeyPage(Page):
    """Every key ever created, the oldest first."""

    keys: list[KeyAnswer]


def keys_page(
    connection: Connection, uses: Mapping[str, datetime], *, after: int, size: int
) -> tuple[list[KeyAnswer], int | None]:
    """Keys behind a row, and the row to continue after."""
    rows, last = page_of_rows(connection, select(api_keys), api_keys, after=after, size=size)
    return key_answers(rows, uses), last


def key_answers(rows: Iterable[Row[Any]], uses: Mapping[str, datetime]) -> list[KeyAnswer]:
    """Keys by their rows, and when each was last used, by name."""
    return [_answer(row, uses) for row in rows]


def issue_key(
    connection: Connection, new: NewKey, *, by: str, own_person: str | None = None
) -> KeySecret:
    """Create a key.

    Args:
        connection: in a transaction.
        new: what is asked for.
        by: the caller's name.
        own_person: the only person whose keys the caller may make; None for any.

    Raises:
        UnauthorizedError: the start token asks for a second key.
        AnotherPersonError: the key would be another person's.
        ConflictError: the name was used before.
        InvalidRequestError: the name or the terms cannot be, or the first key is no admin's.
    """
    _require_first(connection, by)
    role = Role(new.scope)
    if role is not Role.ADMIN and not keys.any_key(connection):
        raise InvalidRequestError("body.scope", _FIRST)
    _require_own(own_person, new.person or new.name)
    with _in_body():
        secret = keys.create_key(
            connection, name=new.name, scope=role, person=new.person, terms=new.terms, by=by
        )
    return KeySecret(**dict(find_key(connection, new.name, {})), secret=secret)


def renew_key(
    connection: Connection, name: str, asked: KeyRotation, *, by: str, own_person: str | None = None
) -> KeySecret:
    """Give a key a new secret.

    Args:
        connection: in a transaction.
        name: of the key.
        asked: how.
        by: the caller's name.
        own_person: the only person whose keys the caller may renew; None for any.

    Raises:
        AnotherPersonError: the key is another person's.
        NotFoundError: there is no key of that name.
        ConflictError: it was revoked or has expired, or its secret is not the one that is named.
        InvalidRequestError: the new time cannot be.
    """
    row = keys.locked_key(connection, name)
    _require_own(own_person, keys.person_of(row))
    if asked.prefix is not None and asked.prefix != row.prefix:
        raise ConflictError(f"The key has another secret by now: it begins with {row.prefix}.")
    expires_at = None if asked.expires_at is None else _moment(asked.expires_at)
    with _in_body():
        secret = keys.rotate_key(
            connection, name, grace_seconds=asked.grace_seconds, expires_at=expires_at, by=by
        )
    return KeySecret(**dict(find_key(connection, name, {})), secret=secret)


def _require_first(connection: Connection, by: str) -> None:
    """Refuse a second key of the start token, which another process may not know to have ended.

    Raises:
        UnauthorizedError: there is a key.
    """
    if by == START_TOKEN:
        connection.execute(
            INSTALLATION_ROW
        )  # locked: two that are made at once wait for each other
        if keys.any_key(connection):
            raise UnauthorizedError("The start token ended when the first API key was created.")


def _require_own(own_person: str | None, person: str) -> None:
    if own_person not in (None, person):
        raise AnotherPersonError(
            f"The key would let you act as {person}, and some changes need two persons. Over "
            f"HTTP you create and rotate keys of {own_person} alone; the operator makes others: "
            "`dpledger keys create --person`."
        )


def withdraw_key(connection: Connection, name: str, asked: KeyRevocation, *, by: str) -> KeyAnswer:
    """Revoke a key for a reason; the last admin key only where its name confirms it.

    Raises:
        NotFoundError: there is no key of that name.
        InvalidRequestError: it is the last admin key in force, and its name does not confirm it.
    """
    if asked.confirm_name != name and is_last_admin(connection, name, lock=True):
        raise InvalidRequestError("body.confirm_name", _LAST)
    keys.revoke_key(connection, name, reason=asked.reason, by=by)
    return find_key(connection, name, {})


def find_key(connection: Connection, name: str, uses: Mapping[str, datetime]) -> KeyAnswer:
    """A key by its name.

    Raises:
        NotFoundError: there is no key of that name.
    """
    row = connection.execute(select(api_keys).where(api_keys.c.name == name)).one_or_none()
    if row is None:
        raise NotFoundError("There is no such key.")
    return _answer(row, uses)


def is_last_admin(connection: Connection, name: str, *, lock: bool = False) -> bool:
    """Whether a key is an admin's and no other admin key is in force.

    Args:
        connection: of a snapshot, or of a transaction.
        name: of the key.
        lock: whether the answer must hold until the transaction ends: two that are revoked at
            once then wait for each other.
    """
    query = _ADMIN_KEYS.with_for_update() if lock else _ADMIN_KEYS
    return [row.name for row in _in_force(connection.execute(query))] == [name]


def admin_keys_end(connection: Connection) -> datetime | None:
    """When the last admin key in force expires; None if one never does, or there is none."""
    ends = [utc(row.expires_at) for row in _in_force(connection.execute(_ADMIN_KEYS))]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else None


def _in_force(rows: Iterable[Row[Any]]) -> list[Row[Any]]:
    present = now()
    return [row for row in rows if row.expires_at is None or utc(row.expires_at) > present]


def _answer(row: Row[Any], uses: Mapping[str, datetime]) -> KeyAnswer:
    def at(moment: datetime | None) -> str | None:
        return None if moment is None else stamp(moment)

    terms, used = keys.terms_of(row), uses.get(row.name)
    expired = terms.expires_at is not None and terms.expires_at <= now()
    state: Literal["active", "expired", "revoked"] = "expired" if expired else "active"
    return KeyAnswer(
        name=row.name,
        scope=row.scope,
        person=keys.person_of(row),
        state=state if row.revoked_at is None else "revoked",
        prefix=row.prefix,
        datasets=None if terms.datasets is None else sorted(terms.datasets),
        created_at=stamp(row.created_at),
        expires_at=at(terms.expires_at),
        revoked_at=at(row.revoked_at),
        previous_until=at(row.previous_until),
        requests_per_second=terms.requests_per_second,
        body_bytes_max=terms.body_bytes_max,
        last_used_at=at(used),
    )


@contextmanager
def _in_body() -> Iterator[None]:
    """Name the field of the message that a refusal is about."""
    try:
        yield
    except InvalidRequestError as error:
        place, _, message = error.detail.partition(": ")
        raise InvalidRequestError(f"body.{_PLACES.get(place, place)}", message) from None
