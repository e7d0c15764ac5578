"""Fixtures: a real Chromium that looks at a real service; nothing is skipped if it is missing.

Whatever is looked at stands in a large ledger, which is filled when the first test asks for it.
DPLEDGER_TEST_LEDGER may name a file that `benchmarks/dashboard.py fill` has filled before; it is
only copied.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from sqlalchemy import Engine

from benchmarks.months import fill
from benchmarks.servers import START_TOKEN
from service.identity.keys import Role, create_key
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.sqlite import KEY_SUFFIX, beside
from service.transparency.signing import Signer
from tests.browser.desks import Desks
from tests.browser.looking import Look, looking
from tests.browser.story import KEYS, told
from tests.conftest import AS_ADMIN, running
from tests.service.browsing import signed_in
from tests.service.office import APPROVALS, make_keys, working

expect.set_options(timeout=60_000)  # a shared machine stands still now and then
FILLED = "DPLEDGER_TEST_LEDGER"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, without windows where that is installed: it opens a page in 0.1 s."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    assert program is not None, "Install chromium-headless-shell: a real browser opens the pages."
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file with 200 datasets, 5,000 runs and a million entries, to be copied."""
    if given := os.environ.get(FILLED):
        yield Path(given)
        return
    file = tmp_path_factory.mktemp("large") / "large.db"
    engine = connect(f"sqlite:///{file}")
    migrations.upgrade(engine)
    fill(engine)
    engine.dispose()
    yield file
    file.unlink()


@contextmanager
def copied(large: Path, folder: Path) -> Iterator[str]:
    """The address of a copy; large as it is, it is not kept."""
    file = folder / "dpledger.db"
    shutil.copyfile(large, file)
    Signer.load_or_create(beside(file, KEY_SUFFIX))  # what is filled directly has none
    yield f"sqlite:///{file}"
    file.unlink()


@pytest.fixture(scope="session")
def story(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a service without a key where something of everything happened."""
    with (
        copied(large, tmp_path_factory.mktemp("story")) as url,
        running(Settings(database_url=url)) as address,
    ):
        with httpx.Client(base_url=address, timeout=60, headers=AS_ADMIN) as api:
            told(api)
        yield address


@pytest.fixture
def guarded(large: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a service that asks for keys, where something of everything happened."""
    with copied(large, tmp_path) as url:
        engine = connect(url)
        with transaction(engine) as connection:
            for scope, key in KEYS.items():
                create_key(connection, name=scope, scope=Role(scope), key=key, by="the tests")
        engine.dispose()
        with running(Settings(database_url=url)) as address:
            bearer = {"Authorization": f"Bearer {KEYS['admin']}"}
            with httpx.Client(base_url=address, timeout=60, headers=bearer) as api:
                told(api)
            yield address


@pytest.fixture
def look(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Look]:
    """Open pages with `look(address)`; what is wrong with any of them fails the test.

    Where the story is looked at, they are signed in there.
    """
    session = None
    if "story" in request.fixturenames:
        with signed_in(request.getfixturevalue("story"), START_TOKEN) as client:
            session = client.cookies["dpledger"]
    with looking(browser, session) as look:
        yield look


@pytest.fixture
def page(look: Look) -> Page:
    """A wide, light page."""
    return look()


@pytest.fixture
def desks(
    browser: Browser, engine: Engine, serve: Callable[..., AbstractContextManager[str]]
) -> Iterator[Desks]:
    """Five people of an office where another person approves changes, on each database."""
    secrets = make_keys(engine)
    with working(serve, secrets, approvals=APPROVALS) as office:
        yield Desks(browser, office, secrets)
