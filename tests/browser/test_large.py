"""The ledger that is looked at is a large one, and its longest run is drawn at once."""

from datetime import UTC, datetime
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect
from sqlalchemy import Engine, Table, func, select

from benchmarks.months import DATASETS, ENTRIES, LONG_STEPS, RUNS, Filler
from benchmarks.servers import START_TOKEN
from service.settings import Settings
from service.storage.engine import connect
from service.storage.tables import datasets, entries, runs
from tests.browser.conftest import copied
from tests.browser.looking import Look, settled
from tests.browser.story import LARGEST, LONGEST
from tests.conftest import AS_ADMIN, running

DRAWN_MS = 300
TRIES = 5  # of which one must be fast: a shared machine stands still now and then
PIECES = 50_000  # entries of a run in pieces, read in one look
# The browser's own clock: from the last byte of the data to the frame that shows it.
WATCHED = """
addEventListener("DOMContentLoaded", () => {
  const chart = document.getElementById("growth");
  if (!chart) return;
  new MutationObserver((_, observer) => {
    if (!chart.querySelector("canvas")) return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => performance.mark("drawn")));
  }).observe(chart, { childList: true, subtree: true });
});
"""
TOOK = """() => performance.getEntriesByName("drawn")[0].startTime
  - performance.getEntriesByType("resource").find((one) => one.name.endsWith("/history.json"))
    .responseEnd"""


def count(engine: Engine, table: Table) -> int:
    with engine.connect() as connection:
        found: int = connection.execute(select(func.count()).select_from(table)).scalar_one()
        return found


def drawing(page: Page, address: str) -> float:
    """Milliseconds until the curve of a run is seen, once its data has come; the least of some."""
    page.add_init_script(WATCHED)
    took = []
    for _ in range(TRIES):
        page.goto(address)
        page.wait_for_function("() => performance.getEntriesByName('drawn').length > 0")
        took.append(float(page.evaluate(TOOK)))
    return min(took)


def test_the_ledger_is_large(large: Path) -> None:
    engine = connect(f"sqlite:///{large}")
    assert count(engine, datasets) >= DATASETS
    assert count(engine, runs) >= DATASETS * RUNS
    assert count(engine, entries) >= ENTRIES
    engine.dispose()


def test_the_curve_of_a_run_of_a_million_steps_is_drawn_at_once(story: str, page: Page) -> None:
    with httpx.Client(base_url=story, timeout=60, headers=AS_ADMIN) as api:
        assert api.get(f"/v1/runs/{LONGEST}").json()["steps"] > LONG_STEPS
    assert drawing(page, f"{story}/runs/{LONGEST}") <= DRAWN_MS


def test_the_curve_of_a_run_of_many_entries_is_drawn_at_once(
    large: Path, tmp_path: Path, look: Look
) -> None:
    with copied(large, tmp_path) as url:
        engine = connect(url)
        name = Filler(engine, ends=datetime.now(UTC)).separate(LARGEST, PIECES)
        engine.dispose()
        with running(Settings(database_url=url)) as address:
            page = look()
            page.goto(f"{address}/sign-in?token={START_TOKEN}&next=/theorems")
            assert drawing(page, f"{address}/runs/{name}") <= DRAWN_MS
            settled(page)
            expect(page.locator("#growth .chart-readout")).to_contain_text(f"{PIECES:,} steps")
            page.goto("about:blank")  # before what it follows is gone
