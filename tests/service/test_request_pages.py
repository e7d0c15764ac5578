"""The pages of change requests: what waits, who may decide, and the forms that ask."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import percent_up
from tests.service.browsing import csrf_of, signed_in
from tests.service.dumps import dump
from tests.service.office import APPROVALS, MORE, Office, make_keys, working
from tests.service.samples import BUDGET, FULL, GAUSSIAN, event
from tests.service.test_dataset_page import INLINE, fields, words
from tests.service.test_keys import Serve

TOLD: Final = "another person must decide about it"


class Browsers:
    """A signed-in browser for each person."""

    def __init__(self, office: Office, secrets: dict[str, str], stack: ExitStack) -> None:
        self.office, self._secrets, self._stack = office, secrets, stack
        self._open: dict[str, httpx.Client] = {}

    def __getitem__(self, name: str) -> httpx.Client:
        if name not in self._open:
            browser = signed_in(self.office.address, self._secrets[name])
            self._open[name] = self._stack.enter_context(browser)
        return self._open[name]

    def page(self, name: str, path: str, status: int = 200) -> str:
        answer = self[name].get(path)
        assert answer.status_code == status, answer.text
        assert not INLINE.search(answer.text)
        return answer.text

    def send(self, name: str, path: str, **given: str) -> httpx.Response:
        return self[name].post(path, data={"csrf": csrf_of(self[name])} | given)


@pytest.fixture
def secrets(engine: Engine) -> dict[str, str]:
    return make_keys(engine)


@pytest.fixture
def browsers(serve: Serve, secrets: dict[str, str]) -> Iterator[Browsers]:
    with (
        working(serve, secrets, approvals=APPROVALS, viewer_requests_per_second=1e6) as office,
        ExitStack() as stack,
    ):
        yield Browsers(office, secrets, stack)


def asked(browsers: Browsers, name: str = "dana", epsilon: str = "5") -> str:
    """The address of a request that the form of the dataset's page made."""
    browsers.page(name, "/datasets/data")
    answer = browsers.send(
        name, "/datasets/data/ask", epsilon=epsilon, delta="1e-5", reason="a larger model",
        revision="1",
    )  # fmt: skip
    assert answer.status_code == 303, answer.text
    return str(answer.headers["location"])


def test_a_researcher_asks_on_the_page_and_an_officer_approves(browsers: Browsers) -> None:
    text = browsers.page("dana", "/datasets/data")
    assert "Ask for another limit" in text
    assert "Ask for another limit" not in browsers.page("vic", "/datasets/data")
    assert "Ask for another limit" not in browsers.page("ann", "/datasets/data")
    where = asked(browsers)
    text = words(browsers.page("dana", where))
    assert "\u03b5, at most 3 5" in text
    assert "Withdraw" in text
    assert "Approve" not in text
    text = browsers.page("ann", "/")
    assert "1 waiting" in words(text)
    assert "a larger model" in browsers.page("ann", "/requests")
    answer = browsers.send("ann", f"{where}/approve", reason="looked at it")
    assert (answer.status_code, answer.headers["location"]) == (303, where)
    assert "Approved by ann" in words(browsers.page("vic", where))
    assert browsers.office.limit() == 5.0
    assert "waiting" not in words(browsers.page("ann", "/"))
    assert "by ann, asked for by dana" in words(browsers.page("vic", "/datasets/data"))


def test_the_form_of_a_limit_becomes_a_request(browsers: Browsers) -> None:
    given = fields(browsers.page("ann", "/datasets/data")) | {"epsilon": "5", "reason": "more"}
    answer = browsers["ann"].post("/datasets/data/limit", data=given)
    where = answer.headers["location"]
    assert re.fullmatch(r"/requests/[0-9a-f]{16}", where)
    assert browsers.office.limit() == 3.0
    for key in ("ann", "ann-laptop"):
        text = browsers.page(key, where)
        assert TOLD in text
        assert text.count(" disabled") == 2
        refused = browsers.send(key, f"{where}/approve", reason="me")
        assert (refused.status_code, TOLD in refused.text) == (409, True)
    assert browsers.page("bob", where).count(" disabled") == 0
    assert browsers.send("bob", f"{where}/approve", reason="yes").status_code == 303
    assert browsers.office.limit() == 5.0


