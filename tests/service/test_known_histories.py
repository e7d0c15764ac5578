"""Histories that are asked for again: the same numbers, and only what is new is read."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.guarantees import history, known_histories, replay
from service.guarantees.history import HistoryPoint, HistoryReading
from service.guarantees.known_histories import KnownHistories
from service.ledger.lookups import dataset_of, find_run
from service.storage.engine import snapshot
from tests.service.samples import append, event, setup

LESS = {"kind": "gaussian", "noise_multiplier": 0.9}
CYCLIC = {"kind": "cyclic", "steps_per_pass": 8}
POINTS = 10


def asked(known: KnownHistories, engine: Engine, points: int = POINTS) -> list[HistoryPoint]:
    with snapshot(engine) as connection:
        return known.history(connection, "run", delta=1e-5, points=points).points


def anew(engine: Engine, points: int = 1000) -> dict[int, HistoryPoint]:
    with snapshot(engine) as connection:
        run = find_run(connection, "run")
        dataset = dataset_of(connection, run)
        reading = HistoryReading.of(run, dataset, delta=1e-5)
        found = history.read_whole(connection, run, dataset, reading, points)
    return {one.steps: one for one in found.points}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences of the entries that further looks read."""
    found: list[int] = []
    really: Any = replay.stream_rows

    def streamed(*given: Any, **values: int) -> Iterator[Any]:
        for row in really(*given, **values):
            found.append(row.sequence)
            yield row

    monkeypatch.setattr(known_histories, "stream_rows", streamed)
    return found


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that all is read."""
    found: list[int] = []
    really = history.read_whole

    def read_whole(*given: Any) -> Any:
        found.append(1)
        return really(*given)

    monkeypatch.setattr(known_histories, "read_whole", read_whole)
    return found


def test_a_further_look_reads_what_is_new_and_says_the_same(
    api: httpx.Client, engine: Engine, read: list[int], whole: list[int]
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 20), event(20, 20, mechanism=LESS))
    known = KnownHistories()
    first = asked(known, engine)
    assert first == list(anew(engine, POINTS).values())
    assert asked(known, engine) == first
    assert read == []
    done = 40
    for place, steps in enumerate((1, 2, 30, 7, 160, 1, 1), start=3):
        mechanism = LESS if place % 2 else event(0, 1)["mechanism"]
        append(api, event(done, steps, mechanism=mechanism))
        done += steps
        found, really = asked(known, engine), anew(engine)
        assert found == [really[one.steps] for one in found]
        assert found[-1].steps == done
        assert len(found) <= POINTS
        assert [one.steps for one in found] == sorted({one.steps for one in found})
    assert read == list(range(3, 10))  # each once
    assert whole == [1]


def test_points_stay_spread_over_the_run(api: httpx.Client, engine: Engine) -> None:
    setup(api, delta=1e-5)
    known = KnownHistories()
    done = 0
    for _ in range(30):
        append(api, event(done, 13))
        done += 13
        found = [one.steps for one in asked(known, engine)]
    gaps = [after - before for before, after in zip([0, *found], found, strict=False)]
    assert len(found) >= POINTS // 2
    assert max(gaps) <= 2 * done / len(found)


def test_passes_go_on_where_an_earlier_look_ended(api: httpx.Client, engine: Engine) -> None:
    given = {"neighboring_relation": "replace_special"}
    setup(api, dataset_given=given, delta=1e-5)
    known = KnownHistories()
    done = 0
    for steps in (5, 2, 9, 3, 24, 1):
        append(api, event(done, steps, sampling=CYCLIC))
        done += steps
        found, really = asked(known, engine), anew(engine)
        assert found == [really[one.steps] for one in found]


def test_few_points_are_read_anew(api: httpx.Client, engine: Engine, whole: list[int]) -> None:
    setup(api, delta=1e-5)
    known = KnownHistories()
    for first in (0, 10):
        append(api, event(first, 10))
        assert [one.steps for one in asked(known, engine, points=1)] == [first + 10]
    assert whole == [1, 1]


def test_events_that_become_many_are_gathered_as_in_a_first_look(
    api: httpx.Client, engine: Engine, whole: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    known = KnownHistories()
    asked(known, engine)
    monkeypatch.setattr(known_histories, "DISTINCT_MAX", 1)
    append(api, event(10, 10, mechanism=LESS))
    assert asked(known, engine) == list(anew(engine, POINTS).values())
    assert whole == [1, 1]


def test_where_points_take_too_long_all_is_read_again(
    api: httpx.Client, engine: Engine, whole: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    known = KnownHistories()
    asked(known, engine)
    monkeypatch.setattr(known_histories, "HISTORY_POINTS", 0)
    append(api, event(10, 10, mechanism=LESS))
    assert asked(known, engine) == list(anew(engine, POINTS).values())
    assert whole == [1, 1]


def test_what_fails_halfway_is_read_again(
    api: httpx.Client, engine: Engine, whole: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    known = KnownHistories()
    asked(known, engine)
    append(api, event(10, 10))

    def fails(*_given: object) -> list[HistoryPoint]:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(known_histories, "as_many", fails)
        with pytest.raises(RuntimeError):
            asked(known, engine)
    assert asked(known, engine) == list(anew(engine, POINTS).values())
    assert whole == [1, 1]


def test_a_ledger_with_another_past_is_read_again(
    api: httpx.Client, engine: Engine, whole: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    known = KnownHistories()
    first = asked(known, engine)
    with monkeypatch.context() as patch:  # as if other steps stood where these did
        patch.setattr(known_histories, "recorded_steps", lambda *_: 11)
        assert asked(known, engine) == first
    assert whole == [1, 1]


def test_a_run_without_steps_has_no_points(api: httpx.Client, engine: Engine) -> None:
    setup(api, delta=1e-5)
    known = KnownHistories()
    assert asked(known, engine) == []
    append(api, event(0, 3))
    assert [one.steps for one in asked(known, engine)] == [1, 2, 3]


def test_the_api_goes_on_with_what_it_was_asked_before(
    api: httpx.Client, engine: Engine, read: list[int]
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 100))
    path = "/v1/runs/run/history"
    first = api.get(path, params={"points": 20}).json()["points"]
    append(api, event(100, 5))
    second = api.get(path, params={"points": 20}).json()["points"]
    assert read == [2]
    assert second[-1]["epsilon"] == api.get("/v1/runs/run/guarantee").json()["epsilon"]
    assert second[-1]["epsilon"] > first[-1]["epsilon"]
