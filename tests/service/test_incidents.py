"""Incidents: kept for good, listed in order, spared where there are many of one kind."""

import math

import httpx
import pytest
from sqlalchemy import Connection, Engine, delete, update
from sqlalchemy.exc import DBAPIError

from service.errors import NotFoundError
from service.ledger.incidents import (
    SPARING_MAX,
    DetailValue,
    Incident,
    Kind,
    Sparing,
    list_incidents,
    record_incidents,
)
from service.ledger.lookups import find_dataset, find_run
from service.storage.engine import snapshot, transaction
from service.storage.tables import incidents
from tests.service.samples import dataset, setup

URL = "/v1/datasets/data/incidents"


def happen_in(
    connection: Connection,
    *sequences: int,
    run: str | None = "run",
    kind: Kind = Kind.REFUSAL,
    **detail: DetailValue,
) -> None:
    """Record incidents of the dataset of the tests, one a sequence."""
    home = find_dataset(connection, "data").id
    run_id = None if run is None else find_run(connection, run).id
    record_incidents(
        connection,
        [
            Incident(dataset_id=home, run_id=run_id, kind=kind, sequence=number, detail=detail)
            for number in sequences
        ],
    )


def happen(
    engine: Engine,
    *sequences: int,
    run: str | None = "run",
    kind: Kind = Kind.REFUSAL,
    **detail: DetailValue,
) -> None:
    with transaction(engine) as connection:
        happen_in(connection, *sequences, run=run, kind=kind, **detail)


def test_an_incident_is_listed_as_it_was_recorded(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    happen(engine, 7, scope="dataset:data", limit=3.0, requested=math.inf, reason=None)
    (told,) = api.get(URL).json()["incidents"]
    assert told.pop("id").startswith("incident-")
    assert told.pop("occurred_at").endswith("+00:00")
    assert told == {
        "kind": "refusal",
        "dataset": "data",
        "run": "run",
        "sequence": 7,
        "detail": {
            "scope": "dataset:data", "limit": 3.0, "requested": None, "reason": None,
        },
    }  # fmt: skip


def test_nothing_recorded_is_nothing_listed(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    happen(engine)
    assert api.get(URL).json() == {"incidents": [], "next_page_token": None}
    assert api.get("/v1/datasets/nobody/incidents").status_code == 404


def test_pages_hold_every_incident_once_in_order(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    api.post("/v1/datasets", json=dataset("other"))
    happen(engine, *range(5), run=None)
    found, token, pages = [], None, 0
    while pages == 0 or token is not None:
        query = {"page_size": 2} | ({} if token is None else {"page_token": token})
        answer = api.get(URL, params=query).json()
        found += [(one["sequence"], one["run"]) for one in answer["incidents"]]
        token, pages = answer["next_page_token"], pages + 1
    assert found == [(number, None) for number in range(5)]
    assert pages == 3
    assert len({one["id"] for one in api.get(URL).json()["incidents"]}) == 5
    assert api.get("/v1/datasets/other/incidents").json()["incidents"] == []


def test_a_list_says_where_to_continue_only_where_more_is_left(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    happen(engine, 1, 2)
    with snapshot(engine) as connection:
        home = find_dataset(connection, "data").id
        both, further = list_incidents(connection, home, after=0, size=2)
        one, rest = list_incidents(connection, home, after=0, size=1)
    assert (len(both), further) == (2, None)
    assert len(one) == 1
    assert rest is not None


def test_an_incident_is_part_of_the_transaction_of_its_cause(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)

    def refused_after_all() -> None:
        with transaction(engine) as connection:
            happen_in(connection, 1)
            find_run(connection, "nobody")

    with pytest.raises(NotFoundError):
        refused_after_all()
    assert api.get(URL).json()["incidents"] == []


def test_the_database_lets_no_incident_be_changed(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    happen(engine, 1)
    for statement in (update(incidents).values(sequence=2), delete(incidents)):
        with pytest.raises(DBAPIError, match="insert-only"), transaction(engine) as connection:
            connection.execute(statement)
    assert [one["sequence"] for one in api.get(URL).json()["incidents"]] == [1]


def test_of_equal_things_one_a_minute_passes() -> None:
    present = 100.0
    sparing = Sparing(60, clock=lambda: present)
    assert [sparing.lets("a"), sparing.lets("a"), sparing.lets("b")] == [True, False, True]
    present = 159.9
    assert not sparing.lets("a")
    present = 160.0
    assert [sparing.lets("a"), sparing.lets("a"), sparing.lets("b")] == [True, False, True]


def test_what_is_remembered_to_spare_is_bounded_and_keeps_nothing_back() -> None:
    present = 0.0
    sparing = Sparing(60, clock=lambda: present)
    assert all(sparing.lets(number) for number in range(SPARING_MAX))
    assert not sparing.lets(0)
    assert sparing.lets("one too many")
    assert sparing.lets(0)  # forgotten, so it passes rather than being lost
    present = 30.0
    assert all(sparing.lets(number) for number in range(1, SPARING_MAX - 1))
    present = 61.0  # the two of the beginning are old, the others are not
    assert sparing.lets("new")
    assert not sparing.lets(1)