def test_the_form_that_voids_becomes_a_request(browsers: Browsers) -> None:
    lease = {"name": "lease", "event": event(0, 5), "ttl_seconds": 600}
    answer = browsers.office["dana"].post("/v1/runs/run/reservations", json=lease)
    assert answer.status_code == 201
    answer = browsers.send(
        "ann", "/datasets/data/admission", frozen="yes", void="yes", reason="stop", revision="1"
    )
    where = answer.headers["location"]
    assert where.startswith("/requests/")
    found = browsers.office["vic"].get("/v1/datasets/data").json()
    assert (found["frozen"], found["reserved"] > 0) == (True, True)
    revision = str(found["revision"])
    thawed = browsers.send("ann", "/datasets/data/admission", reason="go on", revision=revision)
    assert "<h1>The end of a freeze: data" in browsers.page("ann", thawed.headers["location"])
    assert "Open reservations of all its runs held voided" in words(browsers.page("bob", where))


def test_more_accepted_statuses_become_a_request_and_fewer_are_made_at_once(
    browsers: Browsers,
) -> None:
    every = dict.fromkeys(("accept_published", "accept_derived", "accept_declared"), "yes")
    sent = {"reason": "we read the proofs", "revision": "1"}
    answer = browsers.send("ann", "/datasets/data/accept", **every, **sent)
    where = answer.headers["location"]
    assert where.startswith("/requests/")
    text = words(browsers.page("bob", where))
    assert "Accepted statuses declared, published declared, derived, published" in text
    assert "Other accepted theorems: data" in text
    assert browsers.send("bob", f"{where}/approve", reason="yes").status_code == 303
    fewer = {"accept_published": "yes", "reason": "not any more", "revision": "2"}
    answer = browsers.send("ann", "/datasets/data/accept", **fewer)
    assert answer.headers["location"] == "/datasets/data#limits"
    found = browsers.office["vic"].get("/v1/datasets/data").json()
    assert found["accept"] == ["published"]


def test_a_plan_becomes_a_request(browsers: Browsers) -> None:
    envelope = [{"mechanism": GAUSSIAN, "sampling": FULL, "steps": 1}]
    budget = BUDGET | {"epsilon": 8.0, "filter": "envelope", "envelope": envelope}
    request = browsers.office.changes("ann", budget=budget, status=202)
    text = words(browsers.page("bob", f"/requests/{request['id']}"))
    assert "Item 1 of the envelope" in text
    assert "1 step of Gaussian, noise multiplier 1.1 · All records" in text


def test_a_correction_is_shown_before_it_is_approved(browsers: Browsers) -> None:
    browsers.office["dana"].post("/v1/runs/run/events", json={"events": [event(0, 9)]})
    sent = event(0, 5, mechanism=GAUSSIAN | {"noise_multiplier": 4.0}) | {"reason": "the log"}
    answer = browsers.office["ann"].post("/v1/runs/run/corrections", json=sent)
    text = words(browsers.page("bob", f"/requests/{answer.json()['id']}"))
    assert (
        "Branch main, steps 0 to 4 Gaussian, noise multiplier 1.1 · Poisson, sampling probability "
        "0.01 Gaussian, noise multiplier 4 · Poisson, sampling probability 0.01"
    ) in text


def corrected(browsers: Browsers, noise: float) -> str:
    """The address of a request to correct steps of noise multiplier 1.1."""
    browsers.office["dana"].post("/v1/runs/run/events", json={"events": [event(0, 9)]})
    sent = event(0, 5, mechanism=GAUSSIAN | {"noise_multiplier": noise}) | {"reason": "the log"}
    sent["sampling"] = {"kind": "poisson", "sampling_probability": 0.02}
    answer = browsers.office["ann"].post("/v1/runs/run/corrections", json=sent)
    assert answer.status_code == 202, answer.text
    return f"/requests/{answer.json()['id']}"


