"""A browser for each person of an office, signed in with the own key."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.looking import NARROW, WIDE, Scheme, findings, looking, overflow, settled
from tests.service.browsing import signed_in
from tests.service.office import Office

# Each database and each shape of a page once: the shape does not depend on the database.
EACH_SHAPE = pytest.mark.parametrize(
    ("database_url", "width", "scheme"),
    [("sqlite", WIDE, "light"), ("postgres", NARROW, "dark")],
    indirect=["database_url"],
)


def sound(page: Page) -> None:
    """Nothing on the page that axe calls serious, and nothing beyond its right edge."""
    settled(page)
    assert findings(page) == []
    assert overflow(page) <= 0


def press(page: Page, name: str) -> None:
    """Press a button by the keyboard alone."""
    button = page.get_by_role("button", name=name)
    button.focus()
    page.keyboard.press("Enter")


class Desks:
    """A page for each person."""

    def __init__(self, browser: Browser, office: Office, secrets: dict[str, str]) -> None:
        self._browser, self.office, self._secrets = browser, office, secrets

    @contextmanager
    def visit(
        self, person: str, path: str, width: int = WIDE, scheme: Scheme = "light"
    ) -> Iterator[Page]:
        with signed_in(self.office.address, self._secrets[person]) as client:
            session = client.cookies["dpledger"]
        with looking(self._browser, session) as look:
            page = look(width, scheme)
            page.goto(self.office.address + path)
            sound(page)
            yield page
