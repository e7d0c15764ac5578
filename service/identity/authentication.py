"""Who calls, and whether that key may: its scope, its datasets, its time and its rate."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Annotated, Any, Final

from fastapi import Request, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from sqlalchemy import Engine, Row

from service.errors import ForbiddenError, NotFoundError, UnauthorizedError
from service.identity.access import Reach, require_dataset
from service.identity.directory import Directory
from service.identity.keys import (
    START_TOKEN,
    KeyUses,
    Role,
    digest_of,
    digests_in_force,
    list_keys,
    person_of,
    terms_of,
)
from service.identity.rate_limit import BURST_SECONDS, Bucket
from service.identity.start_token import StartToken
from service.ledger.append.write_access import suspended_error
from service.ledger.change_requests.persons import Actor
from service.storage.engine import snapshot
from service.storage.single_flight import SingleFlight
from service.telemetry import KEY

KEY_REFRESH_SECONDS: Final = 0.5  # a revoked key stops working about this time later
BODY_BYTES_MAX: Final = "dpledger.body_bytes_max"  # of a connection's scope; BodyLimit reads it
_CALLER: Final = "dpledger.caller"
RATE_TAKEN: Final = "dpledger.rate_taken"  # of a scope: the key's rate had room for the request
VIEWER_BURST_SECONDS: Final = 3.0  # worth of requests that a viewer's key may save up
_RANKS: Final = {scope: rank for rank, scope in enumerate(Role)}
_NEVER: Final = -1e9  # a time before any reading
_TAG: Final = 16  # digits of a digest by which the ring is searched


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and what the key is held to."""

    name: str
    scope: Role
    datasets: frozenset[str] | None = None  # none where it reaches all
    bucket: Bucket | None = None
    body_bytes_max: int | None = None
    title: str = ""  # a person's name, where an identity provider told it
    person: str = ""  # who holds the key; its own name by default

    def __post_init__(self) -> None:
        if not self.person:
            object.__setattr__(self, "person", self.name)

    @property
    def actor(self) -> Actor:
        """The key and its person, for what changes in the ledger."""
        return Actor(self.name, self.person)

    @property
    def shown_name(self) -> str:
        """How pages call the caller."""
        return self.title or self.name

    def may(self, *needed: Role) -> bool:
        """Whether its scope allows a call that needs one of those scopes."""
        return self.scope.may_call(*needed)

    def require(self, *needed: Role) -> None:
        """Refuse a caller whose scope is none that the call needs.

        Raises:
            ForbiddenError: it is none.
        """
        if not self.may(*needed):
            raise ForbiddenError(f"This call needs a key of scope {' or '.join(needed)}.")

    def require_dataset(self, name: str) -> None:
        """Refuse a dataset, named outside the path, that the key does not reach.

        Raises:
            NotFoundError: it does not, whether there is one or not.
        """
        if self.datasets is not None:
            require_dataset(self.datasets, name)


def rank(scope: Role) -> int:
    """Which of several granted scopes counts: the one of the highest rank."""
    return _RANKS[scope]


@dataclass(frozen=True, slots=True)
class _Held:
    """A secret in force."""

    digest: str
    until: float  # seconds since the epoch
    caller: Caller

    def answers(self, digest: str) -> bool:
        """Whether it has this digest, now: the clock ends its time, not the ring's next reading."""
        return compare_digest(self.digest, digest) and time.time() < self.until


