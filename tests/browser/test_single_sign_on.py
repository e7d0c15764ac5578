"""A person signs in at a real provider in a real browser, which holds back strict cookies."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.conftest import running
from tests.service.single_sign_on.providers import IdentityProvider, identity_provider


@pytest.fixture
def provider() -> Iterator[IdentityProvider]:
    with identity_provider() as found:
        yield found


def test_a_person_signs_in_and_out_by_keyboard(
    provider: IdentityProvider, browser: Browser, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    settings = Settings(database_url=url, identity_file=provider.file(tmp_path))
    with running(settings) as address:
        # Another site than the provider's, as they are in the field.
        page = browser.new_page(viewport={"width": 360, "height": 800})
        page.goto(address.replace("127.0.0.1", "localhost") + "/planner")
        button = page.get_by_role("link", name="Sign in with the house")
        expect(button).to_be_visible()
        assert Axe().run(page).violations_count == 0
        button.focus()
        page.keyboard.press("Enter")
        page.wait_for_url("**/planner")
        expect(page.get_by_text("Dana Doe · admin")).to_be_visible()
        page.goto(page.url.replace("/planner", "/datasets"))
        expect(page.get_by_text("Dana Doe · admin")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(button).to_be_visible()
        page.close()
