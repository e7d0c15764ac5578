"""Findings on the wire and in ledger documents: every field has its range, and a place."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.schemas.findings import SEEN_MAX, NewFinding
from service.schemas.ledger_document import LedgerDocument
from tests.service.dumps import dump
from tests.service.samples import (
    BATCH_SIZES,
    POISSON,
    RANK,
    SAMPLING,
    Json,
    append,
    event,
    run,
    setup,
)

URL = "/v1/runs/run/findings"
FINDING: TypeAdapter[Any] = TypeAdapter(NewFinding)
CONTRADICTED = SAMPLING | {"status": "contradicted"}
LONG = "x" * 501

TAKEN: list[Json] = [
    SAMPLING | {"from_step": 10**12},
    SAMPLING | {"seen": {}},
    SAMPLING | {"seen": {f"a{n}": n for n in range(SEEN_MAX)}},
    SAMPLING | {"seen": {"x" * 64: "y" * 200}},
    SAMPLING | {"seen": {"a": 10**15, "b": -(10**15), "c": -1e15, "d": "", "e": True}},
    SAMPLING | {"reason": LONG[1:]},
    SAMPLING | {"declared": None},
    CONTRADICTED | {"recorded": {"kind": "unknown"}},
    # What was declared may be impossible: that is what contradicts it.
    CONTRADICTED | {"declared": {"kind": "fixed_size", "batch_size": 10**9}},
    RANK | {"world_size": 1},
    RANK | {"world_size": 100_000, "rank": 99_999},
    BATCH_SIZES | {"level": 5e-324},
    BATCH_SIZES | {"level": 0.999},
]
REFUSED: list[tuple[Json, str]] = [
    ({"kind": "seed"}, "body"),
    ({}, "body"),
    (CONTRADICTED | {"declared": None}, "body"),
    (SAMPLING | {"from_step": -1}, "body.from_step"),
    (SAMPLING | {"from_step": 10**12 + 1}, "body.from_step"),
    (SAMPLING | {"sizes": [1]}, "body.sizes"),
    (SAMPLING | {"declared": {"kind": "poisson", "sampling_probability": 2.0}},
     "body.declared.sampling_probability"),
    (SAMPLING | {"recorded": {"kind": "fixed_size", "batch_size": 0}}, "body.recorded.batch_size"),
    (SAMPLING | {"recorded": {"kind": "fixed_size", "batch_size": 60001}},
     "body.recorded.batch_size"),
    (SAMPLING | {"recorded": POISSON | {"batch_size": 1}}, "body.recorded.batch_size"),
    (SAMPLING | {"seen": {f"a{n}": n for n in range(SEEN_MAX + 1)}}, "body.seen"),
    (SAMPLING | {"seen": {"a": "y" * 201}}, "body.seen.a"),
    (SAMPLING | {"seen": {"a": "b\nc"}}, "body.seen.a"),
    (SAMPLING | {"seen": {"a": 10**15 + 1}}, "body.seen.a"),
    (SAMPLING | {"seen": {"a": 1.1e15}}, "body.seen.a"),
    (SAMPLING | {"seen": {"a": None}}, "body.seen.a"),
    (SAMPLING | {"seen": {"a": [1, 2, 3]}}, "body.seen.a"),
    (SAMPLING | {"reason": LONG}, "body.reason"),
    (SAMPLING | {"reason": "two\nlines"}, "body.reason"),
    (RANK | {"rank": -1}, "body.rank"),
    (RANK | {"rank": 2}, "body.rank"),
    (RANK | {"rank": True}, "body.rank"),
    (RANK | {"world_size": 0}, "body.world_size"),
    (RANK | {"world_size": 100_001}, "body.world_size"),
    (RANK | {"fingerprint": "a" * 63}, "body.fingerprint"),
    (RANK | {"fingerprint": "A" * 64}, "body.fingerprint"),
    (RANK | {"fingerprint": "a" * 64 + "\n"}, "body.fingerprint"),
    (BATCH_SIZES | {"level": 0.0}, "body.level"),
    (BATCH_SIZES | {"level": 1.0}, "body.level"),
    (BATCH_SIZES | {"verdict": "fits"}, "body.verdict"),
    (BATCH_SIZES | {"evidence": 7.5}, "body.evidence"),
]  # fmt: skip


def test_a_finding_is_taken_up_to_the_ends_of_every_range(api: httpx.Client) -> None:
    setup(api)
    for finding in TAKEN[:-1]:
        answer = api.post(URL, json=finding)
        assert answer.status_code == 201, (finding, answer.text)
        assert {name: answer.json()[name] for name in finding} == finding
    assert api.post(URL, json=TAKEN[-1]).status_code == 409  # the second verdict is one too many
    assert FINDING.validate_python(TAKEN[-1]).level == 0.999


def test_a_finding_beyond_a_range_is_refused_at_its_place(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    before = dump(engine)
    for finding, location in REFUSED:
        answer = api.post(URL, json=finding)
        assert answer.status_code == 422, finding
        places = [fault["location"] for fault in answer.json()["errors"]]
        assert places == [location], finding
    assert dump(engine) == before


def test_what_was_seen_keeps_its_type() -> None:
    seen = {"a": True, "b": 1, "c": 1.0, "d": "x", "e": -0.0}
    kept = FINDING.validate_python(SAMPLING | {"seen": seen}).seen
    assert [type(value) for value in kept.values()] == [bool, int, float, str, float]
    assert json.dumps(kept["e"]) == "0.0"


def ledger(api: httpx.Client) -> Json:
    document: Json = api.get("/v1/runs/run/ledger").json()
    return document


def test_a_ledger_document_has_its_findings_and_none_where_there_are_none(
    api: httpx.Client,
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    api.post("/v1/runs", json=run("other"))
    assert api.post("/v1/runs/other/findings", json=RANK).status_code == 201
    assert "findings" not in ledger(api)
    sent = [CONTRADICTED, RANK, BATCH_SIZES]
    for finding in sent:
        assert api.post(URL, json=finding).status_code == 201
    document = ledger(api)
    assert document["findings"] == sent
    read = LedgerDocument.model_validate(document)
    again = [one.model_dump(mode="json", exclude_none=True) for one in read.findings]
    assert again == sent


@pytest.fixture
def epsilon(tmp_path: Path) -> Callable[..., Result]:
    """`dpledger epsilon` of a document."""

    def command(document: Json, *words: str) -> Result:
        file = tmp_path / "ledger.json"
        file.write_text(json.dumps(document), encoding="utf-8")
        result: Result = CliRunner().invoke(app, ["epsilon", str(file), "--delta", "1e-5", *words])
        return result

    return command


def test_the_command_line_reads_a_document_with_findings_and_hides_none(
    api: httpx.Client, epsilon: Callable[..., Result]
) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 10))
    without = ledger(api)
    for finding in (SAMPLING, RANK, BATCH_SIZES):
        api.post(URL, json=finding)
    plain, told = epsilon(without), epsilon(ledger(api))
    assert told.exit_code == 0
    assert told.stdout == (
        plain.stdout + "outside this guarantee: the verdict on the batch sizes of main\n"
    )
    answer = json.loads(epsilon(ledger(api), "--json").stdout)
    served = api.get("/v1/runs/run/guarantee").json()
    assert answer["epsilon"] == served["epsilon"]
    assert answer["outside_guarantee"] == served["outside_guarantee"] != []


@pytest.mark.parametrize(
    ("malformed", "place"),
    [(RANK | {"rank": 7}, "findings[1].rank"), ({"kind": "rumour"}, "findings[1]"),
     (SAMPLING | {"recorded": {"kind": "poisson", "sampling_probability": 7}},
      "findings[1].recorded.sampling_probability"),
     (BATCH_SIZES | {"sizes": [1]}, "findings[1].sizes")],
)  # fmt: skip
def test_a_document_with_a_malformed_finding_is_refused(
    epsilon: Callable[..., Result], malformed: Json, place: str
) -> None:
    document = {
        "format": "dpledger/1",
        "neighboring_relation": "replace_one",
        "events": [event(0, 1)],
        "findings": [RANK, malformed],
    }
    refused = epsilon(document)
    assert refused.exit_code == 2
    assert f"ledger.json: {place}: " in refused.stderr
    with pytest.raises(ValidationError):
        LedgerDocument.model_validate(document)
