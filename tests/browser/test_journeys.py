"""What people come for, from the first click to the last."""

import json
import re
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.looking import Look, settled
from tests.browser.story import KEYS
from tests.service.samples import append, event

EPSILON = re.compile(r"\d+\.\d+")


def api_of(address: str, scope: str = "admin") -> httpx.Client:
    return httpx.Client(
        base_url=address, timeout=60, headers={"Authorization": f"Bearer {KEYS[scope]}"}
    )


def sign_in(page: Page, address: str, path: str = "/", scope: str = "admin") -> None:
    page.goto(address + path)
    page.get_by_label("key").fill(KEYS[scope])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(address + path)


def shown(page: Page) -> float:
    """The epsilon that the head of a run's page says, once it is there."""
    headline = page.locator("#guarantee .headline").first
    expect(headline).to_have_text(EPSILON, timeout=60_000)
    found = EPSILON.search(headline.inner_text())
    assert found
    return float(found.group())


def test_who_signs_in_comes_back_and_who_signs_out_is_gone(guarded: str, page: Page) -> None:
    sign_in(page, guarded, "/datasets/scans", scope="viewer")
    expect(page.locator("h1")).to_have_text("scans")
    page.get_by_role("button", name="Sign out").click()
    page.goto(guarded + "/runs")
    expect(page).to_have_url(guarded + "/sign-in?next=/runs")


def test_a_run_that_trains_is_seen_to_rise(guarded: str, page: Page) -> None:
    sign_in(page, guarded, "/runs/steady", scope="viewer")
    settled(page)
    before = shown(page)
    with api_of(guarded, "trainer") as api:
        assert append(api, event(500, 400), run="steady").is_success
    expect(page.locator("#run-steps")).to_have_text("900", timeout=60_000)
    page.wait_for_function(
        "before => parseFloat(document.querySelector('#guarantee .headline')"
        ".innerText.match(/\\d+\\.\\d+/)[0]) > before",
        arg=before,
    )
    with api_of(guarded) as api:
        answer = api.get("/v1/runs/steady/guarantee").json()
    assert answer["epsilon"] <= shown(page) <= answer["epsilon"] * 1.01


def test_a_run_that_is_registered_appears(guarded: str, page: Page) -> None:
    sign_in(page, guarded, "/runs?state=active", scope="viewer")
    with api_of(guarded, "trainer") as api:
        new = {"name": "newcomer", "dataset": "scans", "writer": "writer-of-a-newcomer"}
        assert api.post("/v1/runs", json=new).is_success
    page.reload()
    page.get_by_role("link", name="newcomer").click()
    expect(page.locator("h1")).to_have_text("newcomer")
    expect(page.get_by_text("No step has been recorded yet")).to_be_visible()


def test_an_admin_gives_a_dataset_more(guarded: str, page: Page) -> None:
    sign_in(page, guarded, "/datasets/visits")
    page.locator("#limit-epsilon").fill("9")
    page.locator("#limit-reason").fill("The board agreed.")
    page.get_by_role("button", name="Change the limit").click()
    expect(page.get_by_text("The board agreed.").first).to_be_visible()
    with api_of(guarded) as api:
        assert api.get("/v1/datasets/visits").json()["budget"]["epsilon"] == 9


def test_what_is_wrong_with_a_limit_is_said_beside_it(guarded: str, look: Look) -> None:
    page = look()
    sign_in(page, guarded, "/datasets/visits")
    page.locator("#limit-epsilon").fill("-1")
    page.locator("#limit-reason").fill("A slip.")
    page.get_by_role("button", name="Change the limit").click()
    expect(page.locator("#limit-epsilon-hint")).to_have_attribute("role", "alert")
    with api_of(guarded) as api:
        assert api.get("/v1/datasets/visits").json()["budget"]["epsilon"] == 0.5


def test_an_overdraft_is_an_incident_that_leads_to_its_run(story: str, page: Page) -> None:
    page.goto(story)
    incidents = page.get_by_role("region", name="Incidents")
    expect(incidents).to_contain_text("verdraft")
    incidents.get_by_role("link", name="overdrawn").first.click()
    expect(page.locator("h1")).to_have_text("overdrawn")


