"""How spending grew: what is told of each time is what was told at that time."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import Engine, update

from service.clock import stamp, utc
from service.guarantees import attribution, spending_history
from service.guarantees.attribution import AttributionInputs
from service.guarantees.spending_history import Moment, Spending
from service.ledger import lookups
from service.storage.engine import snapshot, transaction
from service.storage.tables import reservations
from service.storage.versioned_cache import VersionedCache
from tests.service.samples import BUDGET, POISSON, Json, append, dataset, event, run, setup

QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}
NONE: Json = {"kind": "none"}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}  # ten steps a pass
LARGE: Json = {"epsilon": 50.0, "delta": 1e-5}
BY_PASS: Json = {"budget": LARGE, "neighboring_relation": "replace_special"}


def grown(engine: Engine, name: str = "data", **given: int) -> Spending:
    with snapshot(engine) as connection:
        return spending_history.spending(connection, grounds(engine, name), delta=1e-5, **given)


def grounds(engine: Engine, name: str = "data") -> AttributionInputs:
    with snapshot(engine) as connection:
        return attribution.grounds_of(connection, lookups.find_dataset(connection, name))


def spent(api: httpx.Client, name: str = "data") -> float:
    found: Json = api.get(f"/v1/datasets/{name}").json()
    value: float = found["budget"]["share"]
    return value


def shares(found: Spending) -> list[float | None]:
    return [moment.spent for moment in found.moments]


def add(api: httpx.Client, *names: str) -> None:
    for name in names:
        assert api.post("/v1/runs", json=run(name)).status_code == 201


@pytest.mark.parametrize("budget", [BUDGET, None])
def test_nothing_recorded_is_nothing_spent(
    api: httpx.Client, engine: Engine, budget: Json | None
) -> None:
    setup(api, dataset_given={"budget": budget})
    found = grown(engine)
    assert shares(found) == [0.0]
    assert (found.earlier, found.expired, found.in_shares) == (0, 0.0, budget is not None)


def test_each_time_tells_what_the_dataset_told_then(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    add(api, "other")
    told, next_step = [], {"run": 0, "other": 0}
    for number in range(12):
        name = "run" if number % 3 else "other"
        noise = {"kind": "gaussian", "noise_multiplier": 0.8 + 0.1 * (number % 4)}
        append(api, event(next_step[name], 20 + number, mechanism=noise), run=name)
        next_step[name] += 20 + number
        told.append(spent(api))
    found = grown(engine)
    # Created, just before the first entry, then after each entry.
    assert shares(found) == [0.0, 0.0, *told]
    moments = [moment.at for moment in found.moments]
    assert moments == sorted(moments)
    assert {part.run for part in found.parts} == {"run", "other", None}


def test_parts_add_up_and_end_as_the_explanation_has_it(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    names = [f"run-{number}" for number in range(spending_history.SPENDING_RUNS_MAX + 3)]
    add(api, *names)
    for number, name in enumerate(names):
        append(api, event(0, 50 * (number + 1)), run=name)
    found = grown(engine)
    for moment in found.moments:
        assert sum(moment.parts) == pytest.approx(moment.spent, rel=1e-12)
    assert [part.run for part in found.parts] == [*reversed(names[3:]), None]
    assert found.parts[-1].runs == 3
    explained = api.get("/v1/datasets/data/explain").json()
    last = found.moments[-1]
    for part, share in zip(found.parts, last.parts, strict=True):
        if part.run:
            (one,) = [told for told in explained["runs"] if told["run"] == part.run]
            assert share / (last.spent or 1) == pytest.approx(one["share"], rel=1e-12)


def test_many_entries_are_told_at_few_times_and_end_alike(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": LARGE})
    noises = [{"kind": "gaussian", "noise_multiplier": noise} for noise in (1.0, 1.1)]
    append(api, *(event(step, 1, mechanism=noises[step % 2]) for step in range(40)))
    few = grown(engine, points=4)
    assert len(few.moments) <= 8
    assert few.moments[-1].spent == spent(api)
    assert set(shares(few)) <= set(shares(grown(engine, points=40)))


def test_entries_that_are_not_read_are_one_rise(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": LARGE})
    noises = [{"kind": "gaussian", "noise_multiplier": noise} for noise in (1.0, 1.1)]
    append(api, *(event(step, 1, mechanism=noises[step % 2]) for step in range(40)))
    whole = grown(engine, points=40)
    monkeypatch.setattr(spending_history, "SPENDING_ENTRIES_MAX", 10)
    part = grown(engine, points=40)
    assert (whole.earlier, part.earlier) == (0, 30)
    assert part.moments[0].spent == 0.0
    assert shares(part)[1:] == shares(whole)[-11:]


@pytest.mark.parametrize("steps", [1, 9, 10, 11, 25])
def test_passes_are_never_told_before_they_were_paid_for_nor_too_late(
    api: httpx.Client, engine: Engine, steps: int
) -> None:
    setup(api, dataset_given=BY_PASS)
    told = []
    for number in range(6):
        append(api, event(number * steps, steps, mechanism=QUIET, sampling=CYCLIC))
        told.append(spent(api))
        if number == 2:  # another entry between, so that they do not merge
            add(api, "other")
            append(api, event(0, 1), run="other")
            told.append(spent(api))
    found = shares(grown(engine))
    assert found[-1] == told[-1]
    for value, then in zip(found[-len(told) :], told, strict=False):
        assert value is not None
        assert value >= then


def test_a_pass_that_two_noises_share_is_told_in_full(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given=BY_PASS)
    told = []
    for number in range(8):
        noise = {"kind": "gaussian", "noise_multiplier": 8.0 if number % 2 else 6.0}
        append(api, event(number * 4, 4, mechanism=noise, sampling=CYCLIC))
        told.append(spent(api))
    found = shares(grown(engine))
    assert found[-1] == told[-1]
    for value, then in zip(found[-8:], told, strict=True):
        assert value is not None
        assert value >= then


def test_what_a_child_spends_is_its_parent_s(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    append(api, event(0, 100))
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child).status_code == 201
    assert api.post("/v1/runs", json=run("heir", dataset="child")).status_code == 201
    append(api, event(0, 300), run="heir")
    found = grown(engine)
    assert {(part.run, part.dataset) for part in found.parts} == {
        ("run", "data"), ("heir", "child"), (None, None),
    }  # fmt: skip
    assert found.moments[-1].spent == spent(api)
    assert found.moments[-2].spent is not None
    assert 0 < found.moments[-2].spent < spent(api)


def test_what_has_no_bound_is_infinite_from_then_on(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    append(api, event(0, 10))
    before = spent(api)
    append(api, event(10, 1, mechanism=NONE, sampling={"kind": "full"}))
    found = grown(engine)
    assert shares(found)[-2:] == [before, None]
    assert set(found.moments[-1].parts) == {0.0}


def test_without_a_budget_epsilon_is_the_explanation_s(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    append(api, event(0, 500))
    explained = api.get("/v1/datasets/data/explain", params={"delta": 1e-5}).json()
    found = grown(engine)
    assert found.moments[-1].spent == explained["epsilon"]
    assert not found.in_shares


def test_what_expired_is_told_beside(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    append(api, event(0, 100))
    before = spent(api)
    lease = {"name": "lease", "event": event(100, 100), "ttl_seconds": 60}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    with transaction(engine) as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(reservations).values(expires_at=past))
    found = grown(engine)
    assert found.moments[-1].spent == before
    assert found.expired is not None
    assert before + found.expired == pytest.approx(spent(api), rel=1e-12)


def test_a_correction_never_lowers_what_is_told(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": LARGE})
    append(api, event(0, 100, mechanism=QUIET))
    before = spent(api)
    correction = event(0, 50) | {"reason": "mistaken"}
    assert api.post("/v1/runs/run/corrections", json=correction).status_code == 201
    found = grown(engine)
    assert found.moments[-1].spent == spent(api) > before


@pytest.mark.parametrize("sampling", [POISSON, CYCLIC], ids=["by step", "by pass"])
def test_a_correction_counts_from_the_time_at_which_it_was_recorded(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch, sampling: Json
) -> None:
    setup(api, dataset_given=BY_PASS)
    told = []
    for number in range(4):
        append(api, event(40 * number, 40, mechanism=QUIET, sampling=sampling))
        told.append(spent(api))
        body = event(40 * number, 20, sampling=sampling) | {"reason": "mistaken"}
        assert api.post("/v1/runs/run/corrections", json=body).status_code == 201
        told.append(spent(api))
    found = shares(grown(engine))
    # Of each correction there is also the time just before it.
    expected = [0.0, 0.0, *(value for pair in batches(told) for value in (pair[0], *pair))]
    assert found[-1] == expected[-1]
    if sampling is POISSON:
        assert found == expected
    for value, then in zip(found, expected, strict=True):  # of passes not all is taken back
        assert value is not None
        assert value >= then
    assert shares(grown(engine, points=1)) == found
    monkeypatch.setattr(spending_history, "_STAGES", 1)  # all count from the first on
    early = shares(grown(engine))
    assert early[:4] == found[:4]
    assert early[-1] == told[-1]
    assert len(early) == 2 + 4 + 2


def batches(told: list[float]) -> list[tuple[float, float]]:
    return list(zip(told[::2], told[1::2], strict=True))


def test_a_correction_without_a_bound_leaves_what_was_told_before(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": LARGE})
    append(api, event(0, 100))
    before = spent(api)
    shuffled = event(0, 50, sampling=CYCLIC) | {"reason": "shuffled"}
    assert api.post("/v1/runs/run/corrections", json=shuffled).status_code == 201
    found = grown(engine)
    assert shares(found) == [0.0, 0.0, before, before, None]
    (corrected,) = api.get("/v1/runs/run/corrections").json()["corrections"]
    assert stamp(found.moments[-1].at) == corrected["recorded_at"]


def test_telling_it_changes_nothing(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given=BY_PASS)
    append(api, event(0, 100), event(100, 50, mechanism=QUIET, sampling=CYCLIC))
    found = grounds(engine)
    with snapshot(engine) as connection:
        first, second = (spending_history.spending(connection, found, delta=1e-5) for _ in range(2))
    assert first == second
    assert isinstance(first.moments[0], Moment)
    assert utc(first.moments[0].at).tzinfo is UTC


def test_what_was_told_is_told_again_until_something_is_written(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": LARGE})
    known: VersionedCache[Spending] = VersionedCache(spending_history.SPENDINGS_MAX)

    def look() -> Spending:
        with snapshot(engine) as connection:
            found = grounds(engine)
            return spending_history.known_spending(known, connection, found, delta=1e-5)

    append(api, event(0, 100))
    first = look()
    assert first == look() == grown(engine)
    child = dataset("child", parents=["data"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=child).status_code == 201
    assert api.post("/v1/runs", json=run("heir", dataset="child")).status_code == 201
    for name, step in (("run", 100), ("heir", 0)):
        append(api, event(step, 10), run=name)
        assert look() == grown(engine) != first
    change = {"reason": "why", "budget": {"epsilon": 60.0, "delta": 1e-5}}
    assert api.patch("/v1/datasets/data", json=change, headers={"if-match": '"1"'}).is_success
    grown_before = look()
    assert grown_before == grown(engine)
    monkeypatch.setattr(spending_history, "spending", None)
    assert look() == grown_before
    assert len(known) == 1
