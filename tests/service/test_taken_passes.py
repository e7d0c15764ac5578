"""Branches that go on in an open pass: what is charged covers every use of every order."""

import random
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.event_counts import EventCounts
from service.errors import InvalidRequestError
from service.guarantees.event_counts import count_reserved_anew, run_counts
from service.guarantees.recorded_facts import dataset_facts, refold_run, run_facts
from service.ledger.append.state_rows import tally_of
from service.ledger.lookups import dataset_of, find_run
from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import snapshot
from service.transparency.verification.ledger import verify
from tests.service.samples import WRITER, Json, append, event, setup

NULL: Json = {"neighboring_relation": "replace_special"}
NOISE: Json = {"kind": "gaussian", "noise_multiplier": 1.0}
CYCLIC: Json = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}
BALLS: Json = {"kind": "balls_and_bins", "steps_per_pass": 10}
# ---- over HTTP


def opened(api: httpx.Client, name: str, from_step: int, **given: Any) -> Json:
    body = {"name": name, "writer": WRITER, "from_step": from_step, "order": "continued"} | given
    body = {name: value for name, value in body.items() if value is not None}
    answer = api.post("/v1/runs/run/branches", json=body)
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


def step(first_step: int, steps: int, **given: Any) -> Json:
    return event(first_step, steps, **({"mechanism": NOISE, "sampling": CYCLIC} | given))


def taken(api: httpx.Client, first_step: int, steps: int, branch: str, **given: Any) -> None:
    answer = append(api, step(first_step, steps, **given), branch=branch)
    assert answer.status_code == 201, answer.text


def read(api: httpx.Client, **asked: Any) -> float:
    answer = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5} | asked)
    assert answer.status_code == 200, answer.text
    found: float = answer.json()["epsilon"]
    return found


def require_one_meaning(api: httpx.Client, engine: Engine) -> EventCounts:
    """What is stored, what entries add up to, what the document says, and what verifies."""
    with snapshot(engine) as connection:
        run = find_run(connection, "run")
        dataset = dataset_of(connection, run)
        stored = run_counts(connection, run.id, dataset.dataset_size)
        assert refold_run(connection, run, dataset.dataset_size) == stored
        head = run_facts(connection, run, dataset, until=dataset.head_sequence)
        assert head.recorded == stored
    document = LedgerDocument.model_validate(api.get("/v1/runs/run/ledger").json())
    assert document.counts() == stored
    with snapshot(engine) as connection:
        assert [one.text for one in verify(connection).broken] == []
    return stored


@pytest.mark.parametrize("sampling", [CYCLIC, BALLS])
def test_a_run_that_is_continued_costs_what_it_costs_without_a_break(
    api: httpx.Client, engine: Engine, sampling: Json
) -> None:
    setup(api, dataset_given=NULL)
    taken(api, 0, 5, "main", sampling=sampling)
    assert opened(api, "again", 5)["takes_pass"] is True
    taken(api, 5, 4, "again", sampling=sampling)
    taken(api, 9, 6, "again", sampling=sampling)
    counts = require_one_meaning(api, engine)
    assert list(counts.passes.values()) == list(counts.begun.values()) == [2]
    assert list(counts.starts.values()) == [1]
    assert read(api) == read(api, branch="again")
    if sampling is CYCLIC:
        assert read(api) == pytest.approx(6.57, abs=0.005)


def test_a_parent_that_goes_on_is_charged_a_pass_more(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given=NULL)
    taken(api, 0, 5, "main")
    opened(api, "again", 5)
    taken(api, 5, 5, "again")
    before = require_one_meaning(api, engine)
    assert list(before.passes.values()) == [1]
    taken(api, 5, 5, "main")
    after = require_one_meaning(api, engine)
    assert list(after.passes.values()) == [3]  # truth: some record is in two steps of the pass
    assert read(api, branch="again") == read(api, branch="main") < read(api)
    # Another branch there has nothing to take.
    assert opened(api, "third", 5, from_branch="main")["takes_pass"] is False
    taken(api, 5, 5, "third")
    assert list(require_one_meaning(api, engine).passes.values()) == [5]


def test_places_that_are_drawn_are_told_where_a_parent_goes_on(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given=NULL)
    taken(api, 0, 5, "main", sampling=BALLS)
    opened(api, "again", 5)
    taken(api, 5, 15, "again", sampling=BALLS)
    taken(api, 5, 15, "main", sampling=BALLS)
    taken(api, 20, 1, "main", sampling=BALLS, mechanism=NOISE | {"noise_multiplier": 0.5})
    counts = require_one_meaning(api, engine)
    found = {
        (event.sampling.steps_per_pass, event.mechanism.noise_multiplier): count  # type: ignore
        for event, count in counts.passes.items()
    }
    assert found == {(10, 1.0): 2, (1, 1.0): 2, (1, 0.5): 2}


