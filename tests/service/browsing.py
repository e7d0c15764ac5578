"""A browser, as far as tests of pages need one: it keeps cookies and says where it comes from."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import httpx
from sqlalchemy import Engine

from service.identity.keys import Role, Terms, create_key
from service.storage.engine import transaction

HTML: Final = {"accept": "text/html,application/xhtml+xml"}
WRONG: Final = "dpl_" + "a" * 43  # a key that nobody made
CSRF: Final = re.compile(r'name="csrf" value="([0-9a-f]+)"')


def make_key(engine: Engine, name: str, scope: Role = Role.VIEWER, **terms: Any) -> str:
    with transaction(engine) as connection:
        return create_key(connection, name=name, scope=scope, terms=Terms(**terms))


@contextmanager
def browser(address: str) -> Iterator[httpx.Client]:
    """One that nobody has signed in with."""
    own = {"origin": address, "sec-fetch-site": "same-origin"}
    with httpx.Client(base_url=address, headers=HTML | own, timeout=30) as client:
        yield client


def sign_in(client: httpx.Client, key: str, **fields: str) -> httpx.Response:
    return client.post("/sign-in", data={"key": key, **fields})


@contextmanager
def signed_in(address: str, key: str) -> Iterator[httpx.Client]:
    with browser(address) as client:
        answer = sign_in(client, key)
        assert answer.status_code == 303, answer.text
        yield client


def csrf_of(client: httpx.Client) -> str:
    found = CSRF.search(client.get("/").text)
    assert found
    return found[1]
