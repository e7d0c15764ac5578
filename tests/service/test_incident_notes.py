"""What is done about incidents: insert-only notes, acts of the log, a state that follows."""

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from service.identity.access import datasets_within
from service.identity.keys import Role
from service.ledger.incidents import INCIDENT_ROWS
from service.ledger.lookups import find_dataset
from service.operations.incident_inbox import IS_OPEN, IncidentFilter, count_open, read_handled
from service.operations.overview import Boards
from service.storage.engine import snapshot, transaction
from service.storage.tables import incident_notes, incidents
from service.transparency.verification.ledger import verify
from tests.service.browsing import make_key
from tests.service.office import key_of_each
from tests.service.samples import Json, append, dataset, event, setup
from tests.service.test_incidents import happen
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
URL = "/v1/incidents"


def inbox(api: httpx.Client, **query: Any) -> list[Json]:
    answer = api.get(URL, params=query)
    assert answer.status_code == 200, answer.text
    found: list[Json] = answer.json()["incidents"]
    return found


def note(api: httpx.Client, incident: Json | str, action: str, **given: Any) -> httpx.Response:
    name = incident if isinstance(incident, str) else incident["id"]
    return api.post(f"{URL}/{name}/notes", json={"action": action, **given})


@pytest.fixture
def three(api: httpx.Client, engine: Engine) -> httpx.Client:
    setup(api)
    happen(engine, 1, 2, 3)
    return api


def test_incidents_are_open_and_the_newest_comes_first(three: httpx.Client) -> None:
    found = inbox(three)
    assert [one["sequence"] for one in found] == [3, 2, 1]
    assert {(one["state"], one["assignee"], len(one["notes"])) for one in found} == {
        ("open", None, 0)
    }
    of_dataset = three.get("/v1/datasets/data/incidents").json()["incidents"]
    told = {"id", "kind", "dataset", "run", "sequence", "occurred_at", "detail"}
    assert [{k: one[k] for k in told} for one in found[::-1]] == of_dataset


def test_each_note_is_kept_and_the_latest_decides(three: httpx.Client) -> None:
    first = inbox(three)[0]
    assert note(three, first, "comment", text="looked at").status_code == 201
    assert note(three, first, "assign", assignee="start-token").status_code == 201
    done = note(three, first, "acknowledge", text="expected").json()
    assert (done["state"], done["assignee"]) == ("acknowledged", "start-token")
    assert [(one["action"], one["text"]) for one in done["notes"]] == [
        ("comment", "looked at"),
        ("assign", ""),
        ("acknowledge", "expected"),
    ]
    assert [one["sequence"] for one in inbox(three, state="open")] == [2, 1]
    assert [one["sequence"] for one in inbox(three, state="acknowledged")] == [3]
    assert note(three, first, "reopen").json()["state"] == "open"
    assert len(inbox(three, state="open")) == 3
    assert note(three, first, "assign").json()["assignee"] is None


def test_the_latest_note_is_not_repeated(three: httpx.Client) -> None:
    first = inbox(three)[0]
    assert note(three, first, "acknowledge").status_code == 201
    again = note(three, first, "acknowledge")
    assert (again.status_code, len(again.json()["notes"])) == (200, 1)
    assert note(three, first, "comment", text="a").status_code == 201
    assert note(three, first, "acknowledge").status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        {"action": "comment"},
        {"action": "comment", "text": ""},
        {"action": "comment", "text": "a\nb"},
        {"action": "comment", "text": "x" * 201},
        {"action": "close", "text": "x"},
        {"action": "acknowledge", "assignee": "start-token"},
        {"action": "assign", "assignee": "unknown-key"},
        {"action": "assign", "assignee": "not a name"},
        {"text": "x"},
    ],
)
def test_what_is_no_note_is_refused(three: httpx.Client, body: Json) -> None:
    first = inbox(three)[0]
    assert three.post(f"{URL}/{first['id']}/notes", json=body).status_code == 422
    assert inbox(three)[0]["notes"] == []


def test_an_incident_is_named_exactly(three: httpx.Client) -> None:
    number, _, when = inbox(three)[0]["id"].removeprefix("incident-").partition("-")
    for wrong in (f"incident-{number}-1", f"incident-99-{when}", f"incident-0-{when}", "incident"):
        assert note(three, wrong, "reopen").status_code == 404, wrong


def test_filters_and_pages(three: httpx.Client, engine: Engine) -> None:
    assert three.post("/v1/datasets", json=dataset("other")).status_code == 201
    assert note(three, inbox(three)[1], "assign", assignee="start-token").status_code == 201
    assert [one["sequence"] for one in inbox(three, assignee="start-token")] == [2]
    assert inbox(three, assignee="other") == inbox(three, kind="overdraft") == []
    assert inbox(three, dataset="other") == []
    assert len(inbox(three, dataset="data", kind="refusal", state="open")) == 3
    assert three.get(URL, params={"dataset": "unknown"}).status_code == 404
    found: list[int] = []
    token: str | None = None
    for _ in range(3):
        query: Json = {"page_size": 1, **({"page_token": token} if token else {})}
        page = three.get(URL, params=query).json()
        found += [one["sequence"] for one in page["incidents"]]
        token = page["next_page_token"]
    assert (found, token) == ([3, 2, 1], None)


