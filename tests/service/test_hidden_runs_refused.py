"""Runs that would be told less than they may have shown, or ask for more than is proved."""

import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from service.cli.main import app
from tests.service.samples import Json, append, event, setup
from tests.service.test_hidden_runs import (
    ACCEPT,
    ASSUMPTIONS,
    SMALL,
    finish,
    guarantee,
    planned,
    start,
)


@pytest.mark.parametrize("state", ["aborted", "finished"])
def test_a_run_that_was_closed_early_hides_nothing_ever_after(
    api: httpx.Client, state: str, tmp_path: Path
) -> None:
    start(api)
    append(api, planned(steps=40))
    finish(api, state)  # what the iterate of step 39 was shown to is unknown
    append(api, planned(40, 20))
    found = finish(api)["guarantee"]
    assert api.get("/v1/runs/run").json()["state"] == "finished"
    assert found["release"] == "every_step"
    assert found["release_reason"].startswith("The run went on after its end")
    document = tmp_path / "ledger.json"
    document.write_text(api.get("/v1/runs/run/ledger").text)
    told = CliRunner().invoke(app, ["epsilon", str(document), "--delta", "1e-5", "--json"])
    assert json.loads(told.stdout)["epsilon"] == found["epsilon"]


def test_no_lower_end_counts_iterates_that_may_have_been_hidden(api: httpx.Client) -> None:
    start(api)
    append(api, planned())
    for asked in ({}, {"accountant": "pld"}):
        found = api.get("/v1/runs/run/guarantee", params=asked).json()
        assert found["epsilon_lower"] is None
    finish(api)
    asked = {"accountant": "pld"}
    shown = api.get("/v1/runs/run/guarantee", params=asked).json()
    assert shown["epsilon_lower"] is None
    assert shown["release_reason"].startswith("The accountant that was asked for")
    found = guarantee(api)
    assert found["epsilon_lower"] <= found["epsilon"]
    assert all(one["epsilon_lower"] is None for one in found["alternatives"])
    whole = api.get("/v1/datasets/data/guarantee", params={"delta": 1e-5}).json()
    assert whole["epsilon_lower"] is None
    assert all(one["epsilon_lower"] is None for one in whole["alternatives"])
    curve = api.get("/v1/runs/run/curve", params={"points": 3}).json()
    assert {point["delta_lower"] for point in curve["profile"]} == {0.0}


def test_a_dataset_without_hiding_runs_keeps_its_lower_end(api: httpx.Client) -> None:
    setup(api, dataset_given=SMALL)
    append(api, planned())
    whole = api.get("/v1/datasets/data/guarantee", params={"delta": 1e-5}).json()
    assert whole["epsilon_lower"] > 0


@pytest.mark.parametrize(
    ("steps", "sampling", "order"),
    [
        (2 * 10**9, {"kind": "fixed_size", "batch_size": 100}, "fixed_size"),
        (10**9, {"kind": "shuffle", "batch_size": 2000, "reshuffle": "each_pass",
                 "steps_per_pass": 30},
         "shuffle_each_pass"),
    ],
)  # fmt: skip
def test_what_is_beyond_the_range_is_told_as_shown_or_refused(
    api: httpx.Client, steps: int, sampling: Json, order: str
) -> None:
    half = planned(steps=min(steps, 10**9), sampling=sampling)
    events = [half] if steps <= 10**9 else [half, half | {"first_step": 10**9}]
    asked = {
        "neighboring_relation": "replace_one",
        "dataset_size": 2000,
        "delta": 1e-5,
        "accept": [*ACCEPT, "derived"],
        "events": events,
        "release": "last_iterate",
        "assumptions": ASSUMPTIONS | {"data_order": order, "gradient_divisor": 2000.0},
    }
    answer = api.post("/v1/plan", json=asked)
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        assert answer.json()["release"] == "every_step"


def test_a_release_beyond_the_documents_steps_is_refused(api: httpx.Client, tmp_path: Path) -> None:
    start(api)
    append(api, planned())
    finish(api)
    content = json.loads(api.get("/v1/runs/run/ledger").text)
    document = tmp_path / "ledger.json"
    document.write_text(json.dumps(content | {"releases": [{"branch": "main", "step": 60}]}))
    told = CliRunner().invoke(app, ["epsilon", str(document), "--delta", "1e-5"])
    assert told.exit_code == 2
    assert "releases[0].step" in told.output


def test_so_little_noise_that_no_lattice_serves_is_recorded(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 3.0, "delta": 1e-5}})
    little = event(
        0, 10**9, mechanism={"kind": "gaussian", "noise_multiplier": 0.01},
        sampling={"kind": "poisson", "sampling_probability": 0.001},
    )  # fmt: skip
    answer = append(api, little)
    assert answer.status_code == 201, answer.text
    assert answer.json()["verdict"] == "overdraft"