class KeyRing:
    """The keys in force, read anew when older than REFRESH_SECONDS."""

    def __init__(
        self,
        engine: Engine,
        *,
        start_token: StartToken | None = None,
        requests_per_second: float | None = None,
        viewer_requests_per_second: float | None = None,
        body_bytes_max: int | None = None,
    ) -> None:
        """Read the keys of a database.

        Args:
            engine: of the database.
            start_token: acts as an admin's key until the first key is created.
            requests_per_second: of keys that have no rate of their own.
            viewer_requests_per_second: of such keys of viewers, where the former says nothing.
            body_bytes_max: the same.
        """
        self.directory: Directory | None = None  # knows callers by tokens of identity providers
        self.reach = Reach(engine)
        self.uses = KeyUses(engine)
        self._engine = engine
        self.looks = SingleFlight(engine, self.refresh)
        self._rate = requests_per_second
        self._viewer_rate = viewer_requests_per_second
        self._body_bytes_max = body_bytes_max
        self._lock = threading.Lock()
        self.read_at = _NEVER
        self._held: dict[str, _Held] = {}
        self._buckets: dict[str, Bucket] = {}
        self._start_token = start_token
        self._start_digest = None if start_token is None else digest_of(start_token.text)
        self._any_key = True

    @property
    def start_token(self) -> StartToken | None:
        """The start token, while no key was ever created."""
        return None if self._any_key else self._start_token

    @property
    def stale(self) -> bool:
        """Whether what is known is too old to answer from."""
        return time.monotonic() - self.read_at >= KEY_REFRESH_SECONDS

    def refresh(self) -> None:
        """Read the keys if what is known is too old."""
        with self._lock:
            if not self.stale:
                return
            started = time.monotonic()
            with snapshot(self._engine) as connection:
                rows = list_keys(connection)
            callers = [(row, self._caller_of(row)) for row in rows]
            self._buckets = {one.name: one.bucket for _, one in callers if one.bucket}
            self._held = {
                digest[:_TAG]: _Held(digest, math.inf if until is None else until.timestamp(), one)
                for row, one in callers
                for digest, until in digests_in_force(row)
            }
            self._any_key = bool(rows)
            if self._start_digest is not None and not rows:
                admin = Caller(START_TOKEN, Role.ADMIN)
                held = _Held(self._start_digest, math.inf, admin)
                self._held[self._start_digest[:_TAG]] = held
            self.read_at = started

    def changed(self) -> None:
        """Note that this process changed a key: its next request reads them anew."""
        with self._lock:  # not while an older state is being read
            self._any_key = True
            self.read_at = _NEVER

    def _caller_of(self, row: Row[Any]) -> Caller:
        terms = terms_of(row)
        rate, size = terms.requests_per_second, terms.body_bytes_max
        return Caller(
            name=row.name,
            scope=Role(row.scope),
            datasets=terms.datasets,
            bucket=self._usual_bucket(row) if rate is None else self._bucket_of(row.name, rate),
            body_bytes_max=self._body_bytes_max if size is None else size,
            person=person_of(row),
        )

    def new_bucket(self, scope: Role) -> Bucket | None:
        """Of a caller without a key; None where the settings limit no rate."""
        if self._rate is not None:
            return Bucket(self._rate)
        if scope is not Role.VIEWER or self._viewer_rate is None:
            return None
        return Bucket(self._viewer_rate, burst_seconds=VIEWER_BURST_SECONDS)

    def _usual_bucket(self, row: Row[Any]) -> Bucket | None:
        """Of a key that says nothing of its own."""
        if self._rate is not None:
            return self._bucket_of(row.name, self._rate)
        if row.scope != Role.VIEWER or self._viewer_rate is None:
            return None
        # A page asks several things at once.
        return self._bucket_of(row.name, self._viewer_rate, burst_seconds=VIEWER_BURST_SECONDS)

    def _bucket_of(self, name: str, rate: float, *, burst_seconds: float = BURST_SECONDS) -> Bucket:
        """What a key has left of its rate outlives the reading of the keys."""
        before = self._buckets.get(name)
        if before is not None and (before.rate, before.burst_seconds) == (rate, burst_seconds):
            return before
        return Bucket(rate, burst_seconds=burst_seconds)

    def caller(self, request: Request) -> Caller:
        """Who sent the request; `refresh` first if the keys are stale.

        Raises:
            UnauthorizedError: no key, or one that is not in force.
        """
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        digest = digest_of(key)
        found = self.holder(digest)
        if kind.lower() == "bearer" and found is not None:
            return found
        if self._any_key and digest == self._start_digest:
            raise UnauthorizedError(
                "The start token ended when the first API key was created; send an API key."
            )
        raise UnauthorizedError("Send an API key: Authorization: Bearer dpl_...")

    def sender(self, authorization: bytes) -> Caller | None:
        """Whose key is sent, by the keys that are known; only how much is sent is decided by it."""
        kind, _, key = authorization.decode("latin-1").partition(" ")
        return self.holder(digest_of(key)) if kind.lower() == "bearer" else None

    def holder(self, digest: str) -> Caller | None:
        """Whose secret has this digest, if it is in force; `refresh` first if keys are stale."""
        # The time of the lookup may reveal the first digits of digests, but a key with wanted
        # digits cannot be made. The other digits are compared in constant time.
        held = self._held.get(digest[:_TAG])
        if held is not None and held.answers(digest):
            return held.caller
        return None if self.directory is None else self.directory.holder(digest)