def test_a_trainer_comments_an_owner_or_approver_acknowledges_and_an_admin_assigns(
    three: httpx.Client, engine: Engine, serve: Serve
) -> None:
    happened = inbox(three)[0]
    keys = key_of_each(engine)
    limited = make_key(engine, "elsewhere", scope=Role.TRAINER, datasets=frozenset({"other"}))
    with serve() as address, httpx.Client(base_url=address) as api:
        api.headers.update(bearer(keys[Role.VIEWER]))
        assert note(api, happened, "comment", text="x").status_code == 403
        api.headers.update(bearer(keys[Role.TRAINER]))
        assert note(api, happened, "comment", text="x").status_code == 201
        for action in ("assign", "acknowledge", "reopen"):
            assert note(api, happened, action).status_code == 403
        for role in (Role.OWNER, Role.APPROVER):
            api.headers.update(bearer(keys[role]))
            assert note(api, happened, "comment", text="x").status_code == 201
            assert note(api, happened, "acknowledge").status_code == 201
            assert note(api, happened, "reopen").status_code == 201
            assert note(api, happened, "assign", assignee=role).status_code == 403
        api.headers.update(bearer(limited))
        assert inbox(api) == []
        assert note(api, happened, "comment", text="x").status_code == 404
        api.headers.update(bearer(keys[Role.ADMIN]))
        assert note(api, happened, "assign", assignee="trainer").status_code == 201
        (first, *_) = inbox(api, assignee="trainer")
        told = [(one["by"], one["action"]) for one in first["notes"]]
        assert (told[0], told[1], told[4], told[-1]) == (
            ("trainer", "comment"), ("owner", "comment"), ("approver", "comment"),
            ("admin", "assign"),
        )  # fmt: skip


def test_each_note_is_an_act_and_is_verified(three: httpx.Client, engine: Engine) -> None:
    first = inbox(three)[0]
    note(three, first, "acknowledge", text="expected")
    acts = three.get("/v1/datasets/data/acts", params={"kind": "incident_note"}).json()["acts"]
    content = acts[0]["content"]
    assert (acts[0]["by"], content["action"], content["text"]) == (
        "start-token", "acknowledge", "expected",
    )  # fmt: skip
    assert content["detail"] == first["detail"]
    assert content["of_kind"] == first["kind"]
    append(three, event(0, 1))
    with engine.connect() as connection:
        assert verify(connection).broken == []
    assert three.post("/v1/datasets", json=dataset("other")).status_code == 201
    with transaction(engine) as connection:  # two that no act speaks of
        row = connection.execute(select(incident_notes)).one()._asdict() | {"id": 98}
        connection.execute(incident_notes.insert().values(row))
        other = find_dataset(connection, "other").id
        row |= {"id": 99, "dataset_id": other}  # of an incident of another dataset
        connection.execute(incident_notes.insert().values(row))
    with engine.connect() as connection:
        faults = verify(connection).broken
    assert sorted(fault.dataset or "" for fault in faults) == ["data", "other"]
    assert all("incident note" in fault.what for fault in faults)


def test_acknowledged_incidents_leave_the_overview(three: httpx.Client, engine: Engine) -> None:
    def counts() -> dict[str, int]:
        with snapshot(engine) as connection:
            return dict(Boards().look(connection, None).incident_counts)

    assert counts() == {"refusal": 3}
    for one in inbox(three)[:2]:
        note(three, one, "acknowledge")
    assert counts() == {"refusal": 1}


def test_the_state_that_is_filtered_by_is_the_one_that_is_told(
    three: httpx.Client, engine: Engine
) -> None:
    """Random notes: the statement of the filter agrees with a fold over the notes."""
    happen(engine, *range(4, 14))
    draw = random.Random(26)
    names = [one["id"] for one in inbox(three)]
    for _ in range(60):
        action = draw.choice(["acknowledge", "reopen", "assign", "comment"])
        given: Json = {"text": "x"} if action == "comment" else {}
        if action == "assign" and draw.random() < 0.7:
            given = {"assignee": "start-token"}
        assert note(three, draw.choice(names), action, **given).is_success
    with snapshot(engine) as connection:
        rows = connection.execute(INCIDENT_ROWS.where(datasets_within(None))).all()
        told = {one.id: one for one in read_handled(connection, rows)}
        decided = connection.execute(select(incidents.c.id, IS_OPEN.label("is_open"))).all()
        open_ones = connection.execute(IncidentFilter(state="open").of(None)).all()
        mine = connection.execute(IncidentFilter(assignee="start-token").of(None)).all()
        assert count_open(connection, None) == {"refusal": len(open_ones)}
    assert 0 < len(open_ones) < len(rows)
    is_open = {row.id: bool(row.is_open) for row in decided}
    by_number = {row.id: one for row, one in zip(rows, told.values(), strict=True)}
    assert is_open == {n: one.state == "open" for n, one in by_number.items()}
    assert {row.id for row in open_ones} == {n for n, x in is_open.items() if x}
    assert {row.id for row in mine} == {
        n for n, one in by_number.items() if one.assignee == "start-token"
    }
