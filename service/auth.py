"""API keys: who calls, and what the key's scope allows."""

import hashlib
import secrets
import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Connection, Engine, Row, func, insert, select, update
from sqlalchemy.exc import IntegrityError

from service.clock import now
from service.database import snapshot
from service.errors import (
    ConflictError,
    ForbiddenError,
    HostNotAllowedError,
    NotFoundError,
    UnauthorizedError,
)
from service.tables import api_keys

KEY_PREFIX: Final = "dpl_"
KEY_BYTES: Final = 32  # of randomness; a fast hash is enough for a key nobody can guess
SHOWN: Final = 12  # characters of a key that are kept readable
REFRESH_SECONDS: Final = 0.5  # a revoked key stops working within this time
LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Scope(StrEnum):
    """What a key may do; each scope may do what those before it may."""

    VIEWER = "viewer"  # read
    TRAINER = "trainer"  # and register runs and send events
    ADMIN = "admin"  # and create datasets


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    name: str
    scope: Scope

    def require(self, scope: Scope) -> None:
        """Refuse a caller whose scope is less.

        Raises:
            ForbiddenError: it is.
        """
        ranks = list(Scope)
        if ranks.index(self.scope) < ranks.index(scope):
            raise ForbiddenError(f"This call needs a key of scope {scope}.")


def digest_of(key: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(key.encode()).hexdigest()


def create_key(connection: Connection, *, name: str, scope: Scope, key: str | None = None) -> str:
    """Store a new key and return it; it is never readable again.

    Raises:
        ConflictError: the name was used before.
    """
    key = key or KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    try:
        connection.execute(
            insert(api_keys).values(
                name=name,
                scope=scope,
                prefix=key[:SHOWN],
                digest=digest_of(key),
                created_at=now(),
            )
        )
    except IntegrityError as error:
        raise ConflictError("A key of that name, or this key, was created before.") from error
    return key


def list_keys(connection: Connection) -> list[Row[Any]]:
    """Every key ever created, without its secret."""
    return list(connection.execute(select(api_keys).order_by(api_keys.c.id)))


def revoke_key(connection: Connection, name: str) -> None:
    """Stop a key from working; its row stays.

    Raises:
        NotFoundError: there is none of that name.
    """
    query = select(api_keys.c.id).where(api_keys.c.name == name)
    if connection.scalar(query) is None:
        raise NotFoundError("There is no such key.")
    connection.execute(
        update(api_keys)
        .where(api_keys.c.name == name, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=now())
    )


def any_key(connection: Connection) -> bool:
    """Whether a key was ever created; a revoked one still closes the open mode."""
    return bool(connection.scalar(select(func.count()).select_from(api_keys)))


class KeyRing:
    """The keys in force, read anew when older than REFRESH_SECONDS."""

    def __init__(self, engine: Engine, *, loopback: bool) -> None:
        self._engine = engine
        self._loopback = loopback
        self._lock = threading.Lock()
        self._read_at = -1e9
        self._callers: dict[str, Caller] = {}
        self._open = False

    @property
    def open_mode(self) -> bool:
        """Whether no key is needed: on loopback, until the first key is created."""
        return self._open

    @property
    def stale(self) -> bool:
        """Whether what is known is too old to answer from."""
        return time.monotonic() - self._read_at >= REFRESH_SECONDS

    def refresh(self) -> None:
        """Read the keys if what is known is too old."""
        with self._lock:
            if not self.stale:
                return
            started = time.monotonic()
            with snapshot(self._engine) as connection:
                rows = list_keys(connection)
            self._callers = {
                row.digest: Caller(row.name, Scope(row.scope))
                for row in rows
                if row.revoked_at is None
            }
            self._open = self._loopback and not rows
            self._read_at = started

    def caller(self, request: Request) -> Caller:
        """Who sent the request; `refresh` first if the keys are stale.

        Raises:
            HostNotAllowedError: open mode, addressed by a name that is not loopback.
            UnauthorizedError: no key, or one that is not in force.
        """
        if self._open:
            require_loopback_host(request)
            return Caller("open-mode", Scope.ADMIN)
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        # The digest, not the key, is looked up, so timing says nothing of the key.
        caller = self._callers.get(digest_of(key))
        if kind.lower() == "bearer" and caller is not None:
            return caller
        raise UnauthorizedError("Send an API key: Authorization: Bearer dpl_...")


def require_loopback_host(request: Request) -> None:
    """Refuse a request that a page of another site may have sent.

    Raises:
        HostNotAllowedError: the Host header is not a loopback name.
    """
    host = request.headers.get("host", "")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.lower() not in LOOPBACK_NAMES:
        raise HostNotAllowedError("In open mode the service answers to loopback names only.")


async def current(ring: KeyRing) -> None:
    """Wait until the keys are known as they are now."""
    if ring.stale:  # only then is a thread worth its price
        await run_in_threadpool(ring.refresh)


async def _caller(request: Request) -> Caller:
    ring: KeyRing = request.app.state.keys
    await current(ring)
    return ring.caller(request)


async def _viewer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Scope.VIEWER)
    return caller


async def _trainer(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Scope.TRAINER)
    return caller


async def _admin(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
    caller.require(Scope.ADMIN)
    return caller


Viewer = Annotated[Caller, Depends(_viewer)]
Trainer = Annotated[Caller, Depends(_trainer)]
Admin = Annotated[Caller, Depends(_admin)]