@pytest.mark.parametrize("kind", ["json", "html"])
def test_a_certificate_is_downloaded(story: str, page: Page, kind: str, tmp_path: Path) -> None:
    page.goto(story + "/runs/steady")
    with page.expect_download() as coming:
        page.get_by_role("link", name=f"Certificate ({kind.upper()})").click()
    file = tmp_path / f"certificate.{kind}"
    coming.value.save_as(file)
    text = file.read_text(encoding="utf-8")
    assert "steady" in text
    if kind == "json":
        assert json.loads(text)["signature"]


def test_a_report_is_printed(story: str, page: Page, tmp_path: Path) -> None:
    page.goto(story + "/runs/steady")
    page.get_by_role("link", name="Report").click()
    expect(page.get_by_role("heading", name="What is not promised")).to_be_visible()
    paper = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert paper.startswith(b"%PDF")


def test_the_planner_answers_while_one_drags(story: str, page: Page) -> None:
    page.goto(story + "/planner")
    headline = page.locator("[data-out=epsilon_text]").first
    expect(headline).to_contain_text(EPSILON)
    expect(page.locator("[data-lower]")).to_be_visible()  # it is certified
    before = headline.inner_text()
    page.locator("[data-slider=noise_multiplier]").focus()
    for _ in range(40):
        page.keyboard.press("ArrowRight")
    field = page.locator("#noise_multiplier")
    expect(field).not_to_have_value("1.1")
    expect(headline).not_to_have_text(before)
    noise = field.input_value()
    share = page.locator("[data-share]")
    expect(share).to_have_attribute("href", re.compile(rf"noise_multiplier={re.escape(noise)}"))
    share.click()
    expect(field).to_have_value(noise)


def test_the_planner_says_in_words_what_is_correlated_or_selected(story: str, page: Page) -> None:
    page.goto(story + "/planner?derived=1&sampling=cyclic&last_batch=dropped")
    expect(page.locator("[data-schemes]")).to_be_visible()
    noise, released = page.get_by_label("Noise", exact=True), page.get_by_label("What is released")
    expect(page.locator("#bands")).to_be_hidden()
    noise.select_option("banded")
    page.locator("#bands").fill("16")
    words = page.locator("[data-words]")
    expect(words).to_contain_text("are one pass of correlated noise")
    expect(words).to_contain_text("A record takes part in at most 20 steps, 234 apart")
    expect(page.locator("[data-out=snippet]")).to_contain_text("for i in range(1, 16)")
    expect(page.locator("[data-schemes]")).to_be_hidden()
    noise.select_option("gaussian")
    page.get_by_label("How batches are chosen").select_option("poisson")
    released.select_option("geometric")
    expect(words).to_contain_text("The best of 10 trials on average")
    expect(words).to_contain_text("Recording each of 10 trials costs more")
    expect(page.locator("[data-out=snippet]")).to_contain_text("with run.selection(")
    released.select_option("")
    expect(page.locator("[data-lower]")).to_be_visible()
    expect(words).to_be_hidden()


def test_a_theorem_leads_to_its_proof(story: str, page: Page) -> None:
    page.goto(story + "/theorems/poisson-gaussian")
    expect(page.locator("math").first).to_be_visible()
    page.locator("a[href^='/docs/theory/']").first.click()
    expect(page.locator("h1")).not_to_be_empty()


def test_an_admin_makes_the_plan_the_budget(guarded: str, page: Page) -> None:
    fresh = {
        "name": "fresh", "dataset_size": 60_000, "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "one image", "budget": {"epsilon": 3.0, "delta": 1e-5},
    }  # fmt: skip
    with api_of(guarded) as api:
        assert api.post("/v1/datasets", json=fresh).is_success
        plan = "noise_multiplier=1.626&batch_size=3000&dataset_size=60000&dataset=fresh"
        sign_in(page, guarded, f"/planner?{plan}")
        expect(page.locator("[data-fits-body]")).to_contain_text("It does not fit in fresh")
        code = page.get_by_text("Code to create the dataset with exactly this plan as its budget")
        code.click()
        expect(page.locator("[data-out=budget_snippet]")).to_contain_text('"filter": "envelope"')
        page.get_by_role("button", name="Make this the budget").click()
        page.wait_for_url(f"{guarded}/datasets/fresh#envelope")
        expect(page.locator("#envelope + .scroll")).to_contain_text("400")
        assert api.get("/v1/datasets/fresh").json()["budget"]["remaining_steps"] == 400
    page.goto(f"{guarded}/planner?{plan}")
    expect(page.locator("[data-fits-body]")).to_contain_text("It fits in fresh")
