"""Who is signed in with a browser: sessions begun with an API key or by an identity provider.

A session of a key holds nothing of its own but the digest of the secret that began it. Whether that
secret is in force is asked each time, so that a session ends when its key is revoked, expires, or
is rotated out. A session of a person holds what the identity provider said of the person; what is
granted is asked each time, and after an hour the provider is.

A token ends with a seal: a code (HMAC) over what the database says of the session, by a secret that
is not in the database. Who can write rows alone can neither begin a session nor change whose it is.
"""

import hmac
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import Connection, Engine, bindparam, delete, insert, or_, select

from service.clock import now, stamp
from service.identity.keys import digest_of
from service.schemas.base64url import to_text
from service.storage.engine import snapshot
from service.storage.tables import sessions

SESSION_SECONDS: Final = 12 * 3600  # a working day, so one sign-in a day is enough
SESSIONS_MAX: Final = 50  # of one key; the oldest end first
TOKEN_BYTES: Final = 32  # of randomness; a fast hash is enough for a token that cannot be guessed
_PART_LENGTH: Final = 43  # of so many bytes in base64
TOKEN_LENGTH: Final = 2 * _PART_LENGTH + 1  # what is random, a dot and its seal
_IN_FORCE: Final = select(sessions.c.key_digest, sessions.c.principal, sessions.c.expires_at).where(
    sessions.c.digest == bindparam("digest"), sessions.c.expires_at > bindparam("moment")
)


@dataclass(frozen=True, slots=True)
class Session:
    """Whose session it is."""

    key_digest: str  # of the API key's secret that began it, or of a person's name
    principal: str | None  # what an identity provider said of the person; None of a key's


def begin_session(
    connection: Connection,
    secret: bytes,
    key_digest: str,
    *,
    principal: str | None = None,
    seconds: int = SESSION_SECONDS,
) -> str:
    """Begin a session of a key or a person; the token is never readable again.

    Args:
        connection: in a transaction.
        secret: of all sessions.
        key_digest: of the API key's present secret, or of the person's name.
        principal: what an identity provider said of the person; None for a key's.
        seconds: that it lasts at most.
    """
    moment = now()
    kept = (
        select(sessions.c.digest)
        .where(sessions.c.key_digest == key_digest)
        .order_by(sessions.c.created_at.desc(), sessions.c.digest)
        .limit(SESSIONS_MAX - 1)
    )
    too_many = (sessions.c.key_digest == key_digest) & sessions.c.digest.not_in(kept)
    # What the provider says now counts: a group that was taken away ends sessions that have it.
    outdated = (sessions.c.key_digest == key_digest) & (sessions.c.principal != principal)
    over = or_(sessions.c.expires_at <= moment, too_many, outdated)
    connection.execute(delete(sessions).where(over))
    expires_at = moment + timedelta(seconds=seconds)
    drawn = secrets.token_urlsafe(TOKEN_BYTES)
    session = Session(key_digest, principal)
    token = f"{drawn}.{_seal(secret, drawn, session, expires_at)}"
    connection.execute(
        insert(sessions).values(
            digest=digest_of(token),
            key_digest=key_digest,
            principal=principal,
            created_at=moment,
            expires_at=expires_at,
        )
    )
    return token


def session_of(engine: Engine, secret: bytes, token: str) -> Session | None:
    """The session of a token; None where there is none."""
    if len(token) != TOKEN_LENGTH or not token.isascii():
        return None
    with snapshot(engine) as connection:
        asked = {"digest": digest_of(token), "moment": now()}
        found = connection.execute(_IN_FORCE, asked).one_or_none()
    if found is None:
        return None
    drawn, _, seal = token.partition(".")
    session = Session(str(found.key_digest), found.principal)
    expected = _seal(secret, drawn, session, found.expires_at)
    return session if hmac.compare_digest(seal, expected) else None


def _seal(secret: bytes, drawn: str, session: Session, expires_at: datetime) -> str:
    """What only a holder of the secret can say of a session, in base64."""
    sealed = f"{drawn} {session.key_digest} {stamp(expires_at)} {session.principal or ''}"
    return to_text(hmac.digest(secret, sealed.encode(), "sha256"))


def end(connection: Connection, token: str) -> None:
    """End a session, at once and in all processes."""
    end_digest(connection, digest_of(token))


def end_digest(connection: Connection, digest: str) -> None:
    """End the session whose token has this digest."""
    connection.execute(delete(sessions).where(sessions.c.digest == digest))


def end_all(connection: Connection, key_digest: str) -> None:
    """End all sessions of a key or a person."""
    connection.execute(delete(sessions).where(sessions.c.key_digest == key_digest))


def csrf_token(token: str) -> str:
    """What a form of this session carries: only who was sent the page can know it."""
    return hmac.digest(token.encode(), b"dpledger form", "sha256").hex()
