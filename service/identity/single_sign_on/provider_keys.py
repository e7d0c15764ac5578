"""What an identity provider says of itself: its addresses, and the keys that sign its tokens.

Both are kept for an hour. A token of a key that is not known makes the keys be read again, at most
once in ten seconds, so that a provider may change its keys at any time and strangers with invented
tokens cannot make this service send it many requests. One thread reads; the others answer from what
is known, so that a provider that hangs takes one thread. Keys of a provider that does not answer
are believed for a day.
"""

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote_plus

import httpx
from joserfc.jwk import Key, KeySet
from pydantic import TypeAdapter, ValidationError

from service.errors import UnavailableError
from service.identity.single_sign_on.configuration import Provider, SafeUrl

FRESH_SECONDS: Final = 3600.0
BELIEVED_SECONDS: Final = 86_400.0
RETRY_SECONDS: Final = 10.0
PROVIDER_TIMEOUT_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 1_000_000
_DISCOVERY: Final = "/.well-known/openid-configuration"
_ADDRESS: Final[TypeAdapter[str]] = TypeAdapter(SafeUrl)
_SYMMETRIC: Final = "oct"  # who can check with such a key can sign with it


class ProviderError(Exception):
    """An identity provider gave no answer, or one that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class ProviderFacts:
    """What a provider said."""

    keys: KeySet
    authorization_endpoint: str | None  # where people sign in
    token_endpoint: str | None
    read_at: float  # seconds of the clock


class ProviderKeys:
    """The keys and addresses of one provider. From any thread."""

    def __init__(self, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is read yet."""
        self._provider = provider
        self._clock = clock
        self._reading = threading.Lock()
        self._known: ProviderFacts | None = None
        self._tried_at = -1e9

    def known(self, key_id: str | None = None) -> ProviderFacts:
        """What the provider said, read again if it is old or without that key.

        Raises:
            UnavailableError: the provider does not answer, and nothing is known that may be
                believed.
        """
        found = self._known
        if found is None or self._is_old(found) or not _has(found, key_id):
            self._read_again()
            found = self._known
        if found is None or self._clock() - found.read_at > BELIEVED_SECONDS:
            raise UnavailableError(
                f"The identity provider {self._provider.name} does not answer; "
                "send the same request again."
            )
        return found

    def _is_old(self, known: ProviderFacts) -> bool:
        return self._clock() - known.read_at > FRESH_SECONDS

    def _read_again(self) -> None:
        if not self._reading.acquire(blocking=False):
            return
        try:
            if self._clock() - self._tried_at < RETRY_SECONDS:
                return
            self._tried_at = self._clock()
            try:
                self._known = self._read()
            except ProviderError:
                return
        finally:
            self._reading.release()

    def _read(self) -> ProviderFacts:
        issuer = self._provider.issuer
        with provider_client(self._provider) as client:
            said = read_json(client, "GET", issuer.rstrip("/") + _DISCOVERY)
            if said.get("issuer") != issuer:
                raise ProviderError("its configuration names another issuer")
            keys = read_json(client, "GET", _address(said, "jwks_uri"))
        return ProviderFacts(
            keys=_key_set(keys),
            authorization_endpoint=_perhaps(said, "authorization_endpoint"),
            token_endpoint=_perhaps(said, "token_endpoint"),
            read_at=self._clock(),
        )


def _has(known: ProviderFacts, key_id: str | None) -> bool:
    return key_id is None or any(one.kid == key_id for one in known.keys.keys)


def _key_set(said: dict[str, Any]) -> KeySet:
    listed = said.get("keys")
    usable = [
        one
        for one in (listed if isinstance(listed, list) else [])
        if isinstance(one, dict) and one.get("kty") != _SYMMETRIC and one.get("use") != "enc"
    ]
    keys = [key for one in usable for key in _import_key(one)]
    if not keys:
        raise ProviderError("it has no key that can be read")
    return KeySet(keys)


def _import_key(said: dict[str, Any]) -> list[Key]:
    """A key; an empty list if it cannot be read: others of the provider may be."""
    try:
        return KeySet.import_key_set({"keys": [said]}).keys
    except Exception:  # the library names no one class for all that a key may be
        return []


def _address(said: dict[str, Any], name: str) -> str:
    try:
        return _ADDRESS.validate_python(said.get(name))
    except ValidationError:
        raise ProviderError(f"its configuration has no {name} that is safe") from None


def _perhaps(said: dict[str, Any], name: str) -> str | None:
    return None if name not in said else _address(said, name)


@contextmanager
def provider_client(provider: Provider, *, as_client: bool = False) -> Iterator[httpx.Client]:
    """A client for requests to a provider: no redirect is followed.

    Args:
        provider: to be asked.
        as_client: send the client's secret, if there is one, and not the token of `token_file`.

    Raises:
        ProviderError: a file that the configuration names cannot be read.
    """
    headers, auth = {"Accept": "application/json"}, None
    try:
        if not as_client and provider.token_file is not None:
            headers["Authorization"] = f"Bearer {_line(provider.token_file)}"
        if as_client and provider.client_secret_file is not None:
            secret = _line(provider.client_secret_file)
            # RFC 6749, 2.3.1: both parts are encoded as in a form first.
            auth = httpx.BasicAuth(quote_plus(provider.client_id or ""), quote_plus(secret))
        context = _context(provider.ca_file)
    except (OSError, ValueError) as error:
        raise ProviderError(f"a file of its configuration cannot be read: {error}") from error
    with httpx.Client(
        headers=headers,
        auth=auth,
        verify=context,
        timeout=PROVIDER_TIMEOUT_SECONDS,
        trust_env=False,
    ) as client:
        yield client


@lru_cache(maxsize=64)
def _context(ca_file: str | None) -> ssl.SSLContext:
    """Reading the certificates takes thirty milliseconds of processor time."""
    return ssl.create_default_context(cafile=ca_file)


def _line(file: str) -> str:
    return Path(file).read_text(encoding="ascii").strip()


def read_json(client: httpx.Client, method: str, url: str, **content: Any) -> dict[str, Any]:
    """A JSON object that a provider answers.

    Raises:
        ProviderError: it answers something else, or nothing.
    """
    body = b""
    try:
        with client.stream(method, url, **content) as answer:
            for part in answer.iter_bytes():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise ProviderError("its answer is too long")
            status = answer.status_code
        said = json.loads(body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ProviderError(f"it does not answer: {type(error).__name__}") from error
    except ValueError:
        raise ProviderError(f"it answers {status} without JSON") from None
    if status != httpx.codes.OK or not isinstance(said, dict):
        raise ProviderError(f"it answers {status}")
    return said
