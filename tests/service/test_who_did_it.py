"""The log says whose key did what: in every act, and for entries in an act before them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from service.cli.main import app
from service.clock import now
from service.identity.keys import Role, create_key
from service.ledger.append.append import Append
from service.ledger.append.unit_of_work import DatasetCache
from service.schemas.requests import EventMessage
from service.storage.engine import snapshot, transaction
from service.transparency.activity import all_acts, find_stretches
from service.transparency.verification.ledger import verify
from tests.service.samples import BUDGET, FULL, RANK, Json, dataset, event, run

Serve = Callable[..., AbstractContextManager[str]]
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 40.0}


@pytest.fixture
def keys(engine: Engine, serve: Serve) -> Iterator[dict[str, httpx.Client]]:
    """A client for each of three keys: an admin's and two trainers'."""
    secrets: dict[str, str] = {}
    for name, scope in (("officer", "admin"), ("ann", "trainer"), ("bob", "trainer")):
        with transaction(engine) as connection:
            secrets[name] = create_key(connection, name=name, scope=Role(scope))
    with serve() as address, ExitStack() as stack:
        yield {
            name: stack.enter_context(
                httpx.Client(
                    base_url=address, timeout=30, headers={"Authorization": f"Bearer {secret}"}
                )
            )
            for name, secret in secrets.items()
        }


def happen(keys: dict[str, httpx.Client]) -> None:
    """Everything that may happen to a run, some of it by each key."""
    officer, ann, bob = keys["officer"], keys["ann"], keys["bob"]

    def do(who: httpx.Client, path: str, body: Json) -> None:
        who.post(f"/v1/{path}", json=body).raise_for_status()

    spent = {**event(0, 2, mechanism=QUIET), "first_step": None}
    do(officer, "datasets", dataset(budget=BUDGET, opening_balance=[spent]))
    do(ann, "runs", run(delta=1e-5))
    for first, who in ((0, ann), (1, ann), (2, bob), (3, bob), (4, ann)):
        do(who, "runs/run/events", {"events": [event(first, 1, mechanism=QUIET)]})
    do(ann, "runs/run/events", {"events": [event(2, 1, mechanism=QUIET)]})  # nothing new
    do(bob, "runs/run/branches", {"name": "fork", "writer": "w" * 16, "from_step": 3})
    lease = {"event": {**event(5, 9, mechanism=QUIET)}, "ttl_seconds": 60}
    do(bob, "runs/run/reservations", lease | {"name": "lease"})
    do(ann, "reservations/lease:release", {"last_step": 6})
    do(bob, "runs/run/releases", {"step": 2})
    do(ann, "runs/run/findings", RANK)
    do(bob, "runs/run:finish", {"state": "finished"})
    do(ann, "runs/run/events", {"events": [event(5, 1, mechanism=QUIET)]})
    corrected = event(0, 1, mechanism=QUIET, sampling=FULL) | {"reason": "as logged"}
    do(officer, "runs/run/corrections", corrected)
    planned: Json = {"name": "planned", "plan": [spent], "budget": BUDGET}
    do(bob, "runs", run(**planned))
    do(ann, "runs/planned:finish", {"state": "aborted"})


def acts(engine: Engine) -> list[tuple[str, str | None, Any]]:
    with snapshot(engine) as connection:
        return [(one.kind, one.by, one.content) for one in all_acts(connection, "data")]


def test_every_act_names_the_key(keys: dict[str, httpx.Client], engine: Engine) -> None:
    happen(keys)
    done = [(kind, by) for kind, by, _ in acts(engine) if kind != "appends"]
    opened = [("dataset", "officer"), ("settings", "officer"), ("run", "officer")]
    closed = [("branch", "officer"), ("run_state", "officer")]
    assert done == [
        *opened, *closed, ("run", "ann"), ("branch", "ann"), ("branch", "bob"),
        ("reservation", "bob"), ("reservation_end", "ann"), ("release", "bob"),
        ("finding", "ann"), ("run_state", "bob"), ("run_state", "ann"), ("correction", "officer"),
        ("run", "bob"), ("branch", "bob"), ("reservation", "bob"), ("reservation_end", "ann"),
        ("run_state", "ann"),
    ]  # fmt: skip


def test_a_branch_names_each_key_that_begins_to_append_to_it(
    keys: dict[str, httpx.Client], engine: Engine
) -> None:
    happen(keys)
    with snapshot(engine) as connection:
        found = [
            (one.after_sequence, one.content["run"], one.by)
            for one in all_acts(connection, "data")
            if one.kind == "appends"
        ]
        assert verify(connection).broken == []
    opening = next(content["name"] for kind, _, content in acts(engine) if kind == "run")
    # Of the dataset's entries the first is the opening balance; a duplicate is no append.
    assert found == [
        (0, opening, "officer"), (1, "run", "ann"), (3, "run", "bob"), (5, "run", "ann"),
    ]  # fmt: skip


def test_two_processes_agree_on_whose_key_appended_last(engine: Engine, api: httpx.Client) -> None:
    """What another process wrote counts, not what this one remembers."""
    api.post("/v1/datasets", json=dataset()).raise_for_status()
    api.post("/v1/runs", json=run()).raise_for_status()
    shelves = [DatasetCache(), DatasetCache()]
    for first, (cache, by) in enumerate(
        ((0, "ann"), (1, "ann"), (0, "ann"), (1, "bob"), (0, "ann"), (0, "ann"), (1, "ann"))
    ):
        asked = Append(
            run_name="run",
            branch_name="main",
            mode="record",
            events=[EventMessage.model_validate(event(first, 1))],
            by=by,
        )
        with transaction(engine) as connection:
            work = shelves[cache].open(connection, [asked.place])
            asked.apply(work, now())
            work.write()
    found = [(by, content["key"]) for kind, by, content in acts(engine) if kind == "appends"]
    assert found == [("ann", "ann"), ("bob", "bob"), ("ann", "ann")]


def test_answers_and_lists_name_the_key(keys: dict[str, httpx.Client]) -> None:
    happen(keys)
    ann = keys["ann"]
    found = ann.get("/v1/runs/run").json()
    assert found["by"] == "ann"
    assert [(one["by"], one["appended_by"]) for one in found["branches"]] == [
        ("ann", "ann"), ("bob", None),
    ]  # fmt: skip
    assert ann.get("/v1/reservations/lease").json()["by"] == "bob"

    def runs_by(name: str) -> list[str]:
        return [one["name"] for one in ann.get("/v1/runs", params={"by": name}).json()["runs"]]

    assert (runs_by("ann"), runs_by("bob"), runs_by("nobody")) == (["run"], ["planned"], [])
    asked = {"by": "bob", "kind": "appends"}
    (one,) = ann.get("/v1/datasets/data/acts", params=asked).json()["acts"]
    assert (one["by"], one["content"]["branch"]) == ("bob", "main")
    one_by_one: list[int] = []
    token: str | None = ""
    while token is not None:
        asked = {"by": "bob", "page_size": "2"} | ({"page_token": token} if token else {})
        page = ann.get("/v1/datasets/data/acts", params=asked).json()
        one_by_one += [one["position"] for one in page["acts"]]
        token = page["next_page_token"]
        assert {one["by"] for one in page["acts"]} == {"bob"}
    assert len(one_by_one) == len(set(one_by_one)) == 8
    assert keys["officer"].get("/v1/acts", params={"by": "ann"}).json()["acts"] == []


def test_which_entries_a_key_recorded_is_told(
    keys: dict[str, httpx.Client], engine: Engine
) -> None:
    happen(keys)

    def told(name: str, dataset: str | None = None) -> list[tuple[Any, ...]]:
        with snapshot(engine) as connection:
            return [tuple(one)[1:8] for one in find_stretches(connection, name, dataset)]

    assert told("ann") == [
        ("run", "main", 2, 3, 2, 0, 1), ("run", "main", 6, 7, 2, 4, 5),
    ]  # fmt: skip
    assert told("bob", "data") == [("run", "main", 4, 5, 2, 2, 3)]
    assert told("nobody") == []
    there = ("--database", engine.url.render_as_string(hide_password=False))
    asked = ["audit", "--by", "bob", *there]
    lines = CliRunner().invoke(app, [*asked, "--entries"]).stdout.splitlines()
    assert lines[0].startswith("dataset\trun\tbranch\tfirst_sequence")
    assert lines[1].split("\t")[:7] == ["data", "run", "main", "4", "5", "2", "2"]
    lines = CliRunner().invoke(app, asked).stdout.splitlines()
    assert lines[0] == "time\tact\tby\tdataset\tcontent"
    assert {line.split("\t")[2] for line in lines[1:]} == {"bob"}
    assert CliRunner().invoke(app, ["audit", "--entries", *there]).exit_code == 2


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ("UPDATE runs SET by = 'bob' WHERE name = 'run'", "run"),
        ("UPDATE branches SET by = 'ann' WHERE name = 'fork'", "branch"),
        ("UPDATE reservations SET by = 'ann' WHERE name = 'lease'", "reservation"),
        ("UPDATE branches SET appended_by = 'bob' WHERE appended_by = 'ann'", "appends"),
        ("UPDATE branches SET appended_by = 'bob' WHERE name = 'fork'", "appends"),
        ("UPDATE branches SET appended_by = NULL WHERE appended_by = 'ann'", "appends"),
    ],
)
def test_another_name_in_a_row_is_found(
    keys: dict[str, httpx.Client], engine: Engine, edit: str, words: str
) -> None:
    happen(keys)
    with transaction(engine) as connection:
        connection.execute(text(edit))
        report = verify(connection)
    assert report.first is not None
    assert words in report.first.text
