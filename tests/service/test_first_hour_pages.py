"""What once surprised a reader of the officer's first hour, as pages say it."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from html import unescape
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine
from typer.testing import CliRunner

from service.cli.main import app
from service.formatting import up
from service.identity.keys import Role
from service.transparency.signing import Signer
from tests.service.browsing import make_key
from tests.service.certifying import signing
from tests.service.samples import BUDGET, POISSON, SAMPLING, Json, append, dataset, event, setup
from tests.service.test_dataset_page import page, words

PLANNED: Json = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 3.25},
    "sampling": {"kind": "poisson", "expected_batch_size": 300},
    "steps": 700,
}


@pytest.mark.parametrize(
    "given",
    [
        {"budget": BUDGET, "for": {"events": [PLANNED]}},
        {"budget": BUDGET | {"filter": "envelope", "envelope": [PLANNED]}},
    ],
    ids=["one order", "envelope"],
)
def test_a_new_dataset_begins_with_the_training_that_it_is_for(
    api: httpx.Client, given: Json
) -> None:
    made = api.post("/v1/datasets", json=dataset(**given))
    assert made.status_code == 201, made.text
    text = words(page(api))
    assert "gaussian(noise_multiplier=3.25), sampling=dpledger_client.poisson(" in text
    assert "expected_batch_size=300)" in text
    assert "One more training with batches of 300 out of 60,000 records" in text
    assert "noise 3.25 planned" in text
    assert "noise 3.25 planned nothing" not in text


def test_any_other_dataset_begins_with_a_usual_training(api: httpx.Client) -> None:
    loader = PLANNED | {"sampling": {"kind": "full"}}
    asked: Json = {"budget": BUDGET, "for": {"events": [loader]}}
    made = api.post("/v1/datasets", json=dataset(**asked))
    assert made.status_code == 201, made.text
    text = words(page(api))
    assert "gaussian(noise_multiplier=1.1)" in text
    assert "with batches of 256" in text
    assert "planned" not in text


def test_a_certificate_has_the_policy_of_its_own_style(database_url: str, tmp_path: Path) -> None:
    signer = Signer.load_or_create(tmp_path / "key")
    with signing(database_url, signer) as api:
        setup(api, dataset_given={"budget": BUDGET})
        append(api, event(0, 1, sampling=POISSON))
        for path in ("datasets/data", "runs/run"):
            answer = api.get(f"/{path}/certificate?format=html")
            assert answer.status_code == 200, answer.text
            policy = answer.headers["Content-Security-Policy"]
            assert "sha256" in policy
            plain = api.get(f"/v1/{path}/certificate?format=html")
            assert policy == plain.headers["Content-Security-Policy"]
            assert answer.headers["X-Frame-Options"] == "DENY"
        assert "sha256" not in api.get("/datasets/data").headers["Content-Security-Policy"]


@pytest.mark.parametrize("budget", [BUDGET, None], ids=["limited", "without a limit"])
def test_a_datasets_page_offers_the_certificate_that_can_be_checked(
    database_url: str, tmp_path: Path, budget: Json | None
) -> None:
    signer = Signer.load_or_create(tmp_path / "key")
    with signing(database_url, signer) as api:
        setup(api, dataset_given={"budget": budget})
        append(api, event(0, 1, sampling=POISSON))
        text = api.get("/datasets/data").text
        link = re.search(r'href="([^"]*)" download="data.certificate.json"', text)
        assert link
        answer = api.get(unescape(link[1]), headers={"accept": "text/html"})
        assert answer.status_code == 200, answer.text
        file = tmp_path / "certificate.json"
        file.write_bytes(answer.content)
        pinned = ["--public-key", signer.public_key]
        assert CliRunner().invoke(app, ["verify", str(file), *pinned]).exit_code == 0
        assert "Certificate (HTML)" in text


def test_a_corrected_run_does_not_call_its_recorded_charge_the_whole(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100, sampling=POISSON))
    assert "It holds however the steps were chosen." in words(api.get("/runs/run/guarantee").text)
    body = event(0, 50, sampling={"kind": "full"}) | {"reason": "all records"}
    assert api.post("/v1/runs/run/corrections", json=body).status_code == 201
    text = words(api.get("/runs/run/guarantee").text)
    assert "Without what corrections added" in text
    assert "It holds however the steps were chosen." not in text


def test_a_quick_epsilon_counts_corrections(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 100, sampling=POISSON))
    quick = up(api.get("/v1/datasets/data/explain?delta=1e-5").json()["epsilon"])
    assert f'<p class="headline">{quick}</p>' in page(api)
    assert "the first correction" not in page(api)
    body = event(0, 50, sampling={"kind": "full"}) | {"reason": "all records"}
    assert api.post("/v1/runs/run/corrections", json=body).status_code == 201
    certified = api.get("/v1/datasets/data/guarantee?delta=1e-5").json()["epsilon"]
    larger = api.get("/v1/datasets/data/explain?delta=1e-5").json()["epsilon"]
    assert larger >= certified > 2 * float(quick)
    assert f'<p class="headline">{up(larger)}</p>' in page(api)
    assert "from the time of the first correction on" in page(api)


def test_a_contradicted_run_says_what_a_correction_may_cost(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100, sampling=POISSON))
    found = SAMPLING | {"status": "contradicted", "recorded": {"kind": "full"}}
    assert api.post("/v1/runs/run/findings", json=found).is_success
    text = words(api.get("/runs/run").text)
    assert "A correction cannot be withdrawn" in text
    assert "for some samplings no finite ε is proved" in text


def test_an_order_is_not_praised_by_steps_that_were_corrected(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"epsilon": 1.0, "orders": [12.0]}})
    noise, sampling = PLANNED["mechanism"] | {"noise_multiplier": 1.1}, POISSON
    append(api, event(0, 1000, mechanism=noise, sampling=sampling))
    assert api.get("/v1/datasets/data/explain").json()["order_advice"]
    louder = event(0, 5, mechanism=noise | {"noise_multiplier": 0.9}, sampling=sampling)
    sent = louder | {"reason": "the log"}
    assert api.post("/v1/runs/run/corrections", json=sent).status_code == 201
    assert api.get("/v1/datasets/data/explain").json()["order_advice"] is None
    assert "what corrections added is drawn as a part of each" in words(page(api))


def test_who_signs_in_after_the_first_key_is_asked_for_a_key(
    serve: Callable[..., AbstractContextManager[str]],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve() as address, httpx.Client(base_url=address) as api:
        assert "No API key exists yet" in api.get("/sign-in").text
        make_key(engine, "dana", Role.ADMIN)  # as the command line does, beside the service
        monkeypatch.setattr("service.identity.authentication.KEY_REFRESH_SECONDS", 0.0)
        text = api.get("/sign-in").text
    assert "No API key exists yet" not in text
    assert "API key" in text
