"""The inbox of incidents and the audit log, as pages and as files."""

import csv
import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from html import escape
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.clock import now
from service.identity.keys import Role
from service.ledger.incidents import IncidentAnswer, Kind
from service.web.dashboard import glossary, listing
from service.web.dashboard.pages.incident_details import describe_details
from tests.service.browsing import CSRF, make_key, signed_in
from tests.service.samples import BUDGET, Json, append, dataset, event, run, setup
from tests.service.test_incident_notes import inbox, note
from tests.service.test_incidents import happen
from tests.service.test_listing import link, page, words

Serve = Callable[..., AbstractContextManager[str]]
CARD = re.compile(r'<li class="panel incident" id="([^"]+)"')


@pytest.fixture
def happened(api: httpx.Client, engine: Engine) -> httpx.Client:
    setup(api, dataset_given={"budget": {"epsilon": 0.5, "delta": 1e-5}})
    append(api, event(0, 3000))
    happen(engine, 7, scope="dataset:data", limit=0.5, requested=1.25, spent=None, reserved=0.0)
    return api


def file_of(
    api: httpx.Client, path: str, query: Mapping[str, Any] | None = None
) -> list[dict[str, str]]:
    answer = api.get(path, params=dict(query) if query else None)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def test_the_inbox_tells_what_each_means_and_what_to_do(happened: httpx.Client) -> None:
    text = page(happened, "/incidents")
    said = words(text)
    assert "2 open" in said
    for kind in (Kind.REFUSAL, Kind.OVERDRAFT):
        assert glossary.ADVICE[kind].means in said
        assert glossary.ADVICE[kind].do in said
    assert (
        "limit of the dataset data · as an ε: charged no finite bound, reserved 0, "
        "the steps would add 1.25, limit 0.5"
    ) in said
    newest = page(happened, "/incidents", {"sort": "newest"})
    assert CARD.findall(newest) == [one["id"] for one in inbox(happened)]
    first, second = CARD.findall(newest)
    assert CARD.findall(text) == [second, first]  # the overdraft before the refusal
    assert note(happened, first, "acknowledge", text="expected").status_code == 201
    assert CARD.findall(page(happened, "/incidents")) == [second]
    assert CARD.findall(page(happened, "/incidents", {"state": "acknowledged"})) == [first]
    assert CARD.findall(page(happened, "/incidents", {"state": "any", "kind": "refusal"})) == [
        first
    ]
    told = words(page(happened, "/incidents", {"state": "any"}))
    assert "start-token acknowledged it just now expected" in told


def test_an_overdraft_names_its_causes_apart_from_what_to_do(happened: httpx.Client) -> None:
    advice = glossary.ADVICE[Kind.OVERDRAFT]
    assert "by recorded steps, a correction or changed settings" in advice.means
    assert "correction" not in advice.do  # it is no remedy
    other = dataset("endless", budget={"epsilon": 5.0, "delta": 1e-5})
    assert happened.post("/v1/datasets", json=other).status_code == 201
    assert happened.post("/v1/runs", json=run("lost", dataset="endless")).status_code == 201
    append(happened, event(0, 1, mechanism={"kind": "none"}), run="lost")
    said = words(page(happened, "/incidents", {"dataset": "endless"}))
    assert "What is charged has no finite bound" in said
    assert "a higher limit does not change that" in said
    assert advice.do not in said
    assert advice.do in words(page(happened, "/incidents", {"dataset": "data"}))


