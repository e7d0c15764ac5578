"""Who is signed in with a browser: sessions that were begun with an API key, and end with it.

A session holds nothing of its own but the digest of the secret that began it. Whether that secret
is in force is asked each time, so that a session ends when its key is revoked, expires, or is
rotated out.
"""

import hmac
import secrets
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, Engine, bindparam, delete, insert, or_, select

from service.api_keys import digest_of
from service.clock import now
from service.database import snapshot
from service.tables import sessions

SESSION_SECONDS: Final = 12 * 3600  # a working day; nobody is asked twice in one
SESSIONS_MAX: Final = 50  # of one key; the oldest end first
TOKEN_BYTES: Final = 32  # of randomness; a fast hash is enough for what nobody can guess
TOKEN_LENGTH: Final = 43  # of so many bytes in base64

_IN_FORCE: Final = select(sessions.c.key_digest).where(
    sessions.c.digest == bindparam("digest"), sessions.c.expires_at > bindparam("moment")
)


def begin(connection: Connection, key_digest: str) -> str:
    """Begin a session with the secret of this digest; the token is never readable again."""
    moment = now()
    kept = (
        select(sessions.c.digest)
        .where(sessions.c.key_digest == key_digest)
        .order_by(sessions.c.created_at.desc(), sessions.c.digest)
        .limit(SESSIONS_MAX - 1)
    )
    too_many = (sessions.c.key_digest == key_digest) & sessions.c.digest.not_in(kept)
    connection.execute(delete(sessions).where(or_(sessions.c.expires_at <= moment, too_many)))
    token = secrets.token_urlsafe(TOKEN_BYTES)
    row = {"digest": digest_of(token), "key_digest": key_digest, "created_at": moment}
    row["expires_at"] = moment + timedelta(seconds=SESSION_SECONDS)
    connection.execute(insert(sessions).values(row))
    return token


def key_digest_of(engine: Engine, token: str) -> str | None:
    """The digest of the secret that began a session; none where there is no such session."""
    if len(token) != TOKEN_LENGTH:
        return None
    with snapshot(engine) as connection:
        asked = {"digest": digest_of(token), "moment": now()}
        found: str | None = connection.scalar(_IN_FORCE, asked)
    return found


def end(connection: Connection, token: str) -> None:
    """End a session, at once and in all processes."""
    connection.execute(delete(sessions).where(sessions.c.digest == digest_of(token)))


def csrf_of(token: str) -> str:
    """What a form of this session carries: only who was sent the page can know it."""
    return hmac.digest(token.encode(), b"dpledger form", "sha256").hex()
