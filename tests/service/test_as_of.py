"""Looking back: what was answered at a sequence, what is known now, and what was corrected."""

import json
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine, insert, select
from typer.testing import CliRunner

import accounting
from accounting.event_counts import EventCounts, count_events
from accounting.events import NeighboringRelation
from service.cli.main import app
from service.guarantees import recorded_facts, replay
from service.ledger.lookups import find_dataset, find_run
from service.schemas.event_codec import content_of, overlay, spans_of
from service.schemas.requests import PlannedEvent
from service.storage.engine import snapshot, transaction
from service.storage.tables import branches, corrections, datasets, distinct_events
from tests.service.samples import BUDGET, FULL, WRITER, Json, append, event, run, setup

RELATION = NeighboringRelation.REPLACE_SPECIAL
CYCLIC: Json = {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}  # 100 steps a pass
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}
LOUD: Json = {"kind": "gaussian", "noise_multiplier": 0.7}
NONE: Json = {"kind": "none"}


def guarantee(api: httpx.Client, path: str = "runs/run", **query: object) -> Json:
    answer = api.get(f"/v1/{path}/guarantee", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def counts(*events: Json) -> EventCounts:
    messages = [PlannedEvent.model_validate(sent) for sent in events]
    return count_events([spans_of(messages, dataset_size=60000, first_step=0)])


def epsilon_of(*events: Json) -> float | None:
    return accounting.guarantee(counts(*events), relation=RELATION, delta=1e-5).epsilon


def correct(engine: Engine, really: Json, *, branch: str = "main", run_name: str = "run") -> None:
    """What some steps of a branch really were, as of the dataset's present head."""
    with transaction(engine) as connection:
        found = find_run(connection, run_name)
        dataset = connection.execute(
            select(datasets).where(datasets.c.id == found.dataset_id)
        ).one()
        (what,) = counts(really | {"first_step": 0}).steps
        content = content_of(what)
        rows = {
            row.content: row.id
            for row in connection.execute(
                select(distinct_events).where(distinct_events.c.dataset_id == dataset.id)
            )
        }
        if content not in rows:
            nothing = dict.fromkeys(("steps", "passes", "begun", "starts"), 0)
            values = {"dataset_id": dataset.id, "content": content, **nothing}
            added = insert(distinct_events).values(values).returning(distinct_events.c.id)
            rows[content] = connection.execute(added).scalar_one()
        where = select(branches.c.id).where(
            branches.c.run_id == found.id, branches.c.name == branch
        )
        connection.execute(
            insert(corrections).values(
                dataset_id=dataset.id,
                run_id=found.id,
                branch_id=connection.execute(where).scalar_one(),
                first_step=really["first_step"],
                steps=really["steps"],
                event_id=rows[content],
                reason="The noise was set in another unit.",
                corrected_by="admin",
                sequence=dataset.head_sequence,
                recorded_at=dataset.created_at,
            )
        )


def start(api: httpx.Client, *, budget: Json | None = None) -> None:
    given = {"neighboring_relation": RELATION, "budget": budget}
    setup(api, dataset_given=given, delta=1e-5)


def test_an_answer_as_of_a_sequence_is_the_one_that_was_given_then(api: httpx.Client) -> None:
    start(api)
    events = [
        event(0, 250, sampling=CYCLIC), event(250, 30, sampling=CYCLIC, mechanism=LOUD),
        event(280, 40), event(320, 5, sampling=FULL), event(325, 90, sampling=CYCLIC),
    ]  # fmt: skip
    then: list[Json] = [guarantee(api)]
    for one in events:
        append(api, one)
        then.append(guarantee(api))
    for sequence, answered in enumerate(then):
        found = guarantee(api, as_of=sequence)
        assert found["as_of"] == {
            "sequence": sequence,
            "as_known_now": pytest.approx(answered["epsilon"], rel=1e-6),
            "present_epsilon": pytest.approx(then[-1]["epsilon"], rel=1e-6),
        }
        assert found | {"as_of": None} == answered
        whole = guarantee(api, "datasets/data", as_of=sequence, delta=1e-5)
        assert whole["epsilon"] == answered["epsilon"]
    assert then[-1]["as_of"] is None


def test_of_a_dataset_the_sequence_cuts_through_all_its_runs(api: httpx.Client) -> None:
    start(api)
    api.post("/v1/runs", json=run("other", delta=1e-5))
    append(api, event(0, 150, sampling=CYCLIC))
    append(api, event(0, 10, sampling=FULL), run="other")
    append(api, event(150, 20, sampling=CYCLIC))
    append(api, event(10, 10), run="other")
    answered = guarantee(api, "datasets/data", as_of=3, delta=1e-5)
    assert answered["steps"] == 180
    assert answered["sequence"] == 3
    assert answered["epsilon"] == epsilon_of(
        event(0, 170, sampling=CYCLIC), event(170, 10, sampling=FULL)
    )
    assert guarantee(api, "runs/other", as_of=3)["steps"] == 10
    assert guarantee(api, "runs/other", as_of=1)["epsilon"] == 0


@pytest.mark.parametrize("path", ["runs/run", "datasets/data"])
@pytest.mark.parametrize("sequence", [-1, 3, 10**30, "one"])
def test_a_sequence_that_was_never_reached_is_refused(
    api: httpx.Client, path: str, sequence: object
) -> None:
    start(api)
    append(api, event(0, 10), event(10, 5, sampling=FULL))
    query = {"as_of": str(sequence), "delta": "1e-5"}
    answer = api.get(f"/v1/{path}/guarantee", params=query)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "query.as_of"


def test_a_branch_is_looked_back_at_on_its_path(api: httpx.Client) -> None:
    start(api)
    append(api, event(0, 100))
    api.post(
        "/v1/runs/run/branches",
        json={"name": "side", "writer": WRITER, "from_step": 40, "order": "fresh"},
    )
    append(api, event(40, 10, sampling=FULL), branch="side")
    append(api, event(100, 10, sampling=FULL))
    append(api, event(50, 10, sampling=FULL), branch="side")
    found = guarantee(api, branch="side", as_of=3)
    assert found["steps"] == 50
    assert found["epsilon"] == epsilon_of(event(0, 40), event(40, 10, sampling=FULL))
    assert found["whole_run_epsilon"] == pytest.approx(guarantee(api, as_of=3)["epsilon"], rel=1e-6)
    present = guarantee(api, branch="side")["epsilon"]
    assert found["as_of"]["present_epsilon"] == pytest.approx(present, rel=1e-6)


def test_what_would_take_reading_too_much_is_refused(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api)
    append(api, *(event(i, 1, sampling=FULL if i % 2 else CYCLIC) for i in range(6)))
    monkeypatch.setattr(replay, "FOLD_MAX", 4)
    for path in ("datasets/data", "runs/run"):
        query = {"as_of": "5", "delta": "1e-5"}
        answer = api.get(f"/v1/{path}/guarantee", params=query)
        assert answer.json()["type"].endswith("too-expensive"), path
        assert guarantee(api, path, as_of=4, delta=1e-5)["sequence"] == 4
    assert api.get("/v1/runs/run/guarantee?branch=main").json()["type"].endswith("too-expensive")


def test_a_correction_upwards_raises_what_is_enforced_and_both_are_shown(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    before = guarantee(api)
    correct(engine, event(20, 30, mechanism=LOUD))
    really = (event(0, 20), event(20, 30, mechanism=LOUD), event(50, 50))
    for path in ("runs/run", "datasets/data"):
        found = guarantee(api, path, delta=1e-5)
        assert found["corrections"] == 1
        assert found["epsilon"] == found["corrected_epsilon"] == epsilon_of(*really)
        assert found["epsilon"] > before["epsilon"]
        assert found["epsilon_lower"] <= before["epsilon"]
        assert found["steps"] == 100
    assert (before["corrections"], before["corrected_epsilon"]) == (0, None)


def test_a_correction_downwards_is_shown_and_lowers_nothing(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    before = guarantee(api)
    correct(engine, event(0, 100, mechanism=QUIET))
    found = guarantee(api)
    assert found["epsilon"] == before["epsilon"]
    assert found["corrected_epsilon"] == epsilon_of(event(0, 100, mechanism=QUIET))
    assert found["corrected_epsilon"] < found["epsilon"]
    assert found["epsilon_lower"] <= found["corrected_epsilon"]
    for bound, old in zip(found["alternatives"], before["alternatives"], strict=True):
        assert bound["epsilon"] == old["epsilon"]
    at = guarantee(api, epsilon=1.0)
    assert at["delta"] == guarantee(api, epsilon=1.0)["delta"]
    assert at["corrected_epsilon"] < 1.0


def test_a_correction_that_no_theorem_bounds_leaves_no_finite_figure(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    correct(engine, event(99, 1, mechanism=NONE))
    found = guarantee(api)
    assert (found["epsilon"], found["corrected_epsilon"], found["corrections"]) == (None, None, 1)
    assert "without noise" in found["reason"]
    assert found["alternatives"] == []


def test_what_is_known_now_stands_beside_what_was_answered(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    then = guarantee(api)
    append(api, event(100, 10, sampling=FULL))
    correct(engine, event(90, 15, mechanism=LOUD))
    found = guarantee(api, as_of=1)
    assert (found["epsilon"], found["corrections"]) == (then["epsilon"], 0)
    really = epsilon_of(event(0, 90), event(90, 10, mechanism=LOUD))
    assert found["as_of"]["as_known_now"] == pytest.approx(really, rel=1e-6)
    present = guarantee(api)
    assert found["as_of"]["present_epsilon"] == pytest.approx(present["epsilon"], rel=1e-6)
    assert guarantee(api, as_of=2) | {"as_of": None} == present
    whole = guarantee(api, "datasets/data", as_of=1, delta=1e-5)
    assert whole["as_of"] == found["as_of"]


def test_passes_are_counted_anew_where_a_correction_lies_in_them(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    api.post("/v1/runs", json=run("other", delta=1e-5))
    append(api, event(0, 300, sampling=CYCLIC), run="other")
    append(api, event(0, 150, sampling=CYCLIC), event(150, 50))
    correct(engine, event(40, 20, sampling=CYCLIC, mechanism=LOUD))
    correct(engine, event(140, 20, sampling=FULL))
    really = (
        event(0, 40, sampling=CYCLIC), event(40, 20, sampling=CYCLIC, mechanism=LOUD),
        event(60, 80, sampling=CYCLIC), event(140, 20, sampling=FULL), event(160, 40),
    )  # fmt: skip
    found = guarantee(api)
    assert found["corrections"] == 2
    assert found["corrected_epsilon"] == epsilon_of(*really)
    whole = guarantee(api, "datasets/data", delta=1e-5)
    other = event(0, 300, sampling=CYCLIC)
    assert whole["corrected_epsilon"] == _dataset_epsilon(really, other)


def _dataset_epsilon(first: tuple[Json, ...], *second: Json) -> float | None:
    spans = [
        spans_of(
            [PlannedEvent.model_validate(sent) for sent in events], dataset_size=60000, first_step=0
        )
        for events in (first, second)
    ]
    return accounting.guarantee(count_events(spans), relation=RELATION, delta=1e-5).epsilon


def test_a_stored_balance_that_its_entries_do_not_add_up_to_is_no_ground_for_an_answer(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    correct(engine, event(0, 100, mechanism=QUIET))
    with transaction(engine) as connection:
        connection.execute(distinct_events.update().values(steps=50))
    with snapshot(engine) as connection, pytest.raises(ArithmeticError, match="add up"):
        recorded_facts.dataset_facts(connection, find_dataset(connection, "data"))


def test_a_path_that_misses_steps_is_no_ground_for_an_answer(
    api: httpx.Client, engine: Engine
) -> None:
    start(api)
    append(api, event(0, 100))
    with transaction(engine) as connection:
        connection.execute(branches.update().values(next_step=101))
        found = find_run(connection, "run")
        dataset = find_dataset(connection, "data")
        with pytest.raises(ArithmeticError, match="each of its steps"):
            recorded_facts.run_facts(connection, found, dataset, branch="main")


def test_a_corrected_ledger_document_is_read_like_the_run(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    start(api)
    append(api, event(0, 100), event(100, 50, sampling=CYCLIC))
    api.post(
        "/v1/runs/run/branches",
        json={"name": "side", "writer": WRITER, "from_step": 40, "order": "fresh"},
    )
    append(api, event(40, 10, sampling=FULL), branch="side")
    correct(engine, event(20, 90, mechanism=LOUD))
    correct(engine, event(45, 5), branch="side")
    document = api.get("/v1/runs/run/ledger")
    assert document.json()["corrections"] == [
        {"branch": "main", **event(20, 90, mechanism=LOUD), "reason": _REASON},
        {"branch": "side", **event(45, 5), "reason": _REASON},
    ]
    told = _command(tmp_path, document.json())
    for field in ("epsilon", "epsilon_lower", "corrected_epsilon", "corrections", "alternatives"):
        assert told[field] == guarantee(api)[field], field


_REASON = "The noise was set in another unit."


def _command(folder: Path, document: Json) -> Json:
    file = folder / "ledger.json"
    file.write_text(json.dumps(document))
    answer = CliRunner().invoke(app, ["epsilon", str(file), "--delta", "1e-5", "--json"])
    assert answer.exit_code == 0, answer.output
    found: Json = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize(
    "mistake",
    [
        [event(90, 11) | {"branch": "main"}],  # beyond what was recorded
        [event(0, 5) | {"branch": "side"}],  # no such branch
        [event(0, 50) | {"branch": "main"}, event(49, 5) | {"branch": "main"}],  # twice
    ],
)
def test_a_document_whose_corrections_are_not_of_recorded_steps_is_refused(
    tmp_path: Path, mistake: list[Json]
) -> None:
    document: Json = {
        "format": "dpledger/1", "neighboring_relation": RELATION, "dataset_size": 60000,
        "events": [event(0, 100)], "corrections": [one | {"reason": "r"} for one in mistake],
    }  # fmt: skip
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(document))
    answer = CliRunner().invoke(app, ["epsilon", str(file), "--delta", "1e-5"])
    assert answer.exit_code == 2
    assert "corrections" in answer.output


def test_corrections_are_laid_over_steps_piece_by_piece() -> None:
    over = [(2, 4, "b"), (4, 5, "c"), (8, 12, "d"), (20, 30, "e")]
    assert list(overlay((0, 10, "a"), over)) == [
        (0, 2, "a"), (2, 2, "b"), (4, 1, "c"), (5, 3, "a"), (8, 2, "d"),
    ]  # fmt: skip
    assert list(overlay((10, 2, "a"), over)) == [(10, 2, "d")]
    assert list(overlay((12, 8, "a"), over)) == [(12, 8, "a")]
    assert list(overlay((3, 1, "a"), over)) == [(3, 1, "b")]
    assert list(overlay((30, 1, "a"), over)) == [(30, 1, "a")]


def test_a_run_that_hides_hides_nothing_in_a_part_of_it(api: httpx.Client) -> None:
    declared: Json = {
        "data_order": "cyclic", "loss_smoothness": 1.0, "loss_convexity": 0.0, "learning_rate": 0.1,
        "max_grad_norm": 1.0, "gradient_divisor": 100.0, "projection_diameter": None,
        "clipping_can_be_active": False, "generalized_linear_model": False,
        "initialization_data_independent": True,
    }  # fmt: skip
    steps = event(0, 300, sampling=CYCLIC)
    accept = ["published", "declared", "conditional"]
    setup(
        api,
        dataset_given={"neighboring_relation": "replace_one", "accept": accept, "budget": BUDGET},
        release="last_iterate", assumptions=declared, plan=[steps], delta=1e-5,
    )  # fmt: skip
    append(api, steps)
    api.post("/v1/runs/run:finish", json={"state": "finished"})
    hidden = guarantee(api)
    assert hidden["release"] == "last_iterate"
    for query in ({"branch": "main"}, {"as_of": 1}):
        shown = guarantee(api, **query)
        assert shown["release"] == "every_step"
        assert shown["release_reason"] == "Of a part of the run every step counts as shown."
        assert shown["epsilon"] > hidden["epsilon"]
        assert shown["epsilon_lower"] is None


def test_a_hidden_run_that_was_corrected_hides_nothing(api: httpx.Client, engine: Engine) -> None:
    test_a_run_that_hides_hides_nothing_in_a_part_of_it(api)
    correct(engine, event(0, 1, sampling=CYCLIC, mechanism=LOUD))
    found = guarantee(api)
    assert found["release"] == "every_step"
    assert "not what the plan says" in found["release_reason"]
