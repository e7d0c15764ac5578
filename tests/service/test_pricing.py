"""Prices: while one is worked out everybody else appends; under a lock they are looked up."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.filters import RenyiFilter
from accounting.guarantees import DEFAULT_ACCEPT
from service.errors import UnavailableError
from service.ledger.append import rdp_reading
from service.ledger.append.append import Append
from service.ledger.append.writer import Writer, _Waiting
from service.ledger.budgets import cost_cache
from service.ledger.budgets.cost_cache import Cost, Reason
from service.ledger.lookups import lock_dataset
from service.schemas.requests import EventMessage
from service.storage.engine import transaction
from tests.service.logs import require_logged
from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run

LOOSE: Json = {"epsilon": 1000.0, "delta": 1e-5}
CHILD: Json = {"parents": ["parent"], "rows_per_parent_record": "at_most_one"}
# Of the neighbours, the one under which a missing row is another event than one that is there.
SPECIAL: Json = {"neighboring_relation": "replace_special"}
_noises = count(2)


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction leaves for each price, however little it takes."""
    monkeypatch.setattr(cost_cache, "LOCKED_POINTS_MAX", 0)


@pytest.fixture
def noise() -> Json:
    """A mechanism that no test has asked the price of before."""
    return {"kind": "gaussian", "noise_multiplier": 50.0 + 1 / next(_noises)}


