"""How often a loader began anew: counted as it is recorded, and what lower ends make of it."""

from collections import Counter
from dataclasses import replace
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.event_counts import EventCounts, count_events
from accounting.events import (
    Cyclic,
    Event,
    Gaussian,
    NeighboringRelation,
    Reshuffle,
    Sampling,
    Shuffle,
    Span,
)
from service.guarantees.event_counts import dataset_counts, run_counts
from service.guarantees.recorded_facts import dataset_facts, refold_run
from service.ledger.append.admission import PositionedSpan, compute_append_effect
from service.ledger.append.state import Branch
from service.ledger.budgets.steps_and_passes import StepsAndPasses, merge_changes
from service.ledger.budgets.steps_and_passes import count_events as counts_of_counts
from service.ledger.lookups import find_dataset, find_run
from service.schemas.ledger_document import LedgerDocument
from service.storage.engine import snapshot
from tests.service.samples import GAUSSIAN, WRITER, Json, append, dataset, event, run, setup

SIZE = 60000  # of the samples' dataset
CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
ONCE: Json = {"kind": "shuffle", "batch_size": 600, "reshuffle": "once", "steps_per_pass": 100}
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}


def start(api: httpx.Client, **run_given: Any) -> None:
    """A dataset and a run in it, under a relation that has bounds for every order."""
    given = {"neighboring_relation": NeighboringRelation.REPLACE_SPECIAL}
    setup(api, dataset_given=given, delta=1e-5, **run_given)


def record(api: httpx.Client, *events: Json, branch: str = "main") -> None:
    answer = append(api, *events, branch=branch)
    assert answer.status_code in (200, 201), answer.text


def open_branch(api: httpx.Client, name: str, from_step: int) -> None:
    body = {"name": name, "writer": WRITER, "from_step": from_step, "order": "fresh"}
    assert api.post("/v1/runs/run/branches", json=body).status_code == 201


def guarantee(api: httpx.Client) -> Json:
    answer = api.get("/v1/runs/run/guarantee")
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def document(api: httpx.Client) -> LedgerDocument:
    return LedgerDocument.model_validate_json(api.get("/v1/runs/run/ledger").text)


def stored(api: httpx.Client, engine: Engine) -> EventCounts:
    """The run's balance: stored for it and for its dataset, and folded in two ways."""
    with snapshot(engine) as connection:
        row, dataset = find_run(connection, "run"), find_dataset(connection, "data")
        found = run_counts(connection, row.id, SIZE)
        assert found == dataset_counts(connection, dataset)
        assert found == refold_run(connection, row, SIZE)
    assert found == document(api).counts()
    return found


def starts(api: httpx.Client, engine: Engine, kind: type[Sampling]) -> int:
    found = stored(api, engine).starts
    return sum(n for one, n in found.items() if isinstance(one.sampling, kind))


def test_a_loader_that_goes_on_does_not_begin_anew(api: httpx.Client, engine: Engine) -> None:
    start(api)
    batches = [(0, 150), (150, 50), (200, 1), (100, 120), (220, 280)]  # one in part sent before
    for first_step, steps in batches:
        record(api, event(first_step, steps, sampling=CYCLIC))
        assert starts(api, engine, Cyclic) == 1
    record(api, *(event(first_step, steps, sampling=CYCLIC) for first_step, steps in batches))
    assert stored(api, engine).passes == dict.fromkeys(stored(api, engine).steps, 5)
    assert starts(api, engine, Cyclic) == 1


def test_a_change_of_sampling_begins_anew(api: httpx.Client, engine: Engine) -> None:
    start(api)
    record(api, event(0, 30, sampling=CYCLIC), event(30, 1), event(31, 1, sampling=CYCLIC))
    assert starts(api, engine, Cyclic) == 2
    record(api, event(32, 250, sampling=ONCE), event(282, 1, sampling=CYCLIC))
    assert (starts(api, engine, Cyclic), starts(api, engine, Shuffle)) == (3, 1)
    record(api, event(283, 1), event(284, 1))
    assert (starts(api, engine, Cyclic), starts(api, engine, Shuffle)) == (3, 1)


