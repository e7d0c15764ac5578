"""Every page as people meet it: wide and narrow, light and dark, with and without scripts."""

import pytest
from playwright.sync_api import Response

from tests.browser.looking import NARROW, WIDE, Look, Scheme, findings, overflow, settled
from tests.browser.story import LARGEST, LONGEST

BYTES_MAX = 150_000  # of a page and all it is made of, data excluded
PAGES = (
    "/", "/datasets", "/datasets/scans", "/datasets/visits", "/datasets/empty", "/runs",
    "/runs/steady", "/runs/shuffled", "/runs/contradicted", "/runs/untouched", "/planner",
    "/planner/answer?noise_multiplier=1.1", "/planner/answer?mechanism=banded&derived=1",
    "/planner/answer?trials=geometric&derived=1", "/theorems", "/theorems/poisson-gaussian",
    "/docs/theory", "/docs/theory/renyi", "/compare?runs=steady,shuffled,overdrawn",
    "/incidents", "/incidents?state=any&kind=overdraft", "/incidents?assignee=unknown", "/log",
    "/requests", "/datasets?limit=none", "/runs?label=model%3Dresnet&sort=-steps",
        "/runs/steady/report", "/datasets/scans/report", "/sign-in", "/runs/unknown", "/keys",
    "/new-dataset", "/new-dataset?plan=",
    "/runs/steady/correct", "/runs/steady/finish", "/reservations/unknown/void",
    # The dataset of most entries, and the run of most steps.
    f"/datasets/{LARGEST}", f"/datasets/{LARGEST}/report", f"/runs/{LONGEST}",
    f"/runs/{LONGEST}/report", f"/compare?runs=steady,{LONGEST}",
)  # fmt: skip


def test_the_pages_are_all_there_are(story: str) -> None:
    """A page that is added is looked at, too."""
    from service.app import openapi_document

    assert openapi_document()["paths"]  # the pages are not among them
    shapes = {path.split("?")[0].strip("/").split("/")[0] for path in PAGES}
    assert shapes == {
        "", "datasets", "runs", "planner", "theorems", "docs", "compare", "sign-in",
        "incidents", "log", "requests",
        "keys", "new-dataset", "reservations",
    }  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_a_page_is_light_and_guarded_and_can_be_read_by_everybody(
    story: str, look: Look, path: str, width: int, scheme: Scheme
) -> None:
    page = look(width, scheme)
    sizes: dict[str, int] = {}

    def came(response: Response) -> None:
        if not response.url.endswith(".json") and "/stream" not in response.url:
            sizes[response.url] = int(response.header_value("content-length") or 0)

    page.on("response", came)
    answer = page.goto(story + path)
    settled(page)
    assert answer is not None
    assert sum(sizes.values()) <= BYTES_MAX
    policy = answer.header_value("content-security-policy") or ""
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert findings(page) == []
    assert overflow(page) <= 0
    assert page.title().endswith("dpledger")
    assert page.locator("h1").count() == 1


@pytest.mark.parametrize("path", PAGES)
def test_a_page_says_what_it_has_to_without_scripts(story: str, look: Look, path: str) -> None:
    page = look(script=False)
    page.goto(story + path)
    assert page.locator("h1").inner_text().strip()
    assert overflow_without_scripts(page.content()) == []


def overflow_without_scripts(text: str) -> list[str]:
    return [word for word in ("undefined", "Traceback", "{{", "{%") if word in text]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_keyboard_reaches_the_content_first(story: str, look: Look, scheme: Scheme) -> None:
    page = look(WIDE, scheme)
    page.goto(story)
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "content"


def test_the_theme_is_kept(story: str, look: Look) -> None:
    page = look()
    page.goto(story)
    switch = page.locator("[data-theme-switch]")
    before = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    for _ in range(3):
        switch.click()
        if page.evaluate("() => getComputedStyle(document.body).backgroundColor") != before:
            break
    dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert dark != before
    page.goto(story + "/runs")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == dark