class Victim:
    """Another trainer of the same dataset, who appends while a price is worked out."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        self.next_step = 0
        self.priced: list[str] = []

    def begin(self, dataset_name: str) -> None:
        answer = self.api.post(
            "/v1/runs", json=run("victim", dataset=dataset_name, writer="writer-of-the-victim")
        )
        assert answer.status_code == 201, answer.text
        self.step()

    def step(self) -> None:
        answer = append(self.api, event(self.next_step, 1), run="victim")
        assert answer.status_code == 201, answer.text
        self.next_step += 1


@pytest.fixture
def victim(api: httpx.Client, leaves: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Victim]:
    found = Victim(api)

    def watched(kind: type[Any], name: str) -> None:
        whole: Callable[..., Any] = getattr(kind, name)

        def slow(*given: Any, **named: Any) -> Any:
            if found.next_step and "victim" not in found.priced[-1:]:
                found.priced.append("victim")  # what it asks meanwhile is known
                found.step()
                found.priced[-1] = name
            return whole(*given, **named)

        monkeypatch.setattr(kind, name, slow)

    watched(Cost, "of")
    watched(Reason, "of")
    watched(rdp_reading, "meter_of")  # type: ignore[arg-type]
    yield found
    monkeypatch.undo()


def made(api: httpx.Client, path: str, body: Json) -> None:
    answer = api.post(path, json=body)
    assert answer.status_code == 201, answer.text


def lineage(api: httpx.Client, **child: Any) -> None:
    made(api, "/v1/datasets", dataset("parent", **SPECIAL, budget=LOOSE | {"orders": [1.5]}))
    made(api, "/v1/datasets", dataset(**SPECIAL, **CHILD, budget=LOOSE, **child))


def test_others_append_while_what_a_step_costs_is_worked_out_everywhere(
    api: httpx.Client, victim: Victim, noise: Json, engine: Engine
) -> None:
    """In its dataset, in one further up that has other orders, in its run; and what is replied."""
    lineage(api)
    victim.begin("data")
    made(api, "/v1/runs", run(budget=LOOSE | {"filter": "gaussian_dp"}))
    before = victim.next_step
    assert append(api, event(0, 1, mechanism=noise, sampling=FULL)).status_code == 201
    assert victim.priced[-4:] == ["of", "of", "of", "meter_of"]
    assert victim.next_step == before + 4
    victim.priced.clear()
    assert append(api, event(1, 5, mechanism=noise, sampling=FULL)).status_code == 201
    assert victim.priced == []  # known from here on, and worked out no more
    with engine.connect() as connection:
        require_logged(connection)


def test_others_append_while_many_lines_are_priced(
    api: httpx.Client, victim: Victim, noise: Json
) -> None:
    made(api, "/v1/datasets", dataset(budget=LOOSE))
    victim.begin("data")
    made(api, "/v1/runs", run())
    several = [noise | {"noise_multiplier": noise["noise_multiplier"] + n} for n in range(3)]
    lines = [event(step, 1, mechanism=one, sampling=FULL) for step, one in enumerate(several)]
    answer = api.post(
        "/v1/runs/run/events",
        content="".join(json.dumps(one) + "\n" for one in lines),
        headers={"content-type": "application/x-ndjson"},
    )
    assert answer.json()["accepted"] == 3
    assert victim.priced.count("of") >= 3


def test_others_append_while_a_reservation_and_its_return_are_priced(
    api: httpx.Client, victim: Victim, noise: Json
) -> None:
    lineage(api)
    victim.begin("data")
    made(api, "/v1/runs", run())
    victim.priced.clear()
    asked = event(0, 10, mechanism=noise, sampling=FULL)
    made(api, "/v1/runs/run/reservations", {"name": "lease", "event": asked, "ttl_seconds": 600})
    assert victim.priced.count("of") == 2
    answer = api.post("/v1/reservations/lease:release", json={"last_step": 3})
    assert (answer.status_code, answer.json()["remaining"]) == (200, 4)


def test_others_append_while_a_plan_is_priced_in_the_datasets_above(
    api: httpx.Client, victim: Victim, noise: Json
) -> None:
    lineage(api)
    victim.begin("data")
    victim.priced.clear()
    plan = [{"steps": 10, "mechanism": noise, "sampling": FULL}]
    made(api, "/v1/runs", run(plan=plan, budget=LOOSE))
    assert victim.priced.count("of") >= 1
    assert api.get("/v1/datasets/parent").json()["reserved"] > 0


def test_others_append_while_what_was_spent_before_is_priced(
    api: httpx.Client, victim: Victim, noise: Json
) -> None:
    made(api, "/v1/datasets", dataset("parent", budget=LOOSE | {"orders": [1.5]}))
    victim.begin("parent")
    victim.priced.clear()
    opening = [{"steps": 10, "mechanism": noise, "sampling": FULL}]
    made(api, "/v1/datasets", dataset(**CHILD, opening_balance=opening, budget=LOOSE))
    assert victim.priced.count("of") == 2
    assert api.get("/v1/runs/opening.data").json()["steps"] == 10


def test_others_append_while_a_correction_is_priced(
    api: httpx.Client, victim: Victim, noise: Json, engine: Engine
) -> None:
    """Which is found out late: what was written of it by then is undone."""
    lineage(api)
    victim.begin("data")
    made(api, "/v1/runs", run())
    assert append(api, event(0, 10)).status_code == 201
    victim.priced.clear()
    corrected = {"first_step": 2, "steps": 3, "reason": "so it was", "mechanism": noise}
    made(api, "/v1/runs/run/corrections", corrected | {"sampling": FULL})
    assert victim.priced.count("of") >= 2
    assert len(api.get("/v1/runs/run/corrections").json()["corrections"]) == 1
    with engine.connect() as connection:
        require_logged(connection)


def test_others_append_while_it_is_found_out_why_a_step_has_no_bound(
    api: httpx.Client, victim: Victim, noise: Json
) -> None:
    made(api, "/v1/datasets", dataset(budget=LOOSE | {"filter": "approximate_dp"}))
    victim.begin("data")
    made(api, "/v1/runs", run())
    victim.priced.clear()
    answer = append(api, event(0, 1, mechanism=noise, sampling=FULL), mode="charge")
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/unsupported-event")
    assert "The filter that holds the dataset" in answer.json()["detail"]
    assert victim.priced.count("of") == 2


@pytest.mark.usefixtures("leaves")
def test_sums_that_must_be_folded_anew_are_priced_before_the_lock(
    api: httpx.Client, engine: Engine, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of what is accepted."""
    made(api, "/v1/datasets", dataset(budget=LOOSE, accept=["published", "declared"]))
    made(api, "/v1/runs", run())
    several = [noise | {"noise_multiplier": noise["noise_multiplier"] + n} for n in range(20)]
    steps = [event(step, 1, mechanism=one, sampling=FULL) for step, one in enumerate(several)]
    assert append(api, *steps).status_code == 201
    priced: list[Event] = []
    whole = Cost.of

    def of(question: Cost, what: Event) -> Any:
        with transaction(engine) as connection:  # would wait, if anybody held it
            lock_dataset(connection, "data")
        priced.append(what)
        return whole(question, what)

    monkeypatch.setattr(Cost, "of", of)
    changed = {"accept": ["published", "declared", "derived"], "reason": "we accept more"}
    answer = api.patch("/v1/datasets/data", json=changed, headers={"if-match": '"1"'})
    assert answer.status_code == 200, answer.text
    assert append(api, event(20, 1, mechanism=noise, sampling=FULL)).status_code == 201
    assert len(priced) >= 20


