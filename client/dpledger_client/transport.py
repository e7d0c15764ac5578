"""Requests that are sent again until they are answered, a bounded number of times."""

import copy
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any, Final, Self

from dpledger_client import start_tokens
from dpledger_client.errors import DPLedgerError, Unavailable, error_of
from dpledger_client.names import name_of
from dpledger_client.progress import progress

if TYPE_CHECKING:
    # Imported by the first Transport: it is most of the time that importing this package takes.
    import httpx

LOG: Final = logging.getLogger("dpledger_client")
BACKOFF_SECONDS: Final = 0.5  # the longest first wait; it doubles from one to the next
BACKOFF_SECONDS_MAX: Final = 10.0
RETRY_AFTER_SECONDS_MAX: Final = 60.0  # a trainer is not held longer by one answer

DATASET_HEADER: Final = "X-Ledger-Dataset"
_UNAUTHORIZED: Final = 401
_LATER: Final = 429  # and all from 500 on: the request may be answered otherwise later
# Not the module's generator: a trainer's seeded random numbers must not depend on the network.
_JITTER: Final = random.SystemRandom()


class _KeyFile:
    """A file whose key or token changes while a trainer runs, such as a pod's projected token."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = ""

    @classmethod
    def of_environment(cls) -> "_KeyFile | None":
        """The file that DPLEDGER_API_KEY_FILE names."""
        name = os.environ.get("DPLEDGER_API_KEY_FILE")
        return cls(Path(name)) if name else None

    def read(self) -> str:
        """The key; the last one that was read, while the file cannot be read.

        Raises:
            ValueError: there is none.
        """
        try:
            self._last = self._path.read_text(encoding="ascii").strip() or self._last
        except (OSError, UnicodeDecodeError) as error:
            LOG.warning("DPLEDGER_API_KEY_FILE: %s: %s", self._path, error)
        if not self._last.isprintable() or not self._last:
            raise ValueError(f"DPLEDGER_API_KEY_FILE: {self._path} holds no key.")
        return self._last


class _Connections:
    """Connections of this process: a process that is forked makes its own.

    On a socket that two processes share, each reads answers to the other's requests: a step that
    was refused may seem admitted, and is taken without being counted.
    """

    def __init__(self, make: "Callable[[], httpx.Client]") -> None:
        self._make = make
        self._process = os.getpid()
        self._pool = make()
        self._inherited: httpx.Client | None = None  # never used, nor closed: its owner uses it

    def pool(self) -> "httpx.Client":
        """The connections that this process may use."""
        if self._process != os.getpid():
            parents = self._pool
            if not parents.is_closed:
                self._inherited, self._pool = parents, self._make()
            self._process = os.getpid()  # last: until then, other threads make connections, too
        return self._pool


class Transport:
    """One connection pool to one service; safe to share between threads, and with forks.

    Every write of the contract may be repeated without effect, so every request is.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout_seconds: float,
        retries: int,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        import httpx

        self._key_file = _KeyFile.of_environment() if api_key is None else None
        if self._key_file is not None:
            api_key = self._key_file.read()
        url = httpx.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise ValueError(
                "The address (base_url, DPLEDGER_URL) must be of http or https, without a password."
            )
        # httpx would put an ill-formed header, and the key with it, into its error message.
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("api_key must be printable ASCII without line breaks.")
        if retries < 0:
            raise ValueError("retries must not be negative.")
        self._retries = retries
        self._local = api_key is None and start_tokens.is_loopback(url.host)
        self._transient = httpx.RequestError  # there is no answer, or none that can be read
        self._connections = _Connections(
            lambda: httpx.Client(
                base_url=url,
                headers={} if api_key is None else {"Authorization": f"Bearer {api_key}"},
                timeout=timeout_seconds,
                transport=transport,
                # A start token never leaves this machine: no proxy of the environment sees it.
                trust_env=not self._local,
            )
        )
        self._told: dict[str, str] = {}  # headers of each request

    @property
    def _http(self) -> "httpx.Client":
        return self._connections.pool()

    def __repr__(self) -> str:
        return f"Transport({str(self._http.base_url)!r})"

    def of_dataset(self, name: str) -> Self:
        """The same connections, whose requests name a dataset in a header.

        By it a balancer sends all of a dataset's requests to one server.

        Raises:
            ValueError: it is not a name.
        """
        told = copy.copy(self)
        told._told = {DATASET_HEADER: name_of(name)}
        return told

    @property
    def base_url(self) -> str:
        """The address of the service, without a slash at its end."""
        return str(self._http.base_url).rstrip("/")

    def get(self, path: str, *, retries: int | None = None, **query: Any) -> dict[str, Any]:
        """Read an object; parameters that are None are left out."""
        return self._request("GET", path, query=_given(query), retries=retries)

    def guarantee(self, path: str, **query: Any) -> dict[str, Any]:
        """Read a guarantee; log a warning where a bound of less than half is not accepted."""
        found = self.get(path, **query)
        if smaller := found.get("smaller_bound"):
            LOG.warning(
                "%s proves epsilon %r at delta %r, where the guarantee has epsilon %r at delta %r. "
                "It is %s, which the dataset does not accept.",
                smaller["bound"],
                smaller["epsilon"],
                smaller["delta"],
                found["epsilon"],
                found["delta"],
                smaller["status"],
            )
        return found

    def post(
        self, path: str, body: Mapping[str, Any], *, retries: int | None = None
    ) -> dict[str, Any]:
        """Send an object; members that are None are left out. Retries by default as constructed."""
        return self._request("POST", path, body=_given(body), retries=retries)

    def patch(
        self, path: str, body: Mapping[str, Any], *, revision: int, retries: int | None = None
    ) -> dict[str, Any]:
        """Change an object whose revision was read before; If-Match names it."""
        headers = {"If-Match": f'"{revision}"'}
        return self._request("PATCH", path, body=_given(body), retries=retries, headers=headers)

    def listed(self, path: str, noun: str, **query: Any) -> Iterator[dict[str, Any]]:
        """Read a list, page after page."""
        page: dict[str, Any] = {"next_page_token": None}
        while True:
            page = self.get(path, page_token=page["next_page_token"], **query)
            yield from page[noun]
            if page.get("next_page_token") is None:
                return

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        retries: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        with progress(f"{self.base_url} ({method} {path})"):
            last = self._retries if retries is None else retries
            return self._answered(method, path, query, body, headers or {}, last)

    def _answered(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        last: int,
    ) -> dict[str, Any]:
        attempt = 0
        while True:
            failure: DPLedgerError
            cause: httpx.RequestError | None = None
            wait_seconds = 0.0
            try:
                response = self._sent(method, path, query, body, headers)
            except self._transient as error:
                failure, cause = self._unanswered(error), error
            else:
                if response.status_code < 500 and response.status_code != _LATER:
                    return _content(response)
                failure, wait_seconds = _refusal(response), _retry_after_seconds(response)
            if attempt >= last:
                raise failure from cause
            sleep(wait_seconds + _backoff_seconds(attempt))
            attempt += 1

    def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        given: Mapping[str, str],
    ) -> "httpx.Response":
        try:
            address = self._addressed(path)
            response = self._request_once(method, address, query, body, given)
            if response.status_code == _UNAUTHORIZED and address != (now := self._addressed(path)):
                # The service was starting, and has said since where its token is; or the file of
                # the key has another one.
                response = self._request_once(method, now, query, body, given)
            return response
        except RuntimeError:  # another thread may have closed it at any moment
            if not self._http.is_closed:
                raise
            raise DPLedgerError({"title": "The client was closed"}, 0) from None

    def _request_once(
        self,
        method: str,
        address: tuple[str, dict[str, str]],
        query: Mapping[str, Any] | None,
        body: Mapping[str, Any] | None,
        given: Mapping[str, str],
    ) -> "httpx.Response":
        url, headers = address
        headers = {**headers, **self._told, **given}
        return self._http.request(method, url, params=query, json=body, headers=headers)

    def _unanswered(self, error: "httpx.RequestError") -> Unavailable:
        """No answer came from this address; where it could not be reached, what to look at."""
        import httpx

        detail = f"{type(error).__name__} {error}".strip()
        if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
            detail += ". Is `dpledger serve` running there? DPLEDGER_URL names another address."
        return Unavailable({"title": f"{self.base_url} did not answer", "detail": detail}, 0)

    def _addressed(self, path: str) -> tuple[str, dict[str, str]]:
        """The URL of a path; with a start token, at the only address that it may be sent to.

        It is looked for before each request: the service that published it may have ended.
        """
        if self._key_file is not None:
            return path, {"Authorization": f"Bearer {self._key_file.read()}"}
        url = self._http.base_url
        if not self._local:
            return path, {}
        port = url.port or (443 if url.scheme == "https" else 80)
        found = start_tokens.find(url.host, port)
        if found is None:
            return path, {}
        there = str(url.copy_with(host=found.address)).rstrip("/")
        return there + path, {"Authorization": f"Bearer {found.token}"}


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}


