"""Books: whatever happens, in whatever process, they say what the rows add up to."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from sqlalchemy import Engine, select

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import EventCounts
from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.filters import Total
from service.ledger.append.append import Append
from service.ledger.append.state import UNITS_MAX
from service.ledger.append.state_rows import run_tally, tally_of
from service.ledger.append.unit_of_work import BranchPlace, DatasetCache, UnitOfWork
from service.ledger.branches import create_branch
from service.ledger.corrections import Correct
from service.ledger.datasets import create_dataset
from service.ledger.runs import create_run
from service.schemas.requests import EventMessage, NewBranch, NewCorrection, NewDataset, NewRun
from service.storage import migrations
from service.storage.engine import connect, transaction
from service.storage.tables import datasets, runs
from tests.conftest import clear
from tests.service.logs import require_logged
from tests.service.samples import BUDGET, FULL, POISSON, WRITER, Json, dataset, event, run
from tests.service.world_checks import require_recorded, require_reserved, require_totals
from tests.service.worlds import (
    CYCLIC,
    LOUD,
    OPERATIONS,
    RUNS,
    Operation,
    World,
    create,
    do,
    dump,
)


def _world(path: Path, *bytes_max: int) -> World:
    """A ledger with a process for each size of a cache."""
    engine = connect(f"sqlite:///{path}")
    migrations.upgrade(engine)
    return World(engine, [DatasetCache(bytes_max=most) for most in bytes_max])


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, World]]:
    """The same ledger twice: three processes share one, and two of them cache few states."""
    folder = tmp_path_factory.mktemp("books")
    both = _world(folder / "three.db", 0, 20_000, 2**30), _world(folder / "one.db", 2**30)
    yield both
    for world in both:
        world.engine.dispose()


def _begin(world: World) -> None:
    """The ledger as it is before anything happened; the processes are those of before."""
    clear(str(world.engine.url))
    world.names, world.leases = {name: ["main"] for name in RUNS}, []
    create(world.engine)


@settings(max_examples=12, deadline=None)
@given(operations=OPERATIONS)
def test_whatever_happens_the_books_are_the_fold_of_the_facts(
    worlds: tuple[World, World], operations: list[Operation]
) -> None:
    for world in worlds:
        _begin(world)
    for operation in operations:
        told = [do(world, operation) for world in worlds]
        assert told[0] == told[1]  # one process and three answer the same
    for world in worlds:
        require_totals(world)
        with world.engine.connect() as connection:
            require_recorded(connection)
            require_reserved(connection)
            require_logged(connection, changed=("expires_at",))
    assert dump(worlds[0].engine) == dump(worlds[1].engine)


@settings(max_examples=8, deadline=None)
@given(operations=OPERATIONS)
def test_no_charge_and_no_reservation_passes_a_limit_in_any_process(
    worlds: tuple[World, World], operations: list[Operation]
) -> None:
    world, _ = worlds
    _begin(world)
    for kind, name, a, b, steps in operations:
        told = {"append": "charge", "group": "reserve", "again": "charge"}.get(kind, kind)
        do(world, (told, name, a, b, steps * 5))
    with world.engine.connect() as connection:
        homes = {one.id: one for one in connection.execute(select(datasets)).all()}
        for home in homes.values():
            accumulator = tally_of(connection, home)
            assert accumulator.filter.admits(accumulator.sums().held)
        for one in connection.execute(select(runs)).all():
            own = run_tally(connection, homes[one.dataset_id], one)
            assert own is None or one.on_plan or own.filter.admits(own.sums().held)


# ---- two processes, step by step


def _places(*names: str) -> list[BranchPlace]:
    return [(name, "main") for name in names]


def _charge(name: str, first: int, steps: int) -> Append:
    events = [EventMessage.model_validate(event(first, steps, mechanism=LOUD, sampling=FULL))]
    return Append(run_name=name, branch_name="main", mode="charge", events=events)


@pytest.fixture
def world(engine: Engine) -> World:
    """Two processes on a database of either kind."""
    found = World(engine, [DatasetCache(), DatasetCache()])
    create(engine)
    return found


def test_what_another_process_spent_of_a_parent_is_held_against_a_child(world: World) -> None:
    def fits(name: str) -> int:
        (told,) = world.together([_charge(name, 0, 10**6)])
        assert told[0] == "budget-exhausted"
        return int(told[1].split("The first ")[1].split(" ")[0].replace(",", ""))

    with transaction(world.engine) as connection:
        asked = NewRun.model_validate(run("free", dataset="child"))
        create_run(connection, asked)
    before = fits("free")  # the first process has seen the child, with its parent
    assert fits("first") == before
    assert world.together([_charge("free", 0, 1)])[0]["verdict"] == "within"  # the first
    assert world.together([_charge("first", 0, before - 1)])[0]["verdict"] == "within"
    (refused,) = world.together([_charge("free", 1, 1)])  # the first, whose parent is stale
    assert refused[0] == "budget-exhausted"


def test_a_pass_that_is_taken_after_a_correction_costs_more_in_what_the_dataset_was_made_from(
    world: World,
) -> None:
    steps = EventMessage.model_validate(event(0, 4, mechanism=LOUD, sampling=CYCLIC))
    other: Json = {"mechanism": LOUD | {"noise_multiplier": 9.0}, "sampling": CYCLIC}
    asked: Json = {"first_step": 1, "steps": 2, "reason": "the noise was less", **other}
    corrected = NewCorrection.model_validate(asked)
    recorded = Append(run_name="low", branch_name="main", mode="record", events=[steps])
    world.together([recorded, Correct(run_name="low", new=corrected, by="tests")])

    def spent() -> list[Total]:
        with transaction(world.engine) as connection:
            world.shelves[0].open(connection, _places("low", "first"))
        return [
            world.shelves[0].dataset_of_run(one).accumulator.sums().spent
            for one in ("low", "first")
        ]

    before = spent()
    further: Json = {"name": "next", "writer": WRITER, "from_step": 4, "order": "continued"}
    new = NewBranch.model_validate(further)
    with transaction(world.engine) as connection:
        assert create_branch(connection, "low", new)[0].takes_pass
    for less, more in zip(before, spent(), strict=True):
        assert all(a <= b for a, b in zip(less, more, strict=True))
        assert sum(less) < sum(more)
    require_totals(world)


def test_a_book_is_read_again_only_where_another_process_wrote(world: World) -> None:
    cache = world.shelves[0]
    world.turn = 0
    world.together([_charge("first", 0, 1)])
    mine = cache.dataset_of_run("first")
    with transaction(world.engine) as connection:
        assert cache.open(connection, _places("first")).run("first")[0] is mine
    world.turn = 1
    world.together([_charge("second", 0, 1)])
    with transaction(world.engine) as connection:
        theirs, _ = cache.open(connection, _places("first")).run("first")
    assert theirs is not mine
    assert theirs.head == mine.head + 1


def test_a_database_that_was_put_back_is_noticed(world: World) -> None:
    world.together([_charge("first", 0, 1)])
    clear(world.engine.url.render_as_string(hide_password=False))
    world.turn = 0
    assert world.together([_charge("first", 1, 1)])[0][0] == "not-found"
    create(world.engine)
    world.turn = 0
    assert world.together([_charge("first", 0, 2)])[0]["accepted"] == 2


def test_a_parent_that_came_with_another_database_is_counted_and_written(engine: Engine) -> None:
    def begin(**given: Any) -> None:
        clear(engine.url.render_as_string(hide_password=False))
        with transaction(engine) as connection:
            for name, more in (("data", {}), ("child", given)):
                new = NewDataset.model_validate(dataset(name, budget=BUDGET) | more)
                create_dataset(connection, new, by="tests")
            create_run(connection, NewRun.model_validate(run("heir", dataset="child")))

    world = World(engine, [DatasetCache()])
    begin()
    world.together([_charge("heir", 0, 1)])
    begin(parents=["data"], rows_per_parent_record="at_most_one")  # on SQLite with the same ids
    world.together([_charge("heir", 0, 1)])
    with engine.connect() as connection:
        for home in connection.execute(select(datasets)).all():
            assert any(tally_of(connection, home).sums().spent), home.name


def test_what_was_not_committed_is_forgotten(world: World) -> None:
    world.together([_charge("first", 0, 1)])

    class Defect:
        place: BranchPlace = ("first", "main")

        def apply(self, work: UnitOfWork, moment: datetime) -> Any:
            _charge("first", 1, 3).apply(work, moment)
            raise ZeroDivisionError

    world.turn = 0
    with pytest.raises(ZeroDivisionError):
        world.together([Defect()])
    world.turn = 0
    assert world.together([_charge("first", 1, 1)])[0]["next_step"] == 2
    with world.engine.connect() as connection:
        require_recorded(connection)


def test_books_that_are_not_used_are_let_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ledger.append.unit_of_work.CACHED_EVENTS_MAX", 0)
    world.turn = 0
    world.together([_charge("first", 0, 1), _charge("second", 0, 1)])
    cache = world.shelves[0]
    assert len(cache.dataset_of_run("first").runs) == 2
    assert not cache.dataset_of_run("first").event_ids


def test_a_full_cache_keeps_what_was_used_last(engine: Engine) -> None:
    create(engine)
    cache = DatasetCache(bytes_max=0)
    world = World(engine, [cache])
    for step, name in enumerate(("first", "second", "first", "second")):
        world.together([_charge(name, step // 2, 1)])
        assert list(cache.dataset_of_run(name).runs) == [name]  # of the one dataset in use
    world.together([_charge("low", 0, 1)])
    assert cache.dataset_of_run("low").ancestors[0][0] is cache.dataset_of_run(
        "first"
    )  # kept for its child
    with transaction(engine) as connection:
        create_dataset(connection, NewDataset.model_validate(dataset("other")), by="tests")
        create_run(connection, NewRun.model_validate(run("apart", dataset="other")))
    world.together([_charge("apart", 0, 1)])
    for name in ("low", "first"):
        with pytest.raises(KeyError):
            cache.dataset_of_run(name)
    cache._bytes_max = 2**30
    world.together([_charge("low", 1, 1)])
    cache._bytes_max = cache._bytes - 1
    world.together([_charge("apart", 1, 1)])  # one of the others has to go: not the parent
    assert cache.dataset_of_run("first").head == 4
    with pytest.raises(KeyError):
        cache.dataset_of_run("low")
    assert cache._bytes == sum(cache._sizes.values()) <= cache._bytes_max


def test_a_run_of_too_many_events_is_read_by_its_filter_and_never_below_the_truth(
    world: World,
) -> None:
    events = [
        EventMessage.model_validate(
            event(at, 1, mechanism=LOUD | {"noise_multiplier": 30 + at / 10}, sampling=POISSON)
        )
        for at in range(UNITS_MAX + 1)
    ]
    told = {}
    for last in (UNITS_MAX, UNITS_MAX + 1):
        asked = Append(run_name="first", branch_name="main", mode="record", events=events[:last])
        (told[last],) = world.together([asked])
    few, many = told[UNITS_MAX]["guarantee"], told[UNITS_MAX + 1]["guarantee"]
    assert (few["accountant"], many["accountant"]) == ("rdp", "filter")
    assert many["steps"] == UNITS_MAX + 1
    # As many steps at the largest noise lose no more than these.
    quietest = Event(
        mechanism=Gaussian(noise_multiplier=30 + UNITS_MAX / 10),
        sampling=Poisson(sampling_probability=POISSON["sampling_probability"]),
    )
    truth = guarantee(
        EventCounts(steps={quietest: UNITS_MAX}),
        relation=NeighboringRelation.REPLACE_SPECIAL,
        delta=1e-5,
    )
    assert truth.epsilon_lower is not None
    assert many["epsilon"] >= few["epsilon"] >= truth.epsilon_lower > 0