def test_an_approver_sees_what_a_correction_would_come_to(
    browsers: Browsers, engine: Engine
) -> None:
    where = corrected(browsers, 1.2)
    told = words(browsers.page("bob", "/requests"))
    assert (
        "Branch main, steps 0 to 4: Gaussian, noise multiplier 1.1 · Poisson, sampling probability "
        "0.01 \u2192 Gaussian, noise multiplier 1.2 · Poisson, sampling probability 0.02" in told
    )
    incident = browsers.page("bob", "/incidents?kind=change_request")
    assert f'<a href="{where}">Open the request</a>' in incident
    assert f'<a href="{where}">Open the request</a>' in browsers.page("bob", "/datasets/data")
    form = f'action="{where}/preview"'
    for key, seen in (("vic", False), ("dana", False), ("bob", True), ("ann", True)):
        assert (form in browsers.page(key, where)) == seen, key
    before = dump(engine)
    share = browsers.office["vic"].get("/v1/datasets/data").json()["budget"]["share"]
    answer = browsers.send("bob", f"{where}/preview")
    assert answer.status_code == 200
    assert dump(engine) == before
    cells = re.findall(r'class="num">(?:<strong>)?([^<]*)<', answer.text)
    assert len(cells[-2:]) == 2
    assert "<h1>A correction: run</h1>" in answer.text
    assert "Approve and make the change" in answer.text
    part = browsers["bob"].post(
        f"{where}/preview", data={"csrf": csrf_of(browsers["bob"])}, headers={"HX-Request": "true"}
    )
    assert "<h1>" not in part.text
    assert re.findall(r'class="num">(?:<strong>)?([^<]*)<', part.text)[-2:] == cells[-2:]
    assert browsers.send("bob", f"{where}/approve", reason="yes").status_code == 303
    after = browsers.office["vic"].get("/v1/datasets/data").json()["budget"]["share"]
    assert cells[-2:] == [percent_up(share), percent_up(after)]
    assert share < after
    assert form not in browsers.page("bob", where)  # it is decided
    assert browsers.send("bob", f"{where}/preview").status_code == 409


def test_a_preview_is_of_corrections_and_for_approvers(browsers: Browsers) -> None:
    limit = asked(browsers)
    assert "/preview" not in browsers.page("bob", limit)
    assert browsers.send("bob", f"{limit}/preview").status_code == 409
    where = corrected(browsers, 1.2)
    assert browsers.send("dana", f"{where}/preview").status_code == 403
    assert browsers["bob"].post(f"{where}/preview", data={"x": "y"}).status_code == 403


def test_the_list_says_what_would_change_and_no_more(browsers: Browsers) -> None:
    where = asked(browsers)
    text = browsers.page("vic", "/requests")
    assert "\u03b5, at most: 3 \u2192 5" in words(text)
    assert "\u03b4" not in words(text)  # it stays
    page = browsers.page("vic", where)
    assert "<strong>5</strong>" in page
    assert "<strong>1e-5</strong>" not in page
    assert "\u03b4 1e-5 1e-5 unchanged" in words(page)


def test_a_refused_decision_keeps_what_was_typed(browsers: Browsers) -> None:
    where = asked(browsers)
    answer = browsers.send("ann", f"{where}/reject", reason="")
    assert (answer.status_code, "reason" in answer.text) == (422, True)
    browsers.office.changes("ann", budget={"epsilon": 2.0, "delta": 1e-5}, status=200)
    answer = browsers.send("ann", f"{where}/approve", reason="as agreed")
    assert answer.status_code == 409
    assert 'value="as agreed"' in answer.text
    assert "have changed since" in words(answer.text)
    assert browsers.send("ann", f"{where}/reject", reason="ask again").status_code == 303


