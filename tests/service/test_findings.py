"""Findings: kept once and for good, told where they alarm; no epsilon depends on them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, insert, select
from sqlalchemy.exc import IntegrityError

from service.identity.keys import Role
from service.operations import webhooks
from service.storage.engine import snapshot, transaction
from service.storage.tables import findings
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump
from tests.service.office import key_of_each
from tests.service.receiver import receiving, sending
from tests.service.samples import (
    BATCH_SIZES,
    BUDGET,
    FULL,
    GAUSSIAN,
    POISSON,
    RANK,
    SAMPLING,
    WRITER,
    Json,
    append,
    event,
    run,
    setup,
)
from tests.service.sse import DATA, take, until, watching
from tests.service.test_hidden_runs import SMALL, hiding, planned

URL = "/v1/runs/run/findings"
SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
OTHER = "e" * 64


def find(api: httpx.Client, finding: Json, *, run: str = "run", **given: Any) -> httpx.Response:
    return api.post(f"/v1/runs/{run}/findings", json=finding | given)


def found(api: httpx.Client, finding: Json, **given: Any) -> Json:
    """Record a finding that is new."""
    answer = find(api, finding, **given)
    assert answer.status_code == 201, answer.text
    body: Json = answer.json()
    return body


def listed(api: httpx.Client, **query: Any) -> list[Json]:
    body: list[Json] = api.get(URL, params=query).json()["findings"]
    return body


def alarms(api: httpx.Client) -> list[Json]:
    body: list[Json] = api.get("/v1/datasets/data/incidents").json()["incidents"]
    return body


def state(api: httpx.Client, name: str = "run") -> Json:
    body: Json = api.get(f"/v1/runs/{name}").json()
    return body


def branch(api: httpx.Client, name: str = "b") -> None:
    body = {"name": name, "writer": WRITER, "from_step": 0}
    assert api.post("/v1/runs/run/branches", json=body).status_code == 201


@pytest.mark.parametrize("finding", [SAMPLING, RANK, BATCH_SIZES], ids=lambda one: one["kind"])
def test_a_finding_is_listed_as_it_was_sent_and_is_kept_once(
    api: httpx.Client, engine: Engine, finding: Json
) -> None:
    setup(api)
    first = found(api, finding)
    assert first.pop("recorded_at").endswith("+00:00")
    assert first == finding | {"run": "run"}
    before = dump(engine)
    again = find(api, finding)
    assert again.status_code == 200
    assert [again.json()] == listed(api)
    assert dump(engine) == before
    assert len(before["findings"]) == 1


def test_findings_are_the_same_however_they_are_spelled(api: httpx.Client) -> None:
    setup(api)
    found(api, SAMPLING, declared=None)
    spelled = SAMPLING | {"recorded": {"kind": "poisson", "expected_batch_size": 600}}
    del spelled["declared"], spelled["branch"]
    again = find(api, spelled)
    assert (again.status_code, again.json()["declared"]) == (200, None)
    assert again.json()["recorded"] == POISSON
    shuffled = found(api, SAMPLING, recorded=SHUFFLE)
    assert shuffled["recorded"] == SHUFFLE | {"steps_per_pass": 100}
    assert find(api, SAMPLING, recorded=shuffled["recorded"]).status_code == 200
    for other in ({"from_step": 1}, {"status": "detected"}, {"reason": "x"}, {"seen": {"a": 1}}):
        assert find(api, SAMPLING, **other).status_code == 201
    assert len(listed(api)) == 6


def test_each_branch_has_findings_of_its_own(api: httpx.Client) -> None:
    setup(api)
    branch(api)
    for name in ("main", "b"):
        assert found(api, SAMPLING, branch=name)["branch"] == name
        assert find(api, SAMPLING, branch=name).status_code == 200


def test_findings_are_listed_in_pages(api: httpx.Client) -> None:
    setup(api)
    api.post("/v1/runs", json=run("other"))
    for first in range(3):
        found(api, SAMPLING, from_step=first)
        found(api, SAMPLING, from_step=first, run="other")
    page = api.get(URL, params={"page_size": 2}).json()
    rest = api.get(URL, params={"page_token": page["next_page_token"]}).json()
    both = page["findings"] + rest["findings"]
    assert [(one["run"], one["from_step"]) for one in both] == [("run", n) for n in range(3)]
    assert rest["next_page_token"] is None
    assert api.get(URL, params={"page_size": 3}).json()["next_page_token"] is None


def test_unknown_names_are_not_found(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    before = dump(engine)
    assert find(api, SAMPLING, run="nobody").status_code == 404
    assert find(api, SAMPLING, branch="nobody").status_code == 404
    assert api.get("/v1/runs/nobody/findings").status_code == 404
    assert dump(engine) == before


def test_a_trainer_finds_and_a_viewer_reads(
    api: httpx.Client, engine: Engine, serve: Callable[..., AbstractContextManager[str]]
) -> None:
    setup(api)
    keys = key_of_each(engine, prefix="a-")
    with serve() as address:
        for step, (scope, key) in enumerate(keys.items()):
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=address, headers=headers) as own:
                answer = find(own, SAMPLING, from_step=step)
                assert answer.status_code == (403 if scope in (Role.VIEWER, Role.APPROVER) else 201)
                assert own.get(URL).status_code == 200


STANDING: list[tuple[list[tuple[str, str]], str]] = [
    ([], "declared"),
    ([("main", "declared")], "declared"),
    ([("main", "detected")], "detected"),
    ([("main", "declared"), ("main", "detected")], "detected"),
    ([("main", "detected"), ("main", "declared")], "declared"),
    ([("main", "detected"), ("b", "declared")], "declared"),
    ([("main", "detected"), ("b", "declared"), ("b", "detected")], "detected"),
    ([("b", "detected")], "detected"),
    ([("main", "contradicted")], "contradicted"),
    ([("main", "contradicted"), ("main", "detected"), ("b", "detected")], "contradicted"),
]


@pytest.mark.parametrize(("claims", "status"), STANDING)
def test_a_run_stands_where_its_findings_put_it(
    api: httpx.Client, claims: list[tuple[str, str]], status: str
) -> None:
    setup(api)
    branch(api)
    api.post("/v1/runs", json=run("other"))
    found(api, RANK)
    found(api, BATCH_SIZES)
    for step, (name, claim) in enumerate(claims):
        found(api, SAMPLING, branch=name, status=claim, from_step=step)
    assert state(api)["sampling_status"] == status
    assert state(api, "other")["sampling_status"] == "declared"
    runs = api.get("/v1/runs").json()["runs"]
    assert [one["sampling_status"] for one in runs] == [status, "declared"]
    assert api.post("/v1/runs", json=run()).json()["sampling_status"] == status
    ended = api.post("/v1/runs/run:finish", json={"state": "finished"}).json()
    assert ended["sampling_status"] == status


def test_a_contradicted_declaration_is_an_incident_once(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 10, sampling=SHUFFLE))
    for status in ("declared", "detected"):
        found(api, SAMPLING, status=status)
    assert alarms(api) == []
    for _ in range(2):
        find(api, SAMPLING, status="contradicted", from_step=3, recorded=SHUFFLE)
    (told,) = alarms(api)
    assert (told["kind"], told["run"], told["sequence"]) == ("sampling_contradicted", "run", 1)
    assert told["detail"] == {
        "dataset": "data", "run": "run", "branch": "main", "from_step": 3,
        "declared": "poisson", "recorded": "shuffle",
    }  # fmt: skip


def test_ranks_that_agree_alarm_nobody(api: httpx.Client) -> None:
    setup(api)
    branch(api)
    api.post("/v1/runs", json=run("other"))
    for rank in range(4):
        found(api, RANK, rank=rank, world_size=4)
        found(api, RANK, rank=rank, world_size=4, fingerprint=OTHER, branch="b")
        found(api, RANK, rank=rank, world_size=5, run="other")
    assert alarms(api) == []


@pytest.mark.parametrize("other", [{"fingerprint": OTHER}, {"world_size": 3}])
def test_ranks_that_disagree_are_an_incident_that_names_both(
    api: httpx.Client, other: Json
) -> None:
    setup(api)
    found(api, RANK, rank=0)
    found(api, RANK, rank=1, **other)
    find(api, RANK, rank=1, **other)
    (told,) = alarms(api)
    assert (told["kind"], told["run"]) == ("ranks_disagree", "run")
    assert told["detail"] == {
        "dataset": "data", "run": "run", "branch": "main", "rank": 1, "other_rank": 0,
        "world_size": other.get("world_size", 2), "other_world_size": 2,
    }  # fmt: skip


def test_each_way_to_differ_is_told_once(api: httpx.Client) -> None:
    setup(api)
    prints = ["a" * 64, OTHER, "a" * 64, OTHER, "c" * 64, "c" * 64, OTHER]
    for rank, fingerprint in enumerate(prints):
        found(api, RANK, rank=rank, world_size=7, fingerprint=fingerprint)
    told = [(one["detail"]["rank"], one["detail"]["other_rank"]) for one in alarms(api)]
    assert told == [(1, 0), (4, 0)]


def test_a_verdict_on_batch_sizes_is_given_once_a_branch(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    branch(api)
    found(api, BATCH_SIZES, verdict="not_refuted")
    before = dump(engine)
    for other in ({"verdict": "refuted"}, {"verdict": "not_refuted", "level": 1e-7}):
        refused = find(api, BATCH_SIZES, **other)
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/conflict")
    assert find(api, BATCH_SIZES, verdict="not_refuted").status_code == 200
    assert dump(engine) == before
    assert alarms(api) == []
    found(api, BATCH_SIZES, branch="b")
    (told,) = alarms(api)
    assert (told["kind"], told["run"]) == ("batch_sizes_refuted", "run")
    assert told["detail"] == {"dataset": "data", "run": "run", "branch": "b", "level": 1e-6}


def test_what_left_beside_the_steps_is_listed_as_outside_the_guarantee(api: httpx.Client) -> None:
    setup(api, dataset_given=SMALL, **hiding())
    branch(api)
    append(api, planned())

    def outside() -> list[Any]:
        told = [state(api), api.get("/v1/runs").json()["runs"][0]]
        told += [api.get("/v1/runs/run/guarantee").json()]
        told += [api.get("/v1/runs/run/guarantee", params={"branch": "main"}).json()]
        return [one["outside_guarantee"] for one in told]

    found(api, SAMPLING)
    found(api, RANK)
    assert outside() == [[]] * 4
    found(api, BATCH_SIZES)
    found(api, BATCH_SIZES, branch="b", verdict="not_refuted")
    both = [
        {"kind": "batch_sizes", "branch": "main", "verdict": "refuted"},
        {"kind": "batch_sizes", "branch": "b", "verdict": "not_refuted"},
    ]
    assert outside() == [both] * 4
    ended = api.post("/v1/runs/run:finish", json={"state": "finished"}).json()
    assert ended["outside_guarantee"] == ended["guarantee"]["outside_guarantee"] == both
    appended = append(api, planned(60, 1)).json()
    assert "outside_guarantee" not in appended["guarantee"]


def test_findings_change_no_number_and_no_sequence(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10, mechanism=GAUSSIAN | {"noise_multiplier": 20.0}, sampling=FULL))

    def numbers() -> Json:
        guarantee = api.get("/v1/runs/run/guarantee").json()
        del guarantee["outside_guarantee"]
        return {"run": guarantee, "data": api.get("/v1/datasets/data").json()}

    told, rows = numbers(), dump(engine)
    found(api, SAMPLING, status="contradicted", recorded=SHUFFLE)
    found(api, RANK)
    found(api, RANK, rank=1, fingerprint=OTHER)
    found(api, BATCH_SIZES)
    assert numbers() == told
    after = dump(engine)
    changed = {name for name in rows if after[name] != rows[name]}
    assert changed == {"findings", "incidents", "acts", "datasets"}  # whose log is longer


@pytest.mark.parametrize("end", ["finished", "aborted"])
def test_a_closed_run_takes_findings_and_stays_closed(api: httpx.Client, end: str) -> None:
    setup(api)
    api.post("/v1/runs/run:finish", json={"state": end})
    found(api, SAMPLING, status="contradicted", recorded=SHUFFLE)
    found(api, BATCH_SIZES)
    found(api, RANK)
    assert state(api)["state"] == end
    assert [one["kind"] for one in alarms(api)] == ["sampling_contradicted", "batch_sizes_refuted"]


def test_the_database_itself_keeps_a_finding_of_a_branch_once(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    found(api, SAMPLING)
    with snapshot(engine) as connection:
        row = connection.execute(select(findings)).one()._asdict()
    del row["id"]
    with pytest.raises(IntegrityError), transaction(engine) as connection:
        connection.execute(insert(findings).values(row))


def test_disagreement_reaches_streams_and_the_webhooks_that_want_it(
    api: httpx.Client, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "POLL_SECONDS", 0.02)
    setup(api)
    wanted = ("ranks_disagree", "batch_sizes_refuted")
    with (
        receiving() as receiver,
        sending(engine, tmp_path, receiver.url, webhook_kinds=wanted) as dispatcher,
        watching(api, DATA) as stream,
    ):
        take(stream, 1)
        with httpx.Client(base_url=api.base_url, headers=AS_ADMIN) as other:
            found(other, SAMPLING, status="contradicted")
            found(other, RANK)
            found(other, RANK, rank=1, fingerprint=OTHER)
            found(other, BATCH_SIZES)
        heard = [frame.data["kind"] for frame in take(stream, 3)]
        until(lambda: dispatcher.delivered == 2)
    assert heard == ["sampling_contradicted", *wanted]
    assert sorted(receiver.kinds) == sorted(wanted)
