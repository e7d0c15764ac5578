"""Fixtures: a real Chromium that looks at a real service; nothing is skipped if it is missing."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from service import schema_version
from service.api_keys import Scope, create_key
from service.database import connect, transaction
from service.settings import Settings
from tests.browser.looking import Look, looking
from tests.browser.story import KEYS, told
from tests.conftest import running

expect.set_options(timeout=20_000)  # a shared machine stands still now and then
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without a screen."""
    program = shutil.which("chromium")
    assert program is not None, "Install chromium: the pages are tested in a real browser."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


def prepared(folder: Path) -> str:
    url = f"sqlite:///{folder / 'dpledger.db'}"
    engine = connect(url)
    schema_version.upgrade(engine)
    engine.dispose()
    return url


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an open-mode service where something of everything happened."""
    with running(Settings(database_url=prepared(tmp_path_factory.mktemp("story")))) as address:
        with httpx.Client(base_url=address, timeout=60) as api:
            told(api)
        yield address


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    """The address of a service that asks for keys, where something of everything happened."""
    url = prepared(tmp_path)
    engine = connect(url)
    with transaction(engine) as connection:
        for scope, key in KEYS.items():
            create_key(connection, name=scope, scope=Scope(scope), key=key, by="the tests")
    engine.dispose()
    with running(Settings(database_url=url)) as address:
        bearer = {"Authorization": f"Bearer {KEYS['admin']}"}
        with httpx.Client(base_url=address, timeout=60, headers=bearer) as api:
            told(api)
        yield address


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """Open pages with `look(address)`; what is wrong with any of them fails the test."""
    with looking(browser) as look:
        yield look


@pytest.fixture
def page(look: Look) -> Page:
    """A wide, light page."""
    return look()


Opened = Callable[..., Page]
