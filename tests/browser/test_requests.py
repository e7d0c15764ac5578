"""A researcher asks for another limit, and two officers decide, each in a browser of their own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.browser.looking import NARROW, WIDE, findings, looking, overflow, settled
from tests.conftest import running
from tests.service.browsing import signed_in
from tests.service.office import APPROVALS, Office, make_keys, opened

NEXT = "Tab"


class Desks:
    """A page for each person."""

    def __init__(self, browser: Browser, office: Office, secrets: dict[str, str]) -> None:
        self._browser, self.office, self._secrets = browser, office, secrets

    def visit(self, person: str, path: str, width: int = WIDE) -> Iterator[Page]:
        with signed_in(self.office.address, self._secrets[person]) as client:
            session = client.cookies["dpledger"]
        with looking(self._browser, session) as look:
            page = look(width)
            page.goto(self.office.address + path)
            settled(page)
            assert findings(page) == []
            assert overflow(page) <= 0
            yield page


@pytest.fixture
def desks(browser: Browser, tmp_path: Path) -> Iterator[Desks]:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    secrets = make_keys(engine)
    engine.dispose()
    with running(Settings(database_url=url, approvals=APPROVALS)) as address:
        office = opened(address, secrets)
        yield Desks(browser, office, secrets)
        office.close()


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_a_limit_is_asked_for_and_approved_by_keyboard(desks: Desks, width: int) -> None:
    for page in desks.visit("dana", "/datasets/data", width):
        page.get_by_label("ε, at most").fill("5")
        page.get_by_label("Reason").fill("a larger model")
        page.get_by_role("button", name="Ask for it").press("Enter")
        page.wait_for_url("**/requests/*")
        expect(page.get_by_role("heading", level=1)).to_have_text("Another limit: data")
        where = page.url.removeprefix(desks.office.address)
        expect(page.get_by_role("button", name="Approve and make the change")).to_have_count(0)
    for page in desks.visit("ann", "/", width):
        page.get_by_role("link", name="Requests 1 waiting").press("Enter")
        page.get_by_role("link", name="Another limit: data").press("Enter")
        page.wait_for_url(f"**{where}")
        page.get_by_label("Reason").fill("looked at it")
        page.keyboard.press(NEXT)
        page.keyboard.press("Enter")
        page.wait_for_load_state()
        expect(page.get_by_text("Approved by ann")).to_be_visible()
        assert findings(page) == []
    assert desks.office.limit() == 5.0


def test_an_officer_does_not_approve_her_own_change(desks: Desks) -> None:
    for page in desks.visit("ann", "/datasets/data#limits"):
        page.locator("#limit-epsilon").fill("9")
        page.locator("#limit-reason").fill("more")
        page.get_by_role("button", name="Change the limit").click()
        page.wait_for_url("**/requests/*")
        where = page.url.removeprefix(desks.office.address)
    for person in ("ann", "ann-laptop"):
        for page in desks.visit(person, where, NARROW):
            expect(page.get_by_role("button", name="Approve")).to_be_disabled()
            expect(page.get_by_role("button", name="Reject")).to_be_disabled()
            expect(page.get_by_text("another person must decide about it")).to_be_visible()
    for page in desks.visit("bob", where, NARROW):
        page.get_by_label("Reason").fill("not this year")
        page.get_by_role("button", name="Reject").click()
        page.wait_for_load_state()
        expect(page.get_by_text("Rejected by bob")).to_be_visible()
    assert desks.office.limit() == 3.0