def test_other_noise_is_no_start_and_a_start_counts_for_the_noise_it_had(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    record(api, event(0, 60, sampling=CYCLIC, mechanism=QUIET), event(60, 90, sampling=CYCLIC))
    found = stored(api, engine)
    (one,) = found.starts
    assert (one.mechanism, found.starts[one]) == (Gaussian(noise_multiplier=8.0), 1)
    assert one not in found.passes  # the pass moved to the less noisy event


def test_a_branch_that_resumes_begins_anew_once(api: httpx.Client, engine: Engine) -> None:
    start(api)
    record(api, event(0, 250, sampling=ONCE))
    for count, name in enumerate(("first", "second"), start=1):
        open_branch(api, name, 200)
        assert starts(api, engine, Shuffle) == count
        record(api, event(200, 40, sampling=ONCE), branch=name)
        record(api, event(240, 70, sampling=ONCE), branch=name)
        assert starts(api, engine, Shuffle) == count + 1
    record(api, event(250, 50, sampling=ONCE))
    assert starts(api, engine, Shuffle) == 3


def test_a_charge_counts_starts_and_a_refused_one_counts_none(
    api: httpx.Client, engine: Engine
) -> None:
    start(api, budget={"epsilon": 3.0, "delta": 1e-5})
    beyond = event(0, 1000, sampling=ONCE)
    assert append(api, beyond, mode="charge").status_code == 409
    assert stored(api, engine) == EventCounts()
    assert append(api, beyond | {"mechanism": QUIET}, mode="charge").status_code == 201
    assert starts(api, engine, Shuffle) == 1


def test_a_balance_after_moves_is_the_fold_of_all_their_steps() -> None:
    shuffle = Shuffle(batch_size=600, steps_per_pass=100, reshuffle=Reshuffle.ONCE)
    cyclic = Cyclic(batch_size=600, steps_per_pass=100)
    branch = Branch(id=1, name="main", from_step=0, next_step=0, open_pass=None, reservations=[])
    spans: list[Span] = []
    counts: dict[Event, StepsAndPasses] = {}
    starts: Counter[Event] = Counter()
    for sampling, steps in ((shuffle, 150), (shuffle, 60), (cyclic, 1), (shuffle, 90)):
        one = Event(mechanism=Gaussian(noise_multiplier=1.1), sampling=sampling)
        spans.append(Span(event=one, steps=steps))
        part = PositionedSpan(first_step=branch.next_step, event=one, steps=steps, index=0)
        gone = compute_append_effect(branch, [part])
        branch.move_to(part.end, gone.open_pass)
        counts = merge_changes([counts, gone.move.recorded])
        starts.update(gone.starts)
        found = replace(counts_of_counts(counts), starts=dict(starts))
        assert found == count_events([spans])


def test_ten_passes_in_one_order_lose_almost_all_that_is_promised(api: httpx.Client) -> None:
    start(api)
    for first_step in range(0, 1000, 50):
        record(api, event(first_step, 50, sampling=ONCE))
    found = guarantee(api)
    assert found["epsilon_lower"] == pytest.approx(found["epsilon"], rel=1e-6)
    assert found["epsilon_lower"] <= found["epsilon"]


def test_an_order_that_a_branch_may_have_drawn_anew_takes_from_the_lower_end(
    api: httpx.Client,
) -> None:
    start(api)
    record(api, event(0, 500, sampling=ONCE))
    five = guarantee(api)["epsilon_lower"]
    open_branch(api, "b", 0)
    record(api, event(0, 500, sampling=ONCE), branch="b")
    found = guarantee(api)  # ten passes, of which five at least were in one order
    assert found["epsilon_lower"] == five
    assert found["epsilon"] > 1.4 * five


def test_passes_that_are_surely_complete_stand_in_the_lower_end(api: httpx.Client) -> None:
    start(api)
    record(api, event(0, 1000, sampling=ONCE))
    complete = guarantee(api)["epsilon_lower"]
    record(api, event(1000, 99, sampling=ONCE))
    assert guarantee(api)["epsilon_lower"] == complete  # the last is open, and may be left out
    record(api, event(1099, 1, sampling=ONCE, mechanism=GAUSSIAN))
    assert guarantee(api)["epsilon_lower"] > complete


def test_of_a_dataset_with_descendants_no_number_of_starts_is_told_now_or_as_of_before(
    api: httpx.Client, engine: Engine
) -> None:
    # A count of the dataset's own alone would be too low, and raise lower bounds.
    start(api)
    record(api, event(0, 100, sampling=ONCE))
    made = {"parents": ["data"], "rows_per_parent_record": "exactly_one"}
    given = dataset("child", neighboring_relation="replace_special", **made)
    assert api.post("/v1/datasets", json=given).status_code == 201
    assert api.post("/v1/runs", json=run("below", dataset="child")).status_code == 201
    for step in (0, 3):
        append(api, event(step, 1, sampling=ONCE), event(step + 1, 2), run="below")
    with snapshot(engine) as connection:
        home = find_dataset(connection, "data")
        present = dataset_facts(connection, home)
        same = dataset_facts(connection, home, until=home.head_sequence)
    assert same == present
    assert (same.recorded.starts, sum(same.recorded.begun.values())) == ({}, 3)