# ---- what the writer does with it


def asked(step: int, mechanism: Json, name: str = "run") -> Append:
    message = EventMessage.model_validate(event(step, 1, mechanism=mechanism, sampling=FULL))
    return Append(run_name=name, branch_name="main", mode="record", events=[message])


def together(engine: Engine, appends: Sequence[Append]) -> tuple[list[Any], list[int]]:
    """The answers to appends of one group, and how many were in each transaction."""
    sizes: list[int] = []

    class Counting(Writer):
        def _commit(self, group: Sequence[_Waiting]) -> Any:
            sizes.append(len(group))
            return super()._commit(group)

    async def hand_over() -> list[Any]:
        writer = Counting(engine)
        tasks = [asyncio.ensure_future(writer.write(one)) for one in appends]
        await asyncio.sleep(0)
        writer.start()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(writer.stop)
        return answers

    return asyncio.run(hand_over()), sizes


@pytest.mark.usefixtures("leaves")
def test_who_must_ask_for_a_price_first_does_not_undo_what_others_did(
    api: httpx.Client, engine: Engine, noise: Json
) -> None:
    made(api, "/v1/datasets", dataset(budget=BUDGET))
    made(api, "/v1/runs", run())
    made(api, "/v1/runs", run("other"))
    usual = {"kind": "gaussian", "noise_multiplier": 300.0}
    assert append(api, event(0, 1, mechanism=usual, sampling=FULL)).status_code == 201
    answers, sizes = together(engine, [asked(1, usual), asked(0, noise, "other"), asked(2, usual)])
    assert [answer["accepted"] for answer in answers] == [1, 1, 1]
    assert sizes == [3, 1]


