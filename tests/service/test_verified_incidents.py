"""`dpledger verify` and incidents: those that the log speaks of are there, as it says."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, Engine, TextClause, text

from benchmarks.rewriting import undone
from service.storage.engine import snapshot
from service.transparency.verification.ledger import verify
from tests.service.samples import (
    AUDIT,
    BATCH_SIZES,
    BUDGET,
    FULL,
    RANK,
    SAMPLING,
    Json,
    append,
    dataset,
    event,
    run,
    setup,
)

SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
KINDS = {  # and after which entry is the last of them
    "audit_contradicts": 1,
    "batch_sizes_refuted": 1,
    "correction": 3,
    "ranks_disagree": 1,
    "reopened": 3,
    "sampling_contradicted": 1,
}


@pytest.fixture
def told(api: httpx.Client) -> None:
    """A run of which there is an incident of every kind that an act speaks of."""
    setup(api, dataset_given={"budget": BUDGET}, delta=1e-5)
    append(api, event(0, 5))
    for finding in (
        RANK,
        RANK | {"rank": 1, "fingerprint": "b" * 64},
        RANK | {"rank": 2, "world_size": 3, "fingerprint": "b" * 64},
        RANK | {"rank": 1},  # as another said before it: no incident
        BATCH_SIZES,
        SAMPLING | {"status": "contradicted", "recorded": SHUFFLE},
    ):
        api.post("/v1/runs/run/findings", json=finding).raise_for_status()
    # Sampled little, so that no epsilon of the run allows for what is guessed.
    api.post("/v1/runs/run/audits", json=AUDIT).raise_for_status()
    api.post("/v1/runs/run/audits/1:result", json={"correct": 100}).raise_for_status()
    for first in (5, 7):  # two of them at two places in the log
        api.post("/v1/runs/run:finish", json={"state": "finished"}).raise_for_status()
        append(api, event(first, 2)).raise_for_status()
    corrected = event(1, 2, sampling=FULL) | {"reason": "as the trainer's log says"}
    api.post("/v1/runs/run/corrections", json=corrected).raise_for_status()


def test_a_ledger_that_nobody_edited_lacks_no_incident(told: None, engine: Engine) -> None:
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.broken == []
    assert report.checked["incidents"] == 8


@pytest.mark.parametrize(
    "edit",
    [
        "DELETE FROM incidents",
        "UPDATE incidents SET kind = 'threshold'",
        "UPDATE incidents SET sequence = 4711",
        "UPDATE incidents SET run_id = NULL",
    ],
)
def test_an_incident_that_an_act_speaks_of_is_missed(told: None, engine: Engine, edit: str) -> None:
    for kind, sequence in KINDS.items():
        with undone(engine) as connection:
            connection.execute(text("DELETE FROM deliveries"))
            last = text(f"{edit} WHERE id = (SELECT max(id) FROM incidents WHERE kind = :kind)")  # noqa: S608
            assert connection.execute(last, {"kind": kind}).rowcount == 1
            (found,) = verify(connection).broken
        what = f"dataset data, the incident {kind} of run run after entry {sequence}: is missing"
        assert found.text == f"{what}, though an act says that it was"


TINY: Json = {"epsilon": 0.01, "delta": 1e-5}
CHANGES = [
    "sequence = sequence + 1",
    "run_id = CASE WHEN run_id IS NULL THEN (SELECT min(id) FROM runs) END",
    "kind = 'threshold'",
    "detail = replace(detail, '0.01', '5.01')",
    "detail = '[]'",
    "detail = 'no JSON'",
    "dataset_id = (SELECT max(id) FROM datasets)",
    "occurred_at = '2026-01-02 03:04:05.000006'",
]


@pytest.fixture
def overdrawn(api: httpx.Client, engine: Engine) -> list[int]:
    """Overdrafts of an ancestor, of a dataset, of a run, and of a limit that was lowered."""
    api.post("/v1/datasets", json=dataset("above", budget=TINY)).raise_for_status()
    below = {"parents": ["above"], "rows_per_parent_record": "at_most_one", "budget": TINY}
    setup(api, dataset_given=below, delta=1e-5)
    api.post("/v1/runs", json=run("own", budget=TINY)).raise_for_status()
    for name in ("run", "own", "run"):  # the last tells nothing new
        first = api.get(f"/v1/runs/{name}").json()["steps"]
        append(api, event(first, 5), run=name).raise_for_status()
    setup(api, dataset_given={"name": "lowered", "budget": BUDGET}, name="of", dataset="lowered")
    append(api, event(0, 5), run="of").raise_for_status()
    revision = api.get("/v1/datasets/lowered").headers["ETag"]
    changed = {"budget": TINY, "reason": "as agreed"}
    answer = api.patch("/v1/datasets/lowered", json=changed, headers={"If-Match": revision})
    answer.raise_for_status()
    with snapshot(engine) as connection:
        query = text("SELECT id FROM incidents WHERE kind = 'overdraft' ORDER BY id")
        return list(connection.scalars(query))


def test_each_overdraft_has_an_act_that_equals_it(
    api: httpx.Client, engine: Engine, overdrawn: list[int]
) -> None:
    said = []
    for name in ("above", "data", "lowered"):
        answer = api.get(f"/v1/datasets/{name}/incidents").json()["incidents"]
        there = [one for one in answer if one["kind"] == "overdraft"]
        acts = api.get(f"/v1/datasets/{name}/acts", params={"kind": "overdraft"}).json()["acts"]
        assert [act["content"]["detail"] for act in acts] == [one["detail"] for one in there]
        assert [act["content"]["sequence"] for act in acts] == [one["sequence"] for one in there]
        said += [(act["content"]["run"], act["content"]["detail"]["scope"]) for act in acts]
    assert sorted(said, key=str) == [
        ("own", "run:own"), ("run", "dataset:above"), ("run", "dataset:data"),
        (None, "dataset:lowered"),
    ]  # fmt: skip
    assert len(overdrawn) == 4
    with snapshot(engine) as connection:
        assert verify(connection).broken == []


@pytest.mark.parametrize("edit", CHANGES)
def test_a_changed_overdraft_is_found(engine: Engine, overdrawn: list[int], edit: str) -> None:
    changed = 0
    for number in overdrawn:
        with undone(engine) as connection:
            query = text(f"UPDATE incidents SET {edit} WHERE id = :id")  # noqa: S608
            before, after = (_row(connection, number, query) for query in (None, query))
            if before == after:  # it belongs to that dataset
                continue
            changed += 1
            found = [one.text for one in verify(connection).broken]
            assert any("(overdraft" in one and "differs from" in one for one in found), found
    assert changed >= 3


@pytest.mark.parametrize("act", ["kept", "gone, too"])
def test_a_deleted_overdraft_is_found(engine: Engine, overdrawn: list[int], act: str) -> None:
    for number in overdrawn:
        with undone(engine) as connection:
            connection.execute(text("DELETE FROM deliveries"))
            connection.execute(text("DELETE FROM incidents WHERE id = :id"), {"id": number})
            if act != "kept":
                connection.execute(text("DELETE FROM acts WHERE kind = 'overdraft'"))
            assert verify(connection).broken != []


def test_an_added_overdraft_is_found(engine: Engine, overdrawn: list[int]) -> None:
    columns = "dataset_id, run_id, kind, sequence, detail, occurred_at"
    for number in overdrawn:
        with undone(engine) as connection:
            added = f"INSERT INTO incidents ({columns}) SELECT {columns} FROM incidents"  # noqa: S608
            connection.execute(text(f"{added} WHERE id = :id"), {"id": number})
            (found,) = verify(connection).broken
            assert found.text.endswith("no act says what its row does"), found.text


def _row(connection: Connection, number: int, edit: TextClause | None) -> Any:
    if edit is not None:
        connection.execute(edit, {"id": number})
    return connection.execute(text("SELECT * FROM incidents WHERE id = :id"), {"id": number}).one()
