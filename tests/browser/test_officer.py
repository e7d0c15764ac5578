"""What a privacy officer does in the browser, on both databases and without a terminal."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import httpx
import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import Engine

from benchmarks.servers import START_TOKEN
from service.identity.keys import Role, create_key
from service.storage.engine import transaction
from tests.browser.desks import EACH_SHAPE, press, sound
from tests.browser.looking import NARROW, WIDE, Look, Scheme
from tests.browser.story import KEYS
from tests.service.samples import BUDGET, FULL, SAMPLING, append, event, run, setup

POISSON = {"kind": "poisson", "sampling_probability": 0.004}
SECRET = re.compile(r"dpl_[A-Za-z0-9_-]{43}")


@pytest.fixture
def office(engine: Engine, serve: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """The address of a service with a key of each scope."""
    with transaction(engine) as connection:
        for scope, key in KEYS.items():
            create_key(connection, name=scope, scope=Role(scope), key=key, by="the tests")
    with serve() as address:
        yield address


def api_of(address: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=address, timeout=60, headers={"Authorization": f"Bearer {key}"})


def sign_in(page: Page, address: str, path: str) -> None:
    page.goto(f"{address}/sign-in?next={path}")
    page.get_by_label("key").fill(KEYS["admin"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(address + path)


def refused(api: httpx.Client) -> bool:
    """Whether a key is refused once the process has read the keys again."""
    until = time.monotonic() + 60
    while api.get("/v1/runs").status_code != 401 and time.monotonic() < until:
        time.sleep(0.05)
    return api.get("/v1/runs").status_code == 401


@EACH_SHAPE
def test_a_leaked_key_is_found_and_revoked(
    office: str, look: Look, width: int, scheme: Scheme
) -> None:
    page = look(width, scheme)
    sign_in(page, office, "/keys")
    page.get_by_label("Name").fill("cluster-a")
    page.get_by_label("Only these datasets").fill("data, later")
    press(page, "Create the key")
    secret = page.locator("#secret + p + .snippet code").inner_text()
    assert SECRET.fullmatch(secret)
    sound(page)
    page.goto(office + "/keys")
    assert secret not in page.content()
    with api_of(office, KEYS["admin"]) as admin, api_of(office, secret) as trainer:
        setup(admin)
        time.sleep(0.6)  # until the service has read the new key
        assert trainer.post("/v1/runs", json=run("stolen")).is_success
        assert append(trainer, event(0, 5), run="stolen").is_success
        assert trainer.get("/v1/datasets/other").status_code == 404
        # What it did, and when it was used last.
        page.get_by_role("link", name="cluster-a").click()
        expect(page.locator("dl.facts")).to_contain_text("just now")
        sound(page)
        page.get_by_role("link", name="Runs that it registered").click()
        expect(page.get_by_role("link", name="stolen")).to_be_visible()
        page.goto(office + "/keys/cluster-a")
        page.get_by_label("Reason").fill("It was in a public repository.")
        press(page, "Revoke the key")
        page.wait_for_url(office + "/keys/cluster-a")
        expect(page.locator(".history")).to_contain_text("It was in a public repository.")
        expect(page.get_by_role("button", name="Revoke the key")).to_have_count(0)
        sound(page)
        assert refused(trainer)
        act = admin.get("/v1/acts", params={"kind": "key_revoked"}).json()["acts"][-1]
    assert (act["by"], act["content"]["name"]) == ("admin", "cluster-a")


def test_the_first_key_is_an_admins_and_ends_the_start_token(
    serve: Callable[..., AbstractContextManager[str]], look: Look
) -> None:
    with serve() as address:
        page = look()
        page.goto(f"{address}/sign-in?token={START_TOKEN}&next=/keys")
        expect(page.get_by_text("No API key exists yet")).to_be_visible()
        page.get_by_label("Name", exact=True).fill("officer")  # its scope is chosen already
        press(page, "Create the key")
        expect(page.get_by_text("so the start token has ended")).to_be_visible()
        expect(page.get_by_text("No API key exists yet")).to_have_count(0)
        sound(page)


@pytest.mark.parametrize(
    ("database_url", "width"),
    [("sqlite", 1400), ("postgres", WIDE), ("sqlite", 1217), ("postgres", 1100), ("sqlite", 700)],
    indirect=["database_url"],
)
def test_every_link_of_the_head_is_seen(office: str, look: Look, width: int) -> None:
    name = "dana-of-the-office-of-privacy"
    with api_of(office, KEYS["admin"]) as admin:
        secret = admin.post("/v1/keys", json={"name": name, "scope": "admin"}).json()["secret"]
        setup(admin, dataset_given={"budget": BUDGET})
    with api_of(office, KEYS["trainer"]) as trainer:
        asked = {"reason": "more", "budget": {"epsilon": 9.0, "delta": 1e-5}}
        assert trainer.post("/v1/datasets/data/requests", json=asked).is_success
    page = look(width=width)
    page.goto(f"{office}/sign-in?next=/keys")
    page.get_by_label("key").fill(secret)
    press(page, "Sign in")
    nav = page.locator(".main-nav")
    expect(nav.locator(".count")).to_be_visible()
    assert nav.evaluate("one => one.scrollWidth <= one.clientWidth")
    sound(page)


def test_a_key_is_rotated_and_the_last_admin_key_needs_its_name(office: str, look: Look) -> None:
    page = look()
    sign_in(page, office, "/keys/trainer")
    press(page, "Rotate the key")
    secret = page.locator("#secret + p + .snippet code").inner_text()
    expect(page.get_by_text("The old secret works until")).to_be_visible()
    with api_of(office, secret) as trainer, api_of(office, KEYS["trainer"]) as before:
        time.sleep(0.6)
        assert trainer.get("/v1/runs").status_code == before.get("/v1/runs").status_code == 200
    page.goto(office + "/keys/admin")
    page.get_by_label("Reason").fill("By accident.")
    page.get_by_label("type the key's name").fill("trainer")
    press(page, "Revoke the key")
    expect(page.locator("#revoke-confirm-hint")).to_have_attribute("role", "alert")
    sound(page)
    with api_of(office, KEYS["admin"]) as admin:
        assert admin.get("/v1/keys").json()["keys"][0]["state"] == "active"


def test_a_dataset_is_created_with_a_preview_and_its_first_step_is_charged(
    office: str, look: Look
) -> None:
    page = look(NARROW, "dark")
    sign_in(page, office, "/datasets")
    page.get_by_role("link", name="Create a dataset").click()
    for label, text in (
        ("Name", "letters"), ("Number of records", "60000"), ("One record is", "patient"),
        ("ε, at most", "1"), ("Noise multiplier", "1.1"), ("Records in a batch", "60"),
        ("Steps", "20"),
    ):  # fmt: skip
        page.get_by_label(label, exact=label in ("Name", "Steps")).fill(text)
    press(page, "Preview")
    expect(page.locator("#preview")).to_have_text("Preview of letters: nothing is created yet")
    expect(page.get_by_role("row")).to_have_count(4)  # three usual trainings
    sound(page)
    with api_of(office, KEYS["admin"]) as api:
        assert api.get("/v1/datasets/letters").status_code == 404
        press(page, "Create the dataset")
        page.wait_for_url(office + "/datasets/letters")
        assert api.post("/v1/runs", json=run("first", dataset="letters")).is_success
        sampling = {"kind": "poisson", "sampling_probability": 0.001}
        answer = append(api, event(0, 1, sampling=sampling), run="first", mode="charge")
        assert answer.status_code == 201, answer.text
    page.reload()
    expect(page.get_by_role("link", name="first").first).to_be_visible()


def test_what_is_wrong_with_a_new_dataset_is_said_beside_its_field(office: str, look: Look) -> None:
    page = look()
    sign_in(page, office, "/new-dataset")
    for name, text in (("name", "Letters"), ("size", "many"), ("unit", "patient")):
        page.locator(f"#new-{name}").fill(text)
    press(page, "Create the dataset")
    for name in ("name", "size"):
        expect(page.locator(f"#new-{name}-hint")).to_have_attribute("role", "alert")
    expect(page.locator("#new-unit")).to_have_value("patient")
    sound(page)


def test_the_planners_plan_becomes_a_dataset(office: str, look: Look) -> None:
    page = look()
    sign_in(page, office, "/planner")
    page.locator("#noise_multiplier").fill("2")
    link = page.get_by_role("link", name="Create a dataset for this plan")
    expect(link).to_have_attribute("href", re.compile("noise_multiplier%3D2"))
    link.click()
    page.locator("#new-name").fill("planned")
    page.locator("#new-unit").fill("patient")
    press(page, "Create the dataset")
    page.wait_for_url(office + "/datasets/planned")
    with api_of(office, KEYS["admin"]) as api:
        budget = api.get("/v1/datasets/planned").json()["budget"]
    assert (budget["filter"]["kind"], budget["remaining_steps"]) == ("envelope", 4688)


def test_an_overdraft_leads_to_a_correction_with_its_preview(office: str, look: Look) -> None:
    page = look(NARROW, "light")
    with api_of(office, KEYS["admin"]) as api:
        setup(api, dataset_given={"budget": BUDGET})
        assert append(api, event(0, 300, sampling=POISSON), mode="charge").is_success
        assert append(api, event(300, 9000, sampling=FULL), mode="record").is_success
    sign_in(page, office, "/")
    page.get_by_role("region", name="Incidents").get_by_role("link", name="run").first.click()
    page.get_by_role("link", name="Correct").click()
    for label, text in (
        ("From step", "0"), ("Number of steps", "300"), ("Noise multiplier", "0.9"),
        ("Sampling probability", "0.01"),
    ):  # fmt: skip
        page.get_by_label(label).fill(text)
    press(page, "Preview")
    # The form began with full batches, as recorded, which have no sampling probability.
    expect(page.get_by_text("must be empty: the sampling that is chosen has none")).to_be_visible()
    page.get_by_label("How records were drawn").select_option(label="Poisson")
    press(page, "Preview")
    expect(page.locator("#preview")).to_have_text("Preview: nothing is recorded yet")
    sound(page)
    page.get_by_label("Reason").fill("The noise was set for another norm.")
    with api_of(office, KEYS["admin"]) as api:
        assert api.get("/v1/runs/run/corrections").json()["corrections"] == []
        press(page, "Record the correction")
        expect(page.locator(".history")).to_contain_text("The noise was set for another norm.")
        assert len(api.get("/v1/runs/run/corrections").json()["corrections"]) == 1
    sound(page)


def test_a_stale_run_is_closed_and_its_reservation_voided(office: str, look: Look) -> None:
    page = look(NARROW, "dark")
    with api_of(office, KEYS["admin"]) as api:
        setup(api, dataset_given={"budget": BUDGET})
        lease = {"name": "lease", "event": event(0, 9, sampling=POISSON), "ttl_seconds": 3600}
        assert api.post("/v1/runs/run/reservations", json=lease).is_success
    sign_in(page, office, "/datasets/data")
    page.get_by_role("link", name="Void lease").click()
    page.get_by_label("Reason").fill("The trainer never started.")
    sound(page)
    press(page, "Void the reservation")
    page.wait_for_url(office + "/datasets/data#reservations")
    page.goto(office + "/runs/run")
    page.get_by_role("link", name="Close").click()
    page.get_by_label("Reason").fill("Its machine is gone.")
    sound(page)
    press(page, "Close the run")
    expect(page.locator("#run-state")).to_have_text("aborted")
    with api_of(office, KEYS["admin"]) as api:
        assert api.get("/v1/reservations/lease").json()["state"] == "voided"
        assert api.get("/v1/runs/run").json()["state"] == "aborted"


def test_a_dataset_is_frozen_and_opened_again(office: str, look: Look) -> None:
    page = look(NARROW, "dark")
    with api_of(office, KEYS["admin"]) as api:
        setup(api, dataset_given={"budget": BUDGET})
        assert append(api, event(0, 1, sampling=POISSON), mode="charge").is_success
        sign_in(page, office, "/datasets/data")
        for frozen, status in ((True, 409), (False, 201)):
            box = page.get_by_label("Frozen")
            box.focus()
            page.keyboard.press("Space")
            page.locator("#admission-reason").fill("The loader is looked into.")
            with page.expect_navigation():
                press(page, "Change admission")
            expect(page.locator(".notice-warn")).to_have_count(int(frozen))
            sound(page)
            answer = append(api, event(1, 1, sampling=POISSON), mode="charge")
            assert answer.status_code == status, answer.text


def test_the_chart_of_an_open_overview_follows_the_table_below(office: str, look: Look) -> None:
    with api_of(office, KEYS["admin"]) as admin:
        setup(admin, dataset_given={"budget": BUDGET})
        assert append(admin, event(0, 100, sampling=POISSON)).is_success
        page = look()
        sign_in(page, office, "/")
        chart = page.locator("#board-chart")
        expect(chart.locator("path.curve")).to_have_count(1)
        none = {"kind": "none"}
        assert append(admin, event(100, 1, mechanism=none)).is_success
        time.sleep(1.1)  # that the overview shows what it read
        page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        expect(chart).to_contain_text("data: no finite bound is proved for what is charged now")
        expect(page.locator("#board-lists")).to_contain_text("no finite bound at ε 3")
        sound(page)


@EACH_SHAPE
def test_no_table_of_a_run_is_cut(office: str, look: Look, width: int, scheme: Scheme) -> None:
    with api_of(office, KEYS["admin"]) as api:
        setup(api, dataset_given={"budget": BUDGET})
        assert append(api, event(0, 300, sampling=POISSON)).is_success
        loader = {"kind": "shuffle", "batch_size": 250, "steps_per_pass": 240}
        found = SAMPLING | {"status": "contradicted", "declared": POISSON, "reason": "It shuffles."}
        recorded = found | {"recorded": loader | {"reshuffle": "each_pass"}}
        assert api.post("/v1/runs/run/findings", json=recorded).is_success
    page = look(width, scheme)
    sign_in(page, office, "/runs/run")
    # People of an identity provider have names as long as this one.
    long = "https://login.example.org/realms/research#dana.miller"
    page.evaluate(
        "long => document.querySelectorAll('.branches td[data-label$=by]')"
        ".forEach(cell => { cell.textContent = long; })",
        long,
    )
    page.locator("details.others summary").click()
    sound(page)
    cut = page.evaluate(
        "() => Array.from(document.querySelectorAll('.scroll'))"
        ".filter(one => one.scrollWidth > one.clientWidth).map(one => one.ariaLabel)"
    )
    assert cut == []
