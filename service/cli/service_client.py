"""Asking a service over HTTP: for commands that need no database of their own."""

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Any, Final
from urllib.parse import quote, urlencode, urlsplit

import typer

from service.cli.options import build_failure
from service.identity import start_token
from service.settings import is_loopback

DEFAULT_URL: Final = "http://127.0.0.1:8000"
PAGE_SIZE: Final = 1000
# An expensive question may wait before it is worked out; a stream is silent for 15 seconds.
_TIMEOUT_SECONDS: Final = 60.0
_UNAUTHORIZED: Final = 401
UrlOption = Annotated[
    str | None,
    typer.Option("--url", help=f"address of the service; or DPLEDGER_URL; default {DEFAULT_URL}"),
]
Json = dict[str, Any]


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The key goes to the address that was named, and to no other."""

    def redirect_request(self, *_given: Any) -> None:
        """Follow none."""


class Refused(Exception):  # noqa: N818 (an answer, not a defect)
    """The service answered with a problem."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class AwayError(Exception):
    """No answer came."""


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # a bracket of an IPv6 address that is not closed, or a port above 65535
        return False


class Service:
    """A service at an address.

    Without a key, it comes from DPLEDGER_API_KEY; without that, from the start token of a service
    of the same user on this machine.
    """

    def __init__(self, url: str | None, *, key: str | None = None) -> None:
        self.url = (url or os.environ.get("DPLEDGER_URL") or DEFAULT_URL).rstrip("/")
        if not _is_address(self.url):
            raise build_failure("--url: must be an address that begins with http:// or https://")
        self._key = key or os.environ.get("DPLEDGER_API_KEY")
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if (key or not self._key) and is_loopback(urlsplit(self.url).hostname or ""):
            # A start token never leaves this machine: no proxy of the environment sees it.
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def open(
        self,
        path: str,
        headers: dict[str, str] | None = None,
        *,
        body: Json | None = None,
        **query: Any,
    ) -> IO[bytes]:
        """The body of an answer.

        Args:
            path: on the service.
            headers: beside that of the key.
            body: what is posted; without one the path is read.
            query: parameters of the address; those that are None are left out.

        Raises:
            Refused: the service says why.
            AwayError: there is no answer.
        """
        where = self._addressed()
        try:
            return self._sent(where, path, headers or {}, body, query)
        except Refused as refusal:
            if refusal.status != _UNAUTHORIZED or where == (now := self._addressed()):
                raise
        # The service was starting, and has said since where its token is.
        return self._sent(now, path, headers or {}, body, query)

    def _addressed(self) -> tuple[str, str | None]:
        """Return the address and the key; found each time: the service may have ended."""
        token = None if self._key else start_token.find_start_token(self.url)
        return token or (self.url, self._key)

    def _sent(
        self,
        where: tuple[str, str | None],
        path: str,
        headers: dict[str, str],
        body: Json | None,
        query: dict[str, Any],
    ) -> IO[bytes]:
        url, key = where
        wanted = {name: value for name, value in query.items() if value is not None}
        address = f"{url}{path}" + (f"?{urlencode(wanted, doseq=True)}" if wanted else "")
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(  # noqa: S310 (the scheme was looked at)
            address,
            data=None if body is None else json.dumps(body).encode(),
            headers=authorization | headers,
        )
        try:
            found: IO[bytes] = self._opener.open(request, timeout=_TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(error.code, _detail(error)) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise AwayError(f"{self.url} does not answer: {reason}") from None
        return found

    def text(self, path: str, **query: Any) -> str:
        """An answer as text."""
        try:
            with self.open(path, **query) as body:
                return body.read().decode("utf-8")
        except (OSError, http.client.HTTPException) as error:
            raise AwayError(f"{self.url} broke off: {error}") from None

    def get(self, path: str, **query: Any) -> Json:
        """An answer as JSON."""
        found: Json = json.loads(self.text(path, **query))
        return found

    def post(self, path: str, body: Json) -> Json:
        """Send JSON; the answer as JSON."""
        kind = {"Content-Type": "application/json"}
        try:
            with self.open(path, kind, body=body) as answer:
                found: Json = json.loads(answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise AwayError(f"{self.url} broke off: {error}") from None
        return found

    def pages(self, path: str, items: str, **query: Any) -> Iterator[Json]:
        """Everything in a list, page by page."""
        for page in self.whole_pages(path, **query):
            yield from page[items]

    def whole_pages(self, path: str, **query: Any) -> Iterator[Json]:
        """The pages of a list."""
        token: str | None = None
        while True:
            page = self.get(path, page_size=PAGE_SIZE, page_token=token, **query)
            yield page
            token = page["next_page_token"]
            if token is None:
                return


def _detail(error: urllib.error.HTTPError) -> str:
    if error.code == http.client.UNAUTHORIZED or 300 <= error.code < 400:
        return "The service needs an API key: set DPLEDGER_API_KEY."
    try:
        told = json.loads(error.read())
        return f"{told['title']}: {told['detail']}"
    except (ValueError, KeyError, TypeError, OSError):
        return f"The service answers {error.code}; is there a dpledger at that address?"


def quote_name(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")


@contextmanager
def exit_on_refusal() -> Iterator[None]:
    """Inside, what the service refuses ends the command, as does no answer; it says why."""
    try:
        yield
    except (Refused, AwayError) as error:
        raise build_failure(" ".join(str(error).split())) from None
