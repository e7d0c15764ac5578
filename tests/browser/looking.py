"""Pages as a person opens them, and what must be true of every one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request

WIDE, NARROW = 1280, 360
SERIOUS = ("serious", "critical")
Scheme = Literal["light", "dark"]


class Look(Protocol):
    """Open a page in a browser of one's own."""

    def __call__(
        self, width: int = WIDE, scheme: Scheme = "light", script: bool = True
    ) -> Page: ...


@contextmanager
def looking(browser: Browser, session: str | None = None) -> Iterator[Look]:
    """Pages whose faults are collected: messages of the browser, requests that went elsewhere.

    Args:
        browser: that opens them.
        session: the token of a session that each of them begins with.
    """
    faults: list[str] = []
    contexts = []

    def look(width: int = WIDE, scheme: Scheme = "light", script: bool = True) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=script,
            accept_downloads=True,
        )
        contexts.append(context)
        if session is not None:
            context.add_cookies(
                [{"name": "dpledger", "value": session, "domain": "127.0.0.1", "path": "/"}]
            )
        page = context.new_page()

        def said(message: ConsoleMessage) -> None:
            # A page that says what was wrong with a form has the status of a refusal.
            refused = message.location["url"].split("?")[0] == page.url.split("?")[0]
            refused |= "/planner/answer.json" in message.location["url"]  # too expensive, in words
            if message.type in ("error", "warning") and not refused:
                faults.append(f"{page.url}: {message.text}")

        def asked(request: Request) -> None:
            home = urlsplit(page.url)
            there = urlsplit(request.url)
            own = there.scheme in ("data", "blob") or there.hostname == "127.0.0.1"
            if not own or (home.netloc and there.netloc not in (home.netloc, "")):
                faults.append(f"{page.url}: asked {request.url}")

        page.on("console", said)
        page.on("pageerror", lambda error: faults.append(f"{page.url}: {error}"))
        page.on("request", asked)
        return page

    yield look
    for context in contexts:
        context.close()
    assert faults == [], faults


def settled(page: Page) -> None:
    """Wait until what the page asks for has come; a page with a stream never falls silent."""
    page.wait_for_load_state("load")
    page.wait_for_function(
        "() => !Array.from(document.querySelectorAll("
        "'.chart-waiting, .htmx-request, [aria-busy=true]')).some(one => one.checkVisibility())"
    )


def findings(page: Page) -> list[str]:
    """What axe calls serious, with the first place of each."""
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in SERIOUS
    ]


def overflow(page: Page) -> int:
    """By how many pixels a page is wider than what shows it."""
    width: int = page.evaluate(
        "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return width