async def authenticate(
    request: Request, needed: Sequence[Role], names: Mapping[str, str]
) -> Caller:
    """The caller of a request that may be answered; nothing of its body was read.

    Args:
        request: as it came; its key's size limit is noted in its scope.
        needed: the call needs one of these scopes.
        names: what its path names, by noun.

    Raises:
        UnauthorizedError: no key, or one that is not in force.
        TooManyRequestsError: the key's rate is used up.
        ForbiddenError: its scope is none of them.
        NotFoundError: it is limited to datasets and the path is of none of them.
    """
    ring = await fresh_keys(request)
    return await require_permission(request, ring.caller(request), needed, names)


async def fresh_keys(request: Request) -> KeyRing:
    """The keys, read anew if what was known is too old; a token of the request is verified.

    Raises:
        UnauthorizedError: the request bears a token that is not valid here.
        ForbiddenError: nothing is granted to the token's subject.
        UnavailableError: the keys cannot be read, or an identity provider's.
    """
    ring: KeyRing = request.app.state.keys
    asked = time.monotonic()
    for _ in range(2):  # again where the first look had begun before the question, and too long
        if asked - ring.read_at < KEY_REFRESH_SECONDS:  # only then is a thread worth it
            break
        await ring.looks.take()
    if ring.directory is not None and "authorization" in request.headers:
        await ring.directory.admit(request.headers["authorization"])
    return ring


async def require_permission(
    request: Request, caller: Caller, needed: Sequence[Role], names: Mapping[str, str]
) -> Caller:
    """The caller, where it may do what it asks; in words of `admitted`, but for who it is.

    Raises:
        TooManyRequestsError: the key's rate is used up.
        ForbiddenError: its scope is none that is needed.
        NotFoundError: it is limited to datasets and the path is of none of them.
        LedgerSuspendedError: the same of a write, while the ledger is suspended.
    """
    ring: KeyRing = request.app.state.keys
    request.scope[KEY] = caller.name
    ring.uses.note(caller.name)
    if caller.bucket is not None and RATE_TAKEN not in request.scope:
        caller.bucket.take()
    caller.require(*needed)
    if caller.datasets is not None:
        for noun, name in ring.reach.unknown(caller.name, caller.datasets, names):
            try:
                await run_in_threadpool(
                    ring.reach.require, caller.name, caller.datasets, noun, name
                )
            except NotFoundError:
                await _require_kept(request)
                raise
    if caller.body_bytes_max is not None:
        request.scope[BODY_BYTES_MAX] = caller.body_bytes_max
    request.scope[_CALLER] = caller
    return caller


async def _require_kept(request: Request) -> None:
    """Refuse a write to a name that a restored database may have lost, so that it is sent again.

    Raises:
        LedgerSuspendedError: the ledger is suspended.
    """
    if request.method != "GET":
        found = await request.app.state.gate.current()
        if found.state == "suspended":
            raise suspended_error(found.state)


def caller_of(request: Request) -> Caller | None:
    """Return the authenticated caller; None before authentication."""
    caller: Caller | None = request.scope.get(_CALLER)
    return caller


class KeyOf(SecurityBase):
    """What an endpoint depends on: a key for calls of one of these scopes, as OpenAPI says."""

    def __init__(self, *needed: Role) -> None:
        self.needed = needed
        self.scheme_name = "key"
        self.model = HTTPBearer(description="`dpledger keys create` makes one; its scope is named.")

    async def __call__(self, request: Request) -> Caller:
        """The caller, where it may call this."""
        caller = caller_of(request)
        if caller is None:
            return await authenticate(request, self.needed, request.path_params)
        caller.require(*self.needed)
        return caller


def list_needed_scopes(dependant: Dependant) -> Sequence[Role]:
    """The scopes that an endpoint accepts; empty if it needs no key.

    Of several that it depends on, those of the highest rank: each is asked for again later.
    """
    own = dependant.call.needed if isinstance(dependant.call, KeyOf) else ()
    found = (own, *map(list_needed_scopes, dependant.dependencies))
    return max(found, key=lambda needed: max(map(rank, needed), default=-1))


Viewer = Annotated[Caller, Security(KeyOf(Role.VIEWER), scopes=[Role.VIEWER])]
Trainer = Annotated[Caller, Security(KeyOf(Role.TRAINER), scopes=[Role.TRAINER])]
Owner = Annotated[Caller, Security(KeyOf(Role.OWNER), scopes=[Role.OWNER])]
Approver = Annotated[Caller, Security(KeyOf(Role.APPROVER), scopes=[Role.APPROVER])]
_BOTH: Final = (Role.TRAINER, Role.APPROVER)
TrainerOrApprover = Annotated[Caller, Security(KeyOf(*_BOTH), scopes=_BOTH)]
Admin = Annotated[Caller, Security(KeyOf(Role.ADMIN), scopes=[Role.ADMIN])]