def test_branches_of_branches_take_what_is_open(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given=NULL)
    taken(api, 0, 3, "main")
    opened(api, "b", 3)
    assert opened(api, "c", 3, from_branch="b")["takes_pass"] is True  # b has no steps yet
    assert opened(api, "d", 3, from_branch="b")["takes_pass"] is False
    taken(api, 3, 4, "c")
    opened(api, "e", 7, from_branch="c")
    taken(api, 7, 3, "e")
    assert list(require_one_meaning(api, engine).passes.values()) == [1]
    assert opened(api, "f", 5, from_branch="c")["takes_pass"] is False  # rewound
    for branch, first, count in (("b", 3, 2), ("d", 2 + 1, 1), ("f", 5, 5)):
        taken(api, first, count, branch)
    assert list(require_one_meaning(api, engine).passes.values()) == [7]


def test_a_pass_that_has_a_reservation_is_not_taken(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 500.0, "delta": 1e-5}})
    taken(api, 0, 5, "main")
    lease = {"name": "lease", "event": step(5, 5), "ttl_seconds": 60}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    assert opened(api, "b", 5)["takes_pass"] is False
    why = {"reason": "the node burnt down"}
    assert api.post("/v1/reservations/lease:void", json=why).status_code == 200
    assert opened(api, "c", 5, from_branch="main")["takes_pass"] is True
    # What is reserved now is of no place that is known: a pass, and one more.
    assert api.post("/v1/runs/run/reservations", json=lease | {"name": "l2"}).status_code == 201
    held = api.get("/v1/datasets/data").json()["budget"]["reserved"]
    assert held > 0
    taken(api, 5, 5, "main")
    taken(api, 5, 5, "c")
    assert list(require_one_meaning(api, engine).passes.values()) == [3]


def test_a_refused_parent_stays_as_it_was(api: httpx.Client, engine: Engine) -> None:
    """What the parent would add is looked at before it is admitted."""
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 7.0, "delta": 1e-5}})
    taken(api, 0, 5, "main")
    opened(api, "again", 5)
    taken(api, 5, 5, "again")
    spent = api.get("/v1/datasets/data").json()["budget"]["spent"]
    refused = append(api, step(5, 1), branch="main", mode="charge")
    assert refused.status_code == 409
    assert refused.json()["type"].endswith("budget-exhausted")
    assert api.get("/v1/datasets/data").json()["budget"]["spent"] == spent
    assert list(require_one_meaning(api, engine).passes.values()) == [1]


def test_less_noise_on_the_branch_moves_the_pass_that_it_took(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given=NULL)
    taken(api, 0, 5, "main", sampling=BALLS)
    opened(api, "again", 5)
    taken(api, 5, 5, "again", sampling=BALLS, mechanism=NOISE | {"noise_multiplier": 0.5})
    counts = require_one_meaning(api, engine)
    (least,) = counts.passes
    (begun,) = counts.begun
    assert least.mechanism.noise_multiplier == 0.5  # type: ignore[union-attr]
    assert begun.mechanism.noise_multiplier == 1.0  # type: ignore[union-attr]


LOADERS: list[Json] = [BALLS, BALLS | {"steps_per_pass": 7}, CYCLIC, {"kind": "full"}]


@pytest.mark.parametrize("seed", range(8))
def test_corrections_cover_both_accounts(api: httpx.Client, engine: Engine, seed: int) -> None:
    """On lines that took a pass, and on those that it was taken from."""
    draw = random.Random(seed)
    budget = {"epsilon": 5000.0, "delta": 1e-5}
    accept = ["published", "derived"]
    setup(api, dataset_given=NULL | {"budget": budget, "accept": accept})
    first = LOADERS[seed % 3]
    taken(api, 0, 5, "main", sampling=first)
    opened(api, "again", 5)
    taken(api, 5, 25, "again", sampling=first)
    if seed % 2:
        taken(api, 5, 12, "main", sampling=first)
    free = [("main", n) for n in range(17 if seed % 2 else 5)]
    free += [("again", n) for n in range(5, 30)]
    for _ in range(5):
        branch, low = draw.choice(free)
        steps = 1
        while steps < 4 and (branch, low + steps) in free and draw.random() < 0.6:
            steps += 1
        free = [one for one in free if one[0] != branch or not low <= one[1] < low + steps]
        really = NOISE | {"noise_multiplier": draw.choice([0.6, 1.0, 2.0])}
        wrong = {"branch": branch, "first_step": low, "steps": steps, "mechanism": really,
                 "sampling": draw.choice(LOADERS), "reason": "it was another"}  # fmt: skip
        assert api.post("/v1/runs/run/corrections", json=wrong).status_code == 201
        require_both_covered(api, engine)


@pytest.mark.parametrize("sampling", [CYCLIC, BALLS])
@pytest.mark.parametrize("order", [None, "continued"])
@pytest.mark.parametrize("cut", [3.0, 30.0])
def test_a_cut_where_the_place_is_not_known_touches_a_pass_more_on_each_side(
    api: httpx.Client, engine: Engine, order: str | None, sampling: Json, cut: float
) -> None:
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 5000.0, "delta": 1e-5}})
    taken(api, 0, 5, "main", sampling={"kind": "full"})
    opened(api, "again", 3, order=order)
    for first_step in range(3, 23, 5):
        quiet = {"noise_multiplier": 3.0}
        taken(api, first_step, 4, "again", sampling=sampling, mechanism=NOISE | quiet)
        loud = {"noise_multiplier": cut}
        taken(api, first_step + 4, 1, "again", sampling=sampling, mechanism=NOISE | loud)
    for first_step in (7, 12, 17, 22):
        wrong = {"branch": "again", "first_step": first_step, "steps": 1, "reason": "all of them",
                 "mechanism": NOISE | {"noise_multiplier": 500.0},
                 "sampling": {"kind": "full"}}  # fmt: skip
        assert api.post("/v1/runs/run/corrections", json=wrong).status_code == 201
        require_both_covered(api, engine)


