"""A researcher asks for another limit, and two officers decide, each in a browser of their own."""

from playwright.sync_api import expect

from tests.browser.desks import EACH_SHAPE, Desks
from tests.browser.looking import NARROW, Scheme, findings

NEXT = "Tab"


@EACH_SHAPE
def test_a_limit_is_asked_for_and_approved_by_keyboard(
    desks: Desks, width: int, scheme: Scheme
) -> None:
    with desks.visit("dana", "/datasets/data", width, scheme) as page:
        page.get_by_label("ε, at most").fill("5")
        page.get_by_label("Reason").fill("a larger model")
        page.get_by_role("button", name="Ask for it").press("Enter")
        page.wait_for_url("**/requests/*")
        expect(page.get_by_role("heading", level=1)).to_have_text("Another limit: data")
        where = page.url.removeprefix(desks.office.address)
        expect(page.get_by_role("button", name="Approve and make the change")).to_have_count(0)
    with desks.visit("ann", "/", width, scheme) as page:
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
    with desks.visit("ann", "/datasets/data#limits") as page:
        page.locator("#limit-epsilon").fill("9")
        page.locator("#limit-reason").fill("more")
        page.get_by_role("button", name="Change the limit").click()
        page.wait_for_url("**/requests/*")
        where = page.url.removeprefix(desks.office.address)
    for person in ("ann", "ann-laptop"):
        with desks.visit(person, where, NARROW) as page:
            expect(page.get_by_role("button", name="Approve")).to_be_disabled()
            expect(page.get_by_role("button", name="Reject")).to_be_disabled()
            expect(page.get_by_text("another person must decide about it")).to_be_visible()
    with desks.visit("bob", where, NARROW) as page:
        page.get_by_label("Reason").fill("not this year")
        page.get_by_role("button", name="Reject").click()
        page.wait_for_load_state()
        expect(page.get_by_text("Rejected by bob")).to_be_visible()
    assert desks.office.limit() == 3.0
