"""Callers by their tokens: what the identity file grants to those whom providers name."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from fastapi.concurrency import run_in_threadpool

from service.errors import ForbiddenError, UnauthorizedError
from service.identity.authentication import Caller, rank
from service.identity.keys import Role, digest_of
from service.identity.rate_limit import Bucket
from service.identity.single_sign_on.code_flow import Exchanges
from service.identity.single_sign_on.configuration import (
    EVERY_SUBJECT,
    Configuration,
    Grant,
    Provider,
)
from service.identity.single_sign_on.provider_keys import ProviderKeys
from service.identity.single_sign_on.tokens import (
    Principal,
    VerifiedToken,
    is_token,
    issuer_of,
    stored_principal,
    verify_token,
)

VERIFIED_MAX: Final = 10_000  # tokens that are cached until they end
BUCKETS_MAX: Final = 10_000
_NO_GRANT: Final = (
    "The identity provider {} knows you, but the identity file of this service grants nothing to "
    "you or to your groups. Ask the operator for a grant."
)


class TokenDirectory:
    """Callers whom identity providers name. From any thread."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        bucket: Callable[[Role], Bucket | None] = lambda _role: None,
        body_bytes_max: int | None = None,
    ) -> None:
        """No provider is asked yet.

        Args:
            configuration: the providers and the grants.
            bucket: a new bucket for a caller of a role; none without a limit.
            body_bytes_max: of a request of each.
        """
        self.providers = {one.name: one for one in configuration.provider}
        self.keys = {one.name: ProviderKeys(one) for one in configuration.provider}
        self.exchanges = Exchanges()
        self._by_issuer = {one.issuer: one for one in configuration.provider}
        self._grants = configuration.grant
        self._new_bucket = bucket
        self._body_bytes_max = body_bytes_max
        self._lock = threading.Lock()
        self._verified: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._buckets: OrderedDict[str, Bucket | None] = OrderedDict()

    @property
    def sign_in_providers(self) -> Sequence[Provider]:
        """Those through which people sign in."""
        return [one for one in self.providers.values() if one.client_id is not None]

    def holder(self, digest: str) -> Caller | None:
        """Whose token has this digest, if it was verified and is still in force."""
        found = self._verified.get(digest)
        return found[0] if found is not None and time.time() < found[1] else None

    async def admit(self, authorization: str) -> None:
        """Verify the token of a header, if it bears one, so that `holder` knows it.

        Raises:
            UnauthorizedError: no provider of the identity file made it, or it is not in force.
            ForbiddenError: nothing is granted to its subject.
            UnavailableError: the provider's keys cannot be read.
        """
        kind, _, token = authorization.partition(" ")
        if kind.lower() != "bearer" or not is_token(token):
            return
        digest = digest_of(token)
        if self.holder(digest) is None:
            await run_in_threadpool(self._verify, token, digest)

    def _verify(self, token: str, digest: str) -> None:
        provider = self._by_issuer.get(issuer_of(token) or "")
        if provider is None:
            raise UnauthorizedError("The token is of no identity provider that is believed here.")
        found = verify_token(token, provider, self.keys[provider.name], audience=provider.audience)
        self._remember(digest, found)

    def _remember(self, digest: str, found: VerifiedToken) -> None:
        caller = self.caller_of(found.principal)
        with self._lock:
            self._verified[digest] = (caller, found.until)
            while len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)

    def caller_of(self, principal: Principal) -> Caller:
        """What the identity file grants.

        The highest role counts; its datasets are those of all grants of that role.

        Raises:
            ForbiddenError: it grants nothing.
        """
        held = [one for one in self._grants if _is_for(one, principal)]
        if principal.provider not in self.providers or not held:
            raise ForbiddenError(_NO_GRANT.format(principal.provider))
        role = max((Role(one.role) for one in held), key=rank)
        limits = [one.datasets for one in held if one.role == role]
        datasets = None if None in limits else frozenset().union(*filter(None, limits))
        return Caller(
            name=principal.name,
            scope=role,
            datasets=datasets,
            bucket=self._bucket_of(principal.name, role),
            body_bytes_max=self._body_bytes_max,
            title=principal.title,
        )

    def person(self, principal: str) -> Caller | None:
        """A person as a session stores it; None if nothing is granted to it."""
        try:
            return self.caller_of(stored_principal(principal))
        except ForbiddenError:
            return None

    def _bucket_of(self, name: str, role: Role) -> Bucket | None:
        """What is left of a caller's rate outlives its tokens."""
        with self._lock:
            if name not in self._buckets:
                self._buckets[name] = self._new_bucket(role)
                if len(self._buckets) > BUCKETS_MAX:
                    self._buckets.popitem(last=False)
            return self._buckets[name]


def _is_for(grant: Grant, principal: Principal) -> bool:
    if grant.provider != principal.provider:
        return False
    if grant.group is not None:
        return grant.group in principal.groups
    return grant.subject in (EVERY_SUBJECT, principal.subject)
