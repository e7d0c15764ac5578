"""`dpledger verify` and incidents: those that an act of the log speaks of are all there."""

import httpx
import pytest
from sqlalchemy import Engine, text

from benchmarks.rewriting import undone
from service.adoption import adopt
from service.database import snapshot
from service.verification.ledger import verify
from tests.service.samples import (
    BATCH_SIZES,
    BUDGET,
    FULL,
    RANK,
    SAMPLING,
    Json,
    append,
    event,
    setup,
)

SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
KINDS = {  # and after which entry is the last of them
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
    for first in (5, 7):  # two of them at two places in the log
        api.post("/v1/runs/run:finish", json={"state": "finished"}).raise_for_status()
        append(api, event(first, 2)).raise_for_status()
    corrected = event(1, 2, sampling=FULL) | {"reason": "as the trainer's log says"}
    api.post("/v1/runs/run/corrections", json=corrected).raise_for_status()


def test_a_ledger_that_nobody_edited_lacks_no_incident(told: None, engine: Engine) -> None:
    with snapshot(engine) as connection:
        report = verify(connection)
    assert report.broken == []
    assert report.checked["incidents"] == 7


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


def test_what_an_older_ledger_began_with_is_not_held_against_it(told: None, engine: Engine) -> None:
    with undone(engine) as connection:
        for edit in ("acts", "log_tiles", "incidents"):
            connection.execute(text(f"DELETE FROM {edit}"))  # noqa: S608
        for table in ("datasets", "installation"):
            connection.execute(text(f"UPDATE {table} SET log_size = 0"))  # noqa: S608
        connection.execute(text("UPDATE installation SET log_frontier = ''"))
        adopt(connection)
        assert verify(connection).broken == []
