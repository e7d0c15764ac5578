"""One day of an office, on both databases: a researcher and two officers, in browsers alone."""

import time

import httpx
from playwright.sync_api import Page, expect

from tests.browser.desks import Desks, press, sound
from tests.browser.looking import NARROW
from tests.service.samples import FULL, append, event

POISSON = {"kind": "poisson", "sampling_probability": 0.004}
REVOKED_SECONDS = 60


def told_reason(page: Page, reason: str, button: str) -> None:
    page.get_by_label("Reason").fill(reason)
    with page.expect_navigation():
        press(page, button)
    sound(page)


def test_a_request_an_overdraft_and_a_leaked_key(desks: Desks) -> None:
    _higher_limit(desks)
    dana = desks.office["dana"]
    assert append(dana, event(0, 300, sampling=POISSON), mode="charge").is_success
    assert append(dana, event(300, 9000, sampling=FULL), mode="record").is_success
    _correction_of_an_overdraft(desks)
    _revocation_of_a_key(desks, dana)


def _higher_limit(desks: Desks) -> None:
    with desks.visit("dana", "/datasets/data", NARROW, "dark") as page:
        page.get_by_label("ε, at most").fill("5")
        told_reason(page, "a larger model", "Ask for it")
    with desks.visit("ann", "/") as page:
        page.get_by_role("link", name="Requests 1 waiting").click()
        page.get_by_role("link", name="Another limit: data").click()
        told_reason(page, "within the plan of the year", "Approve and make the change")
        expect(page.get_by_text("Approved by ann")).to_be_visible()
    assert desks.office.limit() == 5.0


def _correction_of_an_overdraft(desks: Desks) -> None:
    """Bob assigns it, Ann asks for a correction, Bob approves, and Ann acknowledges."""
    with desks.visit("bob", "/") as page:
        incidents = page.get_by_role("region", name="Open incidents")
        incidents.get_by_role("link", name="Overdraft").first.click()
        card = page.locator("li.incident")
        expect(card).to_have_count(1)
        card.locator("summary").click()
        card.get_by_label("Text").fill("Ann, the sampling looks wrong.")
        card.get_by_label("Key").fill("ann")
        with page.expect_navigation():
            card.get_by_role("button", name="Assign").click()
        expect(page.locator("li.incident")).to_contain_text("assigned to ann")
        sound(page)
    with desks.visit("ann", "/incidents?assignee=ann", NARROW) as page:
        page.locator("li.incident").get_by_role("link", name="run").first.click()
        page.get_by_role("link", name="Correct").click()
        for label, given in (
            ("From step", "300"), ("Number of steps", "9000"), ("Noise multiplier", "1.1"),
            ("Sampling probability", "0.004"), ("Reason", "The batches were drawn by coins."),
        ):  # fmt: skip
            page.get_by_label(label).fill(given)
        page.get_by_label("How records were drawn").select_option(label="Poisson")
        press(page, "Preview")
        expect(page.locator("#preview")).to_have_text("Preview: nothing is recorded yet")
        sound(page)
        with page.expect_navigation():
            press(page, "Record the correction")
        page.wait_for_url("**/requests/*")
        sound(page)
        expect(page.get_by_role("button", name="Approve")).to_be_disabled()
        request = page.url.removeprefix(desks.office.address)
    recorded = desks.office["vic"].get("/v1/runs/run/corrections").json()["corrections"]
    assert recorded == []
    with desks.visit("bob", request) as page:
        # What the author saw before comes by itself, before the decision.
        expect(page.get_by_role("heading", name="What it would come to")).to_be_visible()
        expect(page.get_by_role("row", name="Charged, of the capacity")).to_contain_text("times")
        sound(page)
        told_reason(page, "The code says so, too.", "Approve and make the change")
        expect(page.get_by_text("Approved by bob")).to_be_visible()
    with desks.visit("ann", "/runs/run/correct") as page:
        expect(page.locator(".history")).to_contain_text("The batches were drawn by coins.")
    with desks.visit("ann", "/incidents?kind=overdraft") as page:
        card = page.locator("li.incident")
        card.locator("summary").click()
        card.get_by_label("Text").fill("Corrected.")
        card.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_role("heading", name="No incident matches")).to_be_visible()
        page.goto(desks.office.address + "/")
        incidents = page.get_by_role("region", name="Open incidents")
        expect(incidents.get_by_role("link", name="Settings changed")).to_be_visible()
        expect(incidents.get_by_role("link", name="Overdraft")).to_have_count(0)


def _revocation_of_a_key(desks: Desks, dana: httpx.Client) -> None:
    """From the acts of a key to its end."""
    with desks.visit("bob", "/log") as page:
        page.get_by_label("Key").fill("dana")
        with page.expect_navigation():
            page.get_by_role("button", name="Show").click()
        sound(page)
        acts = page.locator("table.log tbody th")
        assert {*acts.all_inner_texts()} >= {"Run", "Change request"}
        page.goto(desks.office.address + "/keys/dana")
        expect(page.locator("dl.facts")).to_contain_text("just now")
        page.get_by_role("link", name="Runs that it registered").click()
        expect(page.get_by_role("link", name="run", exact=True)).to_be_visible()
        page.goto(desks.office.address + "/keys/dana")
        told_reason(page, "It was in a public repository.", "Revoke the key")
        page.goto(desks.office.address + "/log?kind=key_revoked")
        expect(page.locator("table.log tbody tr")).to_contain_text("dana")
    until = time.monotonic() + REVOKED_SECONDS
    while dana.get("/v1/runs").status_code != 401 and time.monotonic() < until:
        time.sleep(0.05)
    assert dana.get("/v1/runs").status_code == 401