@pytest.mark.parametrize("corrected", ["main", "again"])
def test_a_correction_is_read_with_every_branch_that_shares_a_pass(
    api: httpx.Client, engine: Engine, corrected: str
) -> None:
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 5000.0, "delta": 1e-5}})
    taken(api, 0, 5, "main")
    opened(api, "again", 5)
    taken(api, 5, 10, "again", mechanism=NOISE | {"noise_multiplier": 0.5})
    wrong = {"branch": corrected, "first_step": 3 if corrected == "main" else 6, "steps": 1,
             "mechanism": NOISE | {"noise_multiplier": 0.3}, "sampling": CYCLIC,
             "reason": "less noise"}  # fmt: skip
    assert api.post("/v1/runs/run/corrections", json=wrong).status_code == 201
    require_both_covered(api, engine)


def require_both_covered(api: httpx.Client, engine: Engine) -> None:
    require_one_meaning(api, engine)
    document = LedgerDocument.model_validate(api.get("/v1/runs/run/ledger").json())
    with snapshot(engine) as connection:
        run = find_run(connection, "run")
        dataset = dataset_of(connection, run)
        now = run_facts(connection, run, dataset)
        assert run_facts(connection, run, dataset, until=dataset.head_sequence) == now
        assert dataset_facts(connection, dataset).accounts == now.accounts
        held = tally_of(connection, dataset)
    assert document.corrected_counts() == now.corrected
    for account in now.accounts:
        total = held.filter.total(account, relation=held.relation, accept=held.accept)
        assert all(b <= a for a, b in zip(held.sums().spent, total, strict=True))


def test_what_is_reserved_where_an_order_may_be_used_again_is_told(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 500.0, "delta": 1e-5}})
    taken(api, 0, 5, "main", sampling=BALLS)
    opened(api, "again", 5)
    for branch, steps_per_pass in (("main", 1), ("again", 10)):
        lease = {"name": branch, "branch": branch, "event": step(5, 5, sampling=BALLS),
                 "ttl_seconds": 60}  # fmt: skip
        assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
        with snapshot(engine) as connection:
            dataset = dataset_of(connection, find_run(connection, "run"))
            found = count_reserved_anew(connection, dataset.id, dataset.dataset_size).passes
        told = {one.sampling.steps_per_pass: count for one, count in found.items()}  # type: ignore
        assert told[steps_per_pass] == 2


def test_a_child_with_rows_of_a_parent_is_charged_there_as_here(api: httpx.Client) -> None:
    setup(api, dataset_given=NULL | {"budget": {"epsilon": 500.0, "delta": 1e-5}})
    child = {"name": "child", "dataset_size": 60000, "privacy_unit": "example",
             "parents": ["data"], "rows_per_parent_record": "exactly_one", **NULL}  # fmt: skip
    answer = api.post("/v1/datasets", json=child)
    assert answer.status_code == 201, answer.text
    new = {"name": "below", "writer": WRITER, "dataset": "child"}
    assert api.post("/v1/runs", json=new).status_code == 201
    where = "/v1/runs/below/branches"
    spent = []
    for name, first_step in (("main", 0), ("b", 5), ("main", 5)):
        if name == "b":
            body = {"name": "b", "writer": WRITER, "from_step": 5, "order": "continued"}
            assert api.post(where, json=body).json()["takes_pass"] is True
        sent = append(api, step(first_step, 5), run="below", branch=name, mode="record")
        assert sent.status_code == 201, sent.text
        spent.append(api.get("/v1/datasets/data").json()["budget"]["spent"])
    assert spent[0] == spent[1] < spent[2]


@pytest.mark.parametrize(
    "given",
    [
        {"order": "fresh"},
        {"order": None},
        {"from_step": 6},
        {"from_branch": "other"},
        {"from_branch": None},
        {"name": "twice"},
    ],
)
def test_a_document_whose_branch_takes_what_it_cannot_is_refused(given: Json) -> None:
    one: Json = {"name": "again", "from_branch": "main", "from_step": 5, "order": "continued",
                 "takes_pass": True, "events": []}  # fmt: skip
    events = [{"steps": 5, "mechanism": NOISE, "sampling": CYCLIC}]
    found: Json = {"format": "dpledger/1", "dataset_size": 60000, **NULL, "events": events}
    two = [one, one | given] if "name" in given else [one | given]
    with pytest.raises(InvalidRequestError, match="order is continued"):
        LedgerDocument.model_validate(found | {"branches": two}).counts()
    LedgerDocument.model_validate(found | {"branches": [one]}).counts()