def test_a_fault_in_the_form_that_asks_is_told_beside_the_field(browsers: Browsers) -> None:
    browsers.page("dana", "/datasets/data")
    answer = browsers.send(
        "dana", "/datasets/data/ask", epsilon="much", delta="1e-5", reason="x", revision="1"
    )
    assert (answer.status_code, "must be a number" in answer.text) == (422, True)
    assert 'value="much"' in answer.text
    assert "Nothing was asked for. See what is wrong" in words(answer.text)  # at the top


def test_a_request_for_a_void_says_how_many_steps_it_returns(browsers: Browsers) -> None:
    lease = {"name": "lease", "event": event(0, 5), "ttl_seconds": 600}
    assert browsers.office["dana"].post("/v1/runs/run/reservations", json=lease).is_success
    where = browsers.send("ann", "/reservations/lease/void", reason="gone").headers["location"]
    told = "Reservation lease 5 steps held voided, returned to the budget"
    assert told in words(browsers.page("bob", where))
    assert browsers.send("bob", f"{where}/approve", reason="yes").status_code == 303
    assert "Reservation lease held voided" in words(browsers.page("bob", where))


def test_who_may_not_is_refused(browsers: Browsers) -> None:
    where = asked(browsers)
    for key, path in (
        ("vic", f"{where}/withdraw"), ("dana", f"{where}/approve"), ("dana", f"{where}/reject"),
        ("vic", "/datasets/data/ask"),
    ):  # fmt: skip
        assert browsers.send(key, path, reason="x").status_code == 403, (key, path)
    assert browsers["ann"].post(f"{where}/approve", data={"reason": "x"}).status_code == 403
    assert browsers.send("eve", f"{where}/withdraw", reason="x").status_code == 409
    assert browsers.send("dana", f"{where}/withdraw", reason="x").status_code == 303


def test_the_list_is_filtered_and_goes_on(
    browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.web.dashboard.pages.requests._SIZE", 2)
    for epsilon in range(4, 9):
        request = browsers.office.asks("dana", MORE | {"epsilon": float(epsilon)})
        browsers.office.decides("ann", "reject", request)
    browsers.office.asks("eve")
    text = browsers.page("vic", "/requests")
    assert text.count('<th scope="row">') == 3
    older = re.search(r'href="(/requests\?[^"]*before=\d+[^"]*)"', text)
    assert older
    text = browsers.page("vic", older[1].replace("&amp;", "&"))
    assert text.count('<th scope="row">') == 2
    assert browsers.page("vic", "/requests?state=pending").count('<th scope="row">') == 1
    assert browsers.page("vic", "/requests?by=eve&state=").count('<th scope="row">') == 1
    assert browsers.page("vic", "/requests?state=stale").count('<th scope="row">') == 0
    browsers.page("vic", "/requests?state=nonsense", status=422)


def test_what_waits_is_counted_and_goes_on(
    browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.web.dashboard.pages.requests.WAITING_SIZE", 2)
    for epsilon in range(4, 9):
        browsers.office.asks("dana", MORE | {"epsilon": float(epsilon)})
    browsers.office.decides("ann", "reject", browsers.office.asks("eve"))
    found, where = list[str](), "/requests?by=dana"
    for rows in (2, 2, 1):
        text = browsers.page("vic", where)
        there = re.findall(r'<th scope="row"><a href="(/requests/[^"]*)"', text)
        assert len(there) == rows
        assert "Waiting for a decision 5" in words(text)
        assert ('id="history"' in text) == (not found)
        found += there
        older = re.search(r'href="(/requests\?[^"]*waiting_before=\d+[^"]*)#waiting"', text)
        where = "" if older is None else older[1].replace("&amp;", "&")
    assert where == ""
    assert len(set(found)) == 5
    text = browsers.page("vic", "/requests?by=eve")
    assert "Waiting for a decision None." in words(text)


def test_the_address_of_a_decision_leads_back(browsers: Browsers) -> None:
    where = asked(browsers)
    answer = browsers["ann"].get(f"{where}/approve")
    assert (answer.status_code, answer.headers["location"]) == (303, where)
    assert browsers["dana"].get("/datasets/data/ask").headers["location"] == "/datasets/data#limits"
