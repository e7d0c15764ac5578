"""What once surprised a reader of the officer's first hour, on both databases."""

from pathlib import Path

from playwright.sync_api import Browser, expect
from sqlalchemy import Engine

from service.transparency.signing import Signer
from tests.browser.desks import EACH_SHAPE, Desks, press, sound
from tests.browser.looking import NARROW, Scheme, settled
from tests.service.office import make_keys, working
from tests.service.samples import append, event
from tests.service.test_keys import Serve

POISSON = {"kind": "poisson", "sampling_probability": 0.004}


@EACH_SHAPE
def test_accepted_statuses_are_asked_for_and_approved(
    desks: Desks, width: int, scheme: Scheme
) -> None:
    with desks.visit("ann", "/datasets/data", width, scheme) as page:
        form = page.get_by_role("region", name="Accepted theorems")
        form.get_by_label("Derived").check()
        form.get_by_label("Reason").fill("We read the proofs.")
        press(page, "Change what is accepted")
        page.wait_for_url("**/requests/*")
        sound(page)
        expect(page.get_by_role("row", name="Accepted statuses")).to_contain_text("derived")
    with desks.visit("bob", "/requests", width, scheme) as page:
        line = page.get_by_role("row", name="We read the proofs.")
        expect(line).to_contain_text("declared, published \u2192 declared, derived, published")
        line.get_by_role("link").click()
        page.get_by_label("Reason").fill("So did I.")
        with page.expect_navigation():
            press(page, "Approve and make the change")
    found = desks.office["vic"].get("/v1/datasets/data").json()
    assert found["accept"] == ["declared", "derived", "published"]


def test_handle_opens_the_form_and_a_comment_keeps_it_open(desks: Desks) -> None:
    assert append(desks.office["dana"], event(0, 10**6), mode="charge").status_code == 409
    with desks.visit("ann", "/datasets/data", NARROW, "dark") as page:
        page.get_by_role("link", name="Handle").click()
        sound(page)
        for text in ("It was too long.", "It is planned anew."):
            page.get_by_label("Text").fill(text)
            with page.expect_navigation():
                page.get_by_role("button", name="Comment").click()
            expect(page.locator(".notes li").last).to_contain_text(text)
        with page.expect_navigation():
            page.get_by_role("button", name="Acknowledge").click()
        expect(page.get_by_role("button", name="Reopen")).to_be_visible()


@EACH_SHAPE
def test_branches_of_a_run_are_not_cut(desks: Desks, width: int, scheme: Scheme) -> None:
    branch = {"name": "after-a-crash", "from_branch": "main", "from_step": 20}
    dana = desks.office["dana"]
    assert append(dana, event(0, 20, sampling=POISSON), mode="charge").is_success
    made = dana.post("/v1/runs/run/branches", json=branch | {"writer": "writer-of-the-branch-1"})
    assert made.is_success, made.text
    with desks.visit("vic", "/runs/run", width, scheme) as page:
        region = page.get_by_role("region", name="All branches")
        expect(region).to_contain_text("after-a-crash")
        assert region.evaluate("one => one.scrollWidth <= one.clientWidth")


def test_a_certificate_is_shown_in_its_own_style(
    browser: Browser, engine: Engine, serve: Serve, tmp_path: Path
) -> None:
    Signer.load_or_create(tmp_path / "key")
    secrets = make_keys(engine)
    with working(serve, secrets, signing_key_file=tmp_path / "key") as office:
        assert append(office["dana"], event(0, 20, sampling=POISSON), mode="charge").is_success
        with Desks(browser, office, secrets).visit("vic", "/datasets/data") as page:
            page.get_by_role("link", name="Certificate (HTML)").click()
            expect(page.get_by_role("heading", name="Certificate of dataset")).to_be_visible()
            border = page.locator("td").first.evaluate("one => getComputedStyle(one).borderStyle")
            assert border != "none"


WRITTEN = """(() => {
  const draw = CanvasRenderingContext2D.prototype.fillText;
  window.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y, ...more) {
    window.written.push([text, Math.round(x)]);
    return draw.call(this, text, x, y, ...more);
  };
})()"""


def test_steps_on_an_axis_are_whole_numbers(desks: Desks) -> None:
    assert append(desks.office["dana"], event(0, 3, sampling=POISSON), mode="charge").is_success
    with desks.visit("vic", "/runs/run") as page:
        page.add_init_script(WRITTEN)
        page.reload()
        expect(page.locator("#growth canvas").first).to_be_visible()
        settled(page)
        seen = page.evaluate("() => window.written")
        assert len({x for text, x in seen if text == "2"}) == 1  # each once, however often drawn
