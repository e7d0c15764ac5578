"""What one person is promised, as the page of a dataset unfolds it."""

import pytest
from playwright.sync_api import expect

from tests.browser.looking import NARROW, WIDE, Look, Scheme, findings, overflow, settled


@pytest.mark.parametrize(("width", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_promise_to_one_person_unfolds_with_the_keyboard(
    story: str, look: Look, width: int, scheme: Scheme
) -> None:
    page = look(width, scheme)
    page.goto(story + "/datasets/visits")
    settled(page)
    expect(page.locator(".attack")).to_contain_text("An attacker with a false-positive rate of 1 %")
    summary = page.locator(".person > summary")
    summary.focus()
    page.keyboard.press("Enter")
    rows = page.locator(".one-person tbody tr")
    expect(rows.first).to_contain_text("Certified: the steps were fixed")
    expect(rows.nth(1)).to_contain_text("Charged")
    expect(rows.last).to_be_visible()
    assert findings(page) == []
    assert overflow(page) <= 0