def test_the_most_serious_are_listed_first_on_every_part(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PART_SIZE", 2)
    setup(api)
    kinds = [Kind.CORRECTION, Kind.OVERDRAFT, Kind.REFUSAL, Kind.NOISE_REUSED, Kind.THRESHOLD]
    for kind in kinds:
        happen(engine, 0, kind=kind)
    by_kind = {one["kind"]: one["id"] for one in inbox(api)}
    found, where = [], "/incidents"
    while where:
        text = page(api, where)
        found += CARD.findall(text)
        where = link(text, "next") or ""
    bad, warn = [Kind.NOISE_REUSED, Kind.OVERDRAFT], [Kind.THRESHOLD, Kind.REFUSAL]
    assert found == [by_kind[kind] for kind in (*bad, *warn, Kind.CORRECTION)]
    rising = CARD.findall(page(api, "/incidents", {"sort": "weight"}))
    assert rising == found[:-3:-1]


def test_the_overview_leads_to_what_is_open(happened: httpx.Client) -> None:
    text = page(happened, "/")
    assert 'href="/incidents?state=open&amp;kind=overdraft"' in text
    assert "All 2 open incidents" in words(text)
    for one in inbox(happened):
        note(happened, one, "acknowledge")
    text = page(happened, "/")
    assert "kind=overdraft" not in text
    assert "incidents" in words(text)


def test_the_parts_of_the_inbox_are_walked(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PART_SIZE", 2)
    setup(api)
    happen(engine, *range(5))
    found, where = [], "/incidents?kind=refusal"
    for _ in range(3):
        text = page(api, where)
        found += CARD.findall(text)
        where = link(text, "next") or ""
    assert where == ""
    assert found == [one["id"] for one in inbox(api)]


def test_handle_leads_to_the_open_form_of_the_incident_whatever_its_state(
    happened: httpx.Client, engine: Engine, serve: Serve
) -> None:
    first, other = inbox(happened)
    note(happened, first, "acknowledge")
    key = make_key(engine, "officer", scope=Role.ADMIN)
    with serve() as address, signed_in(address, key) as client:
        text = page(client, "/datasets/data")
        for one in (first, other):
            asked = f"state=any&incident={one['id']}"
            assert f'href="/incidents?{escape(asked)}">Handle' in text
            shown = page(client, f"/incidents?{asked}")
            assert CARD.findall(shown) == [one["id"]]
            assert shown.count("<details open>") == 1
            answer = sent(client, one["id"], back=asked, action="comment", text="looked at it")
            assert answer.headers["location"] == f"/incidents?{asked}#{one['id']}"  # open again
        assert page(client, "/incidents?state=any").count("<details open>") == 0
        assert CARD.findall(page(client, "/incidents?state=any&incident=nonsense")) == []


def sent(client: httpx.Client, incident: str, **fields: str) -> httpx.Response:
    found = CSRF.search(client.get("/incidents?state=any").text)
    assert found
    return client.post(
        f"/incidents/{incident}/notes", data={"csrf": found[1], "back": "state=any", **fields}
    )


def test_an_admin_handles_an_incident_in_the_browser(
    happened: httpx.Client, engine: Engine, serve: Serve
) -> None:
    name = inbox(happened)[0]["id"]
    make_key(engine, "ada", scope=Role.TRAINER)
    key = make_key(engine, "officer", scope=Role.ADMIN)
    with serve() as address, signed_in(address, key) as client:
        answer = sent(client, name, action="assign", assignee="ada", text="please look")
        assert (answer.status_code, answer.headers["location"]) == (
            303, f"/incidents?state=any#{name}",
        )  # fmt: skip
        assert sent(client, name, action="comment", text="seen").status_code == 303
        assert sent(client, name, action="acknowledge", assignee="ada").status_code == 303
        said = words(page(client, "/incidents", {"state": "acknowledged"}))
        assert "officer assigned it to ada just now please look" in said
        assert "assigned to ada acknowledged" in said
        wrong = sent(client, name, action="comment")
        assert wrong.status_code == 422
        assert "a comment needs a text" in words(wrong.text)
        long = sent(client, name, action="comment", text="x" * 201)
        assert long.status_code == 422
        assert 'value="' + "x" * 201 in long.text
        for fields in ({"action": "close"}, {"action": "assign", "assignee": "unknown"}):
            assert sent(client, name, **fields).status_code == 422
        said = words(sent(client, name, action="assign", assignee="unknown").text)
        assert "the assignee must be the name of a key in force" in said
        assert sent(client, "incident-99-1", action="comment", text="x").status_code == 404
        forged = client.post(f"/incidents/{name}/notes", data={"action": "reopen", "csrf": "x"})
        assert forged.status_code == 403
        elsewhere = sent(client, name, action="reopen", back="state=sideways")
        assert elsewhere.headers["location"] == f"/incidents#{name}"
        again = client.get(f"/incidents/{name}/notes")
        assert again.headers["location"] == f"/incidents?state=any#{name}"


def test_a_trainer_comments_a_viewer_reads_and_a_limited_key_sees_its_own(
    happened: httpx.Client, engine: Engine, serve: Serve
) -> None:
    name = inbox(happened)[0]["id"]
    assert happened.post("/v1/datasets", json=dataset("other")).status_code == 201
    keys = {role: make_key(engine, role, scope=role) for role in (Role.VIEWER, Role.TRAINER)}
    other = make_key(engine, "other", scope=Role.TRAINER, datasets=frozenset({"other"}))
    with serve() as address:
        with signed_in(address, keys[Role.TRAINER]) as client:
            assert "Acknowledge</button>" not in client.get("/incidents").text
            assert sent(client, name, action="comment", text="mine").status_code == 303
            assert sent(client, name, action="acknowledge").status_code == 403
            assert client.get("/log").status_code == 403
        with signed_in(address, keys[Role.VIEWER]) as client:
            assert "Comment</button>" not in client.get("/incidents").text
            assert sent_by_viewer(client, name).status_code == 403
        with signed_in(address, other) as client:
            assert CARD.findall(page(client, "/incidents")) == []
            assert file_of(client, "/incidents.csv") == []
            assert sent_by_viewer(client, name).status_code == 404


def sent_by_viewer(client: httpx.Client, name: str) -> httpx.Response:
    found = CSRF.search(client.get("/").text)
    assert found
    return client.post(
        f"/incidents/{name}/notes", data={"csrf": found[1], "action": "comment", "text": "x"}
    )


def test_incidents_are_a_file(happened: httpx.Client) -> None:
    note(happened, inbox(happened)[0], "acknowledge", text="=expected")
    found = file_of(happened, "/incidents.csv", {"state": "any"})
    assert [(one["kind"], one["state"], one["last_note"]) for one in found] == [
        ("refusal", "acknowledged", "'=expected"),
        ("overdraft", "open", ""),
    ]
    assert [one["kind"] for one in file_of(happened, "/incidents.csv")] == ["overdraft"]


@pytest.mark.parametrize("kind", list(Kind))
def test_details_are_words(kind: Kind) -> None:
    detail: Json = {
        "dataset": "data", "run": "run", "scope": "run:run", "fraction": 0.8, "spent": 1.00001,
        "remaining": 1.99999, "reserved": None, "limit": 3.0, "delta": 1e-5, "steps": 1,
        "first_step": 1200, "frozen": "true", "would_fit": {"steps": 3}, "reason": "agreed",
        "other_thing": 7, "nearest_item": None, "thresholds": [0.5, 0.7, 0.8], "share": 0.80121,
        "share_reserved": 0.0, "share_requested": None,
    }  # fmt: skip
    told = describe_details(
        IncidentAnswer(
            id="x", kind=kind, dataset="data", run="run", sequence=1, occurred_at="", detail=detail
        )
    )
    assert told == [
        "frozen", "limit of the run run",
        "passed 50\u202f%, 70\u202f% and 80\u202f% of the capacity",
        "charged 80.2\u202f% of the capacity", "reserved 0\u202f%",
        "the steps would add: no finite bound",
        "as an ε: charged 1.001, reserved no finite bound, left 1.999, limit 3", "at δ 1e-5",
        "1 step", "from step 1,200", "reason: agreed", "other thing 7",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("detail", "told"),
    [
        ({"fraction": 0.8}, ["passed 80\u202f% of the capacity"]),  # of an earlier version
        ({"limit": 3.0, "delta": 1e-5}, ["limit ε 3", "at δ 1e-5"]),
        ({"share": None}, ["charged of the capacity: no finite bound"]),
    ],
)
def test_details_without_a_charge_stand_alone(detail: Json, told: list[str]) -> None:
    given: Json = {"kind": Kind.THRESHOLD, "dataset": "data", "run": None, "sequence": 1}
    assert describe_details(IncidentAnswer(id="x", occurred_at="", detail=detail, **given)) == told


# ---- the audit log


def acts_of(text: str) -> list[str]:
    return [words(one) for one in re.findall(r'<th scope="row">(.*?)</th>', text)]


def test_the_log_has_the_acts_of_all_logs_the_newest_first(
    api: httpx.Client, engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "PART_SIZE", 3)
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1))
    key = make_key(engine, "ada", scope=Role.ADMIN)
    kinds = {one["kind"] for one in api_acts(api, key, "/v1/datasets/data/acts", serve)}
    with serve() as address, signed_in(address, key) as client:
        found, where = [], "/log"
        while where:
            text = page(client, where)
            found += acts_of(text)
            where = link(text, "next") or ""
        assert found[0] == "Key created"
        assert {one.lower().replace(" ", "_") for one in found} == kinds | {"key_created"}
        assert acts_of(page(client, "/log", {"of": "installation"})) == ["Key created"]
        assert acts_of(page(client, "/log", {"kind": "run"})) == ["Run"]
        assert acts_of(page(client, "/log", {"by": "unknown"})) == []
        assert acts_of(page(client, "/log", {"dataset": "unknown"})) == []
        assert acts_of(page(client, "/log", {"dataset": "data", "kind": "dataset"})) == ["Dataset"]
        today, later = now().date(), now().date() + timedelta(days=2)
        soon = {"since": today - timedelta(days=1), "until": later, "kind": "run"}
        assert acts_of(page(client, "/log", soon)) == ["Run"]
        assert acts_of(page(client, "/log", {"since": later})) == []
        assert acts_of(page(client, "/log", {"until": today - timedelta(days=2)})) == []
        assert client.get("/log", params={"since": "yesterday"}).status_code == 422
        lines = file_of(client, "/log.csv")
        assert len(lines) == len(found)
        assert (lines[0]["act"], lines[0]["dataset"]) == ("key_created", "")
        assert lines[0]["content"].startswith("{")


def api_acts(api: httpx.Client, key: str, path: str, serve: Serve) -> list[Json]:
    with serve() as address:
        answer = httpx.get(address + path, headers={"authorization": f"Bearer {key}"})
    found: list[Json] = answer.json()["acts"]
    return found


def test_what_an_act_says_is_shown_where_it_is_short(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    text = page(api, "/log", {"kind": "dataset"})
    assert "data was registered with 60,000 records; the privacy unit is example." in words(text)
    monkeypatch.setattr("service.web.dashboard.pages.audit_log.ACT_CHARACTERS", 10)
    assert "characters; the API has all of it" in words(page(api, "/log", {"kind": "dataset"}))