def _backoff_seconds(attempt: int) -> float:
    """Exponential backoff with full jitter, so that trainers stopped together return apart."""
    return _JITTER.uniform(0, min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2.0 ** min(attempt, 10)))


def _retry_after_seconds(response: "httpx.Response") -> float:
    """What Retry-After asks for, as a number of seconds or a date; 0 without it."""
    text = response.headers.get("Retry-After", "")
    if text.isascii() and text.isdigit():
        return min(RETRY_AFTER_SECONDS_MAX, float(text))
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    seconds = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(RETRY_AFTER_SECONDS_MAX, max(0.0, seconds))


def _content(response: "httpx.Response") -> dict[str, Any]:
    """The object of an answer.

    Raises:
        DPLedgerError: it is a refusal, or not an object.
    """
    if not response.is_success:
        raise _refusal(response)
    content = _json(response)
    if not isinstance(content, dict):
        title = "The answer is not a JSON object; is this address the service?"
        raise DPLedgerError({"title": title}, response.status_code)
    return content


def _refusal(response: "httpx.Response") -> DPLedgerError:
    problem = _json(response)
    if not isinstance(problem, dict):
        problem = {"title": response.reason_phrase}
    return error_of(problem, response.status_code)


def _json(response: "httpx.Response") -> Any:
    try:
        return response.json()
    except ValueError:
        return None
