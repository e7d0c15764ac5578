"""Sign a person in: OpenID Connect's authorization code flow with PKCE (RFC 7636).

What the answer is compared with is kept by the browser alone, in a cookie that this service sealed:
a code that another browser asked for is refused, and so is one that answers another sign-in.
"""

import base64
import hashlib
import hmac
import json
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Final
from urllib.parse import urlencode

from service.errors import ForbiddenError, UnauthorizedError, UnavailableError
from service.identity.single_sign_on.configuration import Provider
from service.identity.single_sign_on.provider_keys import (
    ProviderError,
    ProviderKeys,
    provider_client,
    read_json,
)
from service.identity.single_sign_on.tokens import Principal, verify_token

STARTED_SECONDS: Final = 600  # that a person may take to sign in at the provider
CODE_LENGTH_MAX: Final = 4096
EXCHANGES_MAX: Final = 4  # at once; each takes a thread until the provider answers
STATES_MAX: Final = 10_000  # of finished sign-ins that are kept
_LOGGER: Final = logging.getLogger("dpledger.sign_in")
_RANDOM_BYTES: Final = 32
_SEAL_LENGTH: Final = 64  # hexadecimal digits
OTHER_SIGN_IN: Final = "The sign-in took too long, or was begun in another browser; begin again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A sign-in that waits for the provider's answer."""

    provider: str
    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next_path: str
    session: str | None = None  # digest of the browser's session before, which the answer ends
    until: float  # seconds since the epoch

    def sealed(self, secret: bytes) -> str:
        """As a cookie keeps it."""
        text = base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()
        return _seal(secret, text) + text


def unseal(secret: bytes, cookie: str) -> Started | None:
    """What a cookie keeps; None if this service did not seal it, or its time is over."""
    seal, text = cookie[:_SEAL_LENGTH], cookie[_SEAL_LENGTH:]
    if not cookie.isascii() or not hmac.compare_digest(seal, _seal(secret, text)):
        return None
    started = Started(**json.loads(base64.urlsafe_b64decode(text)))
    return started if time.time() < started.until else None


def _seal(secret: bytes, text: str) -> str:
    return hmac.digest(secret, b"sign-in " + text.encode(), "sha256").hex()


class Exchanges:
    """Limits what strangers can make this service ask of providers. From any thread."""

    def __init__(self) -> None:
        """No sign-in was finished yet."""
        self._free = threading.BoundedSemaphore(EXCHANGES_MAX)
        self._lock = threading.Lock()
        self._used: OrderedDict[str, None] = OrderedDict()

    @contextmanager
    def one(self, state: str) -> Iterator[None]:
        """Room for the exchange of one sign-in, whose answer counts once in this process.

        Raises:
            ForbiddenError: it was used before.
            UnavailableError: too many are under way.
        """
        with self._lock:
            if state in self._used:
                raise ForbiddenError(OTHER_SIGN_IN)
            if not self._free.acquire(blocking=False):
                raise UnavailableError("Too many people sign in at this moment; begin again.")
            self._used[state] = None
            while len(self._used) > STATES_MAX:
                self._used.popitem(last=False)
        try:
            yield
        finally:
            self._free.release()


def begin_sign_in(
    provider: Provider,
    keys: ProviderKeys,
    *,
    redirect_uri: str,
    next_path: str,
    session: str | None = None,
) -> tuple[Started, str]:
    """A sign-in, and the provider's address where the person goes on.

    Args:
        provider: where the person signs in.
        keys: of the provider.
        redirect_uri: where the provider sends the browser back to.
        next_path: where the person goes on afterwards.
        session: digest of the browser's present session, which the answer comes without.

    Raises:
        UnavailableError: the provider does not answer, or names no such address.
    """
    endpoint = keys.known().authorization_endpoint
    if endpoint is None:
        raise UnavailableError(f"The identity provider {provider.name} signs no one in.")
    started = Started(
        provider=provider.name,
        state=secrets.token_urlsafe(_RANDOM_BYTES),
        nonce=secrets.token_urlsafe(_RANDOM_BYTES),
        verifier=secrets.token_urlsafe(_RANDOM_BYTES),
        redirect_uri=redirect_uri,
        next_path=next_path,
        session=session,
        until=time.time() + STARTED_SECONDS,
    )
    challenge = hashlib.sha256(started.verifier.encode()).digest()
    asked = {
        "response_type": "code",
        "client_id": provider.client_id,
        "redirect_uri": redirect_uri,
        "scope": provider.scopes,
        "state": started.state,
        "nonce": started.nonce,
        "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
        "code_challenge_method": "S256",
    }
    return started, f"{endpoint}?{urlencode(asked)}"


def finish_sign_in(
    started: Started | None,
    provider: Provider,
    keys: ProviderKeys,
    exchanges: Exchanges,
    answer: dict[str, str],
) -> Principal:
    """Who signed in.

    Args:
        started: what the browser kept.
        provider: of the address that the answer came to.
        keys: of the provider.
        exchanges: of this process.
        answer: the parameters of that address.

    Raises:
        ForbiddenError: the browser began no such sign-in, or the provider refused it.
        UnauthorizedError: the provider's token is not in force.
        UnavailableError: the provider does not answer.
    """
    state, issuer = answer.get("state", ""), answer.get("iss", provider.issuer)
    if (
        started is None
        or started.provider != provider.name
        or not hmac.compare_digest(state.encode(), started.state.encode())
        or issuer != provider.issuer  # the answer of another provider (RFC 9207)
    ):
        raise ForbiddenError(OTHER_SIGN_IN)
    code = answer.get("code", "")
    if not 0 < len(code) <= CODE_LENGTH_MAX:
        raise ForbiddenError(f"The identity provider {provider.name} did not sign you in.")
    with exchanges.one(started.state):
        token = _exchange_code(started, provider, keys, code)
    audience = provider.client_id or ""
    return verify_token(token, provider, keys, audience=audience, nonce=started.nonce).principal


def _exchange_code(started: Started, provider: Provider, keys: ProviderKeys, code: str) -> str:
    """The ID token that a provider gives for a code."""
    endpoint = keys.known().token_endpoint
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": started.redirect_uri,
        "code_verifier": started.verifier,
    }
    try:
        if endpoint is None:
            raise ProviderError("it names no token_endpoint")
        with provider_client(provider, as_client=True) as client:
            if provider.client_secret_file is None:
                form["client_id"] = provider.client_id or ""
            said = read_json(client, "POST", endpoint, data=form)
    except ProviderError as error:
        _LOGGER.warning("sign-in at %s: %s", provider.name, error)
        raise UnavailableError(
            f"The identity provider {provider.name} did not finish the sign-in; begin again."
        ) from None
    token = said.get("id_token")
    if not isinstance(token, str):
        raise UnauthorizedError(f"The identity provider {provider.name} gave no ID token.")
    return token
