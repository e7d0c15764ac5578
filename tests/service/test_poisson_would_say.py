"""What Poisson accounting would claim of batches in an order: told, and called not applicable."""

import json
import math
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

import accounting
from accounting.events import NeighboringRelation
from service.schemas.ledger_document import LedgerDocument
from service.schemas.responses import guarantee_answer
from tests.service.samples import POISSON, Json, append, event, setup
from tests.service.test_cli import command

RELATION = NeighboringRelation.REPLACE_SPECIAL
CYCLIC: Json = {
    "kind": "cyclic",
    "batch_size": 600,
    "steps_per_pass": 100,
}  # 600 of 60000: the rate of POISSON
SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
IN_ORDER = pytest.mark.parametrize("sampling", [CYCLIC, SHUFFLE], ids=lambda one: one["kind"])


def document(sampling: Json, steps: int = 300) -> LedgerDocument:
    return LedgerDocument.model_validate(content(sampling, steps))


def content(sampling: Json, steps: int = 300) -> Json:
    return {
        "format": "dpledger/1",
        "neighboring_relation": RELATION.value,
        "dataset_size": 60000,
        "events": [event(0, steps, sampling=sampling)],
    }


def read(api: httpx.Client, path: str) -> Json:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def plan(api: httpx.Client, sampling: Json) -> Json:
    asked = {"neighboring_relation": RELATION, "dataset_size": 60000, "delta": 1e-5}
    answer = api.post("/v1/plan", json=asked | {"events": [event(0, 300, sampling=sampling)]})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


@IN_ORDER
def test_the_claim_stands_beside_every_answer_and_below_it(
    api: httpx.Client, sampling: Json
) -> None:
    setup(api, dataset_given={"neighboring_relation": RELATION}, delta=1e-5)
    append(api, event(0, 300, sampling=sampling))
    found = read(api, "/v1/runs/run/guarantee")
    claimed = found["poisson_would_say"]
    poisson = plan(api, POISSON)
    assert claimed == {"epsilon": pytest.approx(poisson["epsilon"], rel=1e-2), "applicable": False}
    assert claimed["epsilon"] < found["epsilon"]
    assert poisson["poisson_would_say"] is None
    assert plan(api, sampling)["poisson_would_say"] == claimed
    whole = read(api, "/v1/datasets/data/guarantee?delta=1e-5")
    assert whole["poisson_would_say"] == claimed
    assert whole["without_reservations"]["poisson_would_say"] == claimed


@pytest.mark.parametrize("claimed", [None, 0.0, 0.25, math.inf, math.nan])
def test_a_claim_that_json_cannot_hold_is_not_made(claimed: float | None) -> None:
    counts = document(SHUFFLE).counts()
    found = accounting.guarantee(counts, relation=RELATION, delta=1e-5)
    answer = guarantee_answer(replace(found, poisson_would_say=claimed), counts=counts, sequence=0)
    said = json.loads(answer.model_dump_json())["poisson_would_say"]
    finite = claimed is not None and math.isfinite(claimed)
    assert said == ({"epsilon": claimed, "applicable": False} if finite else None)


def shown(file: Path, *words: str) -> str:
    result = command("epsilon", file, "--delta", "1e-5", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


@IN_ORDER
def test_the_command_line_says_it_in_one_line(tmp_path: Path, sampling: Json) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(content(sampling)))
    claimed = json.loads(shown(file, "--json"))["poisson_would_say"]["epsilon"]
    (line,) = [line for line in shown(file).splitlines() if "Poisson" in line]
    words = line.removeprefix("Poisson accounting would say ").split(": ")
    assert words[1:] == ["not applicable to batches taken in turn"]
    assert claimed <= float(words[0]) <= claimed * (1 + 1e-5)


def test_of_poisson_batches_nothing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(content(POISSON)))
    assert "Poisson" not in shown(file)
