"""The officer's lists in a browser, on both databases: the inbox, sorting, files, comparisons."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from service.identity.keys import Role, create_key
from service.storage.engine import transaction
from service.web.dashboard import listing
from tests.browser.looking import NARROW, Look, findings, overflow
from tests.browser.story import KEYS, told
from tests.browser.test_journeys import api_of, sign_in

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def both(engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a service with keys where something of everything happened."""
    monkeypatch.setattr(listing, "PART_SIZE", 3)
    with transaction(engine) as connection:
        for scope, key in KEYS.items():
            create_key(connection, name=scope, scope=Role(scope), key=key, by="the tests")
    with serve() as address:
        with api_of(address) as api:
            told(api)
        yield address


def test_an_officer_handles_an_overdraft_from_the_overview(both: str, page: Page) -> None:
    sign_in(page, both)
    incidents = page.get_by_role("region", name="Open incidents")
    incidents.get_by_role("link", name="Sampling contradicted").click()
    card = page.locator("li.incident")
    expect(card).to_have_count(1)
    expect(card).to_contain_text("The loader shuffles; ask its owner.")
    card.locator("summary").focus()
    page.keyboard.press("Enter")  # all of it by the keyboard
    card.get_by_label("Text").focus()
    page.keyboard.type("The entries are corrected.")
    card.get_by_role("button", name="Acknowledge").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="No incident matches")).to_be_visible()
    page.get_by_label("State").select_option("acknowledged")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("li.incident")).to_contain_text("The entries are corrected.")
    page.get_by_role("link", name="Overview").click()
    expect(page.get_by_role("region", name="Open incidents")).not_to_contain_text("contradicted")


def test_what_is_wrong_with_a_note_is_said_beside_it(both: str, look: Look) -> None:
    page = look(NARROW)
    sign_in(page, both, "/incidents")
    card = page.locator("li.incident").first
    card.locator("summary").click()
    card.get_by_role("button", name="Comment").click()
    expect(page.get_by_role("alert")).to_contain_text("a comment needs a text")
    assert overflow(page) <= 0
    assert findings(page) == []


def test_ticked_runs_stay_ticked_from_page_to_page(both: str, page: Page) -> None:
    sign_in(page, both, "/runs?sort=name")
    first = page.locator("input.tick").first
    name = first.get_attribute("value")
    first.check()
    page.get_by_role("link", name="Next page").click()
    expect(page.get_by_text("Also selected:")).to_contain_text(name or "")
    page.locator("input.tick").first.check()
    page.get_by_role("link", name="Steps").click()
    page.get_by_role("button", name="Compare selected").click()
    expect(page.locator(".chosen li")).to_have_count(3)  # both, and a link to more
    expect(page.locator("path.curve")).to_have_count(2)
    page.locator(".chosen a", has_text="remove").first.click()
    expect(page.locator(".chosen li")).to_have_count(2)


def test_heads_sort_a_list_and_it_is_downloaded(both: str, page: Page, tmp_path: Path) -> None:
    sign_in(page, both, "/datasets")
    page.get_by_role("link", name="Dataset", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Dataset")
    with page.expect_download() as waiting:
        page.get_by_role("link", name="CSV").click()
    waiting.value.save_as(tmp_path / "datasets.csv")
    lines = (tmp_path / "datasets.csv").read_text().splitlines()
    assert lines[0].startswith("dataset,created_by,")
    assert len(lines) == 4


def test_the_overview_draws_what_was_charged(both: str, page: Page) -> None:
    sign_in(page, both)
    expect(page.get_by_role("heading", name="Charged over time")).to_be_visible()
    assert page.locator("path.curve").count() >= 1