@pytest.mark.usefixtures("leaves")
def test_a_price_that_is_never_known_is_not_asked_for_without_an_end(
    api: httpx.Client, engine: Engine, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(api, "/v1/datasets", dataset(budget=BUDGET))
    made(api, "/v1/runs", run())

    def nothing(_wanted: object) -> dict[cost_cache.Quote, Any]:
        return {}

    monkeypatch.setattr(cost_cache, "compute_costs", nothing)
    answers, sizes = together(engine, [asked(0, noise)])
    assert isinstance(answers[0], UnavailableError)
    assert sizes == [1] * cost_cache.TRIES
    made(api, "/v1/datasets", dataset("other"))
    plan = [{"steps": 10, "mechanism": noise, "sampling": FULL}]
    answer = api.post("/v1/runs", json=run("planned", plan=plan, budget=LOOSE, dataset="other"))
    assert (answer.status_code, answer.json()["type"]) == (503, "/problems/unavailable")
    assert api.get("/v1/runs/planned").status_code == 404
    assert api.get("/v1/runs/run").json()["steps"] == 0


@pytest.mark.usefixtures("leaves")
def test_more_prices_than_are_remembered_serve_those_who_asked_for_them(
    api: httpx.Client, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_cache, "KNOWN_MAX", 2)
    monkeypatch.setattr("service.ledger.budgets.accumulator.COSTS_MAX", 3)
    made(api, "/v1/datasets", dataset(budget=LOOSE))
    made(api, "/v1/runs", run())
    several = [noise | {"noise_multiplier": noise["noise_multiplier"] + n} for n in range(10)]
    steps = [event(step, 1, mechanism=one, sampling=FULL) for step, one in enumerate(several)]
    answer = append(api, *steps)
    assert (answer.status_code, answer.json()["accepted"]) == (201, 10)


@pytest.mark.usefixtures("leaves")
def test_what_takes_too_much_work_for_one_request_is_worked_out_by_several(
    api: httpx.Client, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(api, "/v1/datasets", dataset(budget=LOOSE))
    made(api, "/v1/runs", run())
    monkeypatch.setattr(cost_cache, "COST_POINTS_MAX", 0)
    several = [noise | {"noise_multiplier": noise["noise_multiplier"] + n} for n in range(4)]
    steps = [event(step, 1, mechanism=one, sampling=FULL) for step, one in enumerate(several)]
    for _ in range(20):
        answer = append(api, *steps)
        if answer.status_code == 201:
            break
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        assert "goes on where this one stopped" in answer.json()["detail"]
        assert api.get("/v1/runs/run").json()["steps"] == 0
    assert answer.json()["accepted"] == 4
    assert api.get("/v1/runs/run").json()["steps"] == 4


# ---- what takes little


def sampled(step: int, noise: Json, name: str) -> Append:
    """A step whose price takes about 55,000 points; one of all records takes 200."""
    whole = asked(step, noise, name)
    sampling = {"kind": "poisson", "sampling_probability": 0.01}
    part = EventMessage.model_validate(event(step, 1, mechanism=noise, sampling=sampling))
    return replace(whole, events=[part])


def runs_of(api: httpx.Client, *names: str) -> None:
    made(api, "/v1/datasets", dataset(budget=BUDGET | {"orders": [7.5]}))
    for name in names:
        made(api, "/v1/runs", run(name))


def test_a_price_that_takes_little_is_worked_out_in_the_transaction(
    api: httpx.Client, engine: Engine, noise: Json
) -> None:
    runs_of(api, "run")
    answers, sizes = together(engine, [sampled(0, noise, "run")])
    assert (answers[0]["accepted"], sizes) == (1, [1])
    with engine.connect() as connection:
        require_logged(connection)


def test_a_transaction_works_out_no_more_than_it_may(
    api: httpx.Client, engine: Engine, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_of(api, "run", "other", "third")
    monkeypatch.setattr(cost_cache, "LOCKED_POINTS_MAX", 500)
    several = [noise | {"noise_multiplier": noise["noise_multiplier"] + n} for n in range(3)]
    names = ("run", "other", "third")
    group = [asked(0, one, name) for one, name in zip(several, names, strict=True)]
    answers, sizes = together(engine, group)
    assert [answer["accepted"] for answer in answers] == [1, 1, 1]
    assert sizes == [3, 1]


def test_after_a_price_that_takes_too_much_no_other_is_tried(
    api: httpx.Client, engine: Engine, noise: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For it may have taken all that the transaction has."""
    runs_of(api, "run", "other")
    monkeypatch.setattr(cost_cache, "LOCKED_POINTS_MAX", 30_000)
    answers, sizes = together(engine, [sampled(0, noise, "run"), asked(0, noise, "other")])
    assert [answer["accepted"] for answer in answers] == [1, 1]
    assert (sizes[0], sum(sizes)) == (2, 4)


def test_a_price_is_the_same_wherever_it_is_worked_out(noise: Json) -> None:
    question = Cost(
        RenyiFilter(epsilon=3.0, delta=1e-5, order=7.5),
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        DEFAULT_ACCEPT,
    )
    mechanism = Gaussian(noise_multiplier=noise["noise_multiplier"])
    what = Event(mechanism=mechanism, sampling=Poisson(sampling_probability=0.01))
    with cost_cache.cached_costs_only({}):
        assert cost_cache.missing(question, [what]) == [(question, what)]
        cost_cache.require([(question, what)])
        told = cost_cache.ask(question, what)
    assert told == question.of(what)
    assert told[-1] > 0
