"""A proved bound of less than half, of a status that does not count: every answer says so."""

import logging
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import Client
from typer.testing import CliRunner

from service.cli.main import app
from service.formatting import up
from tests.conftest import AS_ADMIN
from tests.service.samples import BUDGET, DRAWS, GAUSSIAN, POISSON, WEIGHTED, Json, append, event
from tests.service.samples import setup as opened

# Caps, draws and weights of the table in docs/guide/sampling.md.
TIGHT_CAP: Json = {
    "kind": "truncated_poisson", "sampling_probability": 0.01, "max_batch_size": 600,
}  # fmt: skip


def start(api: httpx.Client, *events: Json, **given: Any) -> None:
    budget = BUDGET | {"epsilon": 1e6}
    opened(api, dataset_given={"budget": budget} | given)
    assert append(api, *events).status_code == 201


def test_a_guarantee_names_the_smaller_bound_with_its_number_and_status(api: httpx.Client) -> None:
    start(api, event(0, 1000, sampling=TIGHT_CAP))
    found = api.get("/v1/runs/run/guarantee").json()
    smaller = found["smaller_bound"]
    assert smaller["bound"] == "truncated-poisson-gaussian"
    assert smaller["status"] == "derived"
    assert smaller["delta"] == found["delta"]
    assert 2 * smaller["epsilon"] < found["epsilon"]
    same = [one for one in found["alternatives"] if one["bound"] == smaller["bound"]]
    assert min(one["epsilon"] for one in same) == smaller["epsilon"]
    whole = api.get("/v1/datasets/data/guarantee").json()
    assert whole["smaller_bound"] == smaller


def test_a_bound_of_more_than_half_is_an_alternative_and_no_more(api: httpx.Client) -> None:
    start(api, event(0, 1000, sampling=POISSON), neighboring_relation="replace_one")
    found = api.get("/v1/runs/run/guarantee").json()
    assert found["alternatives"]
    assert found["smaller_bound"] is None


def test_an_accepted_bound_is_the_headline_and_none_is_smaller(api: httpx.Client) -> None:
    accept = ["published", "declared", "derived"]
    start(api, event(0, 1000, sampling=TIGHT_CAP), accept=accept)
    found = api.get("/v1/runs/run/guarantee").json()
    assert found["bound"] == "truncated-poisson-gaussian"
    assert found["smaller_bound"] is None


@pytest.mark.parametrize("sampling", [TIGHT_CAP, DRAWS])
def test_a_delta_that_is_asked_for_has_a_smaller_one_beside_it(
    api: httpx.Client, sampling: Json
) -> None:
    start(api, event(0, 100, sampling=sampling))
    least = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).json()
    asked = {"epsilon": 1.01 * least["smaller_bound"]["epsilon"]}
    found = api.get("/v1/runs/run/guarantee", params=asked).json()
    assert found["delta"] is None or 2 * found["smaller_bound"]["delta"] < found["delta"]
    assert found["smaller_bound"]["status"] == "derived"


def test_a_plan_and_the_planner_name_the_smaller_bound(api: httpx.Client) -> None:
    plan = {
        "neighboring_relation": "replace_special", "dataset_size": 60000, "delta": 1e-5,
        "events": [event(0, 1000, sampling=WEIGHTED)],
    }  # fmt: skip
    found = api.post("/v1/plan", json=plan).json()
    assert found["smaller_bound"]["bound"] == "non-uniform-gaussian-rdp"
    given = {"sampling": "with_replacement", "neighboring_relation": "add_or_remove_one"}
    answer = api.get("/planner/answer.json", params=given).json()
    assert "less than half" in answer["smaller_text"]
    assert "derived" in answer["smaller_text"]
    page = api.get("/planner/answer", params=given).text
    assert answer["smaller_text"].split(" ", 1)[0] in page
    assert "less than half" in page
    assert "less than half" not in api.get("/planner").text


def test_the_pages_of_run_and_dataset_name_the_smaller_bound(api: httpx.Client) -> None:
    start(api, event(0, 1000, sampling=TIGHT_CAP))
    smaller = api.get("/v1/runs/run/guarantee").json()["smaller_bound"]
    for path in (
        "/runs/run/guarantee",
        "/datasets/data/proved?delta=1e-05",
        "/datasets/data/report",
    ):
        page = api.get(path, headers=AS_ADMIN).text
        assert smaller["bound"] in page
        assert up(smaller["epsilon"]) in page
        assert "less than half" in page


def test_the_command_line_names_the_smaller_bound(
    api: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api, event(0, 1000, sampling=TIGHT_CAP))
    ledger = tmp_path / "ledger.json"
    ledger.write_bytes(api.get("/v1/runs/run/ledger").content)
    result = CliRunner().invoke(app, ["epsilon", str(ledger), "--delta", "1e-5"])
    assert result.exit_code == 0
    assert "truncated-poisson-gaussian proves epsilon" in result.stdout
    assert "It is derived" in result.stdout


def test_the_client_warns_of_the_smaller_bound(
    address: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    with Client(address) as client:
        client.create_dataset(
            "data",
            dataset_size=60000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="example",
            budget={"epsilon": 1e6, "delta": 1e-5},
        )
        with client.start_run("run", "data") as run:
            run.step(mechanism=GAUSSIAN, sampling=TIGHT_CAP)
            with caplog.at_level(logging.WARNING, logger="dpledger_client"):
                found = run.guarantee()
    assert found["smaller_bound"]["bound"] == "truncated-poisson-gaussian"
    (record,) = caplog.records
    assert repr(found["smaller_bound"]["epsilon"]) in record.getMessage()


def test_an_append_looks_for_no_smaller_bound(api: httpx.Client) -> None:
    start(api, event(0, 10, sampling=TIGHT_CAP))
    reply = append(api, event(10, 10, sampling=TIGHT_CAP)).json()
    assert reply["guarantee"]["smaller_bound"] is None
