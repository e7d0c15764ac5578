"""The calls of a client that create, plan, explain and certify, against the real service."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client, event, full, gaussian, poisson

from benchmarks.servers import START_TOKEN
from service.transparency.certificates.verify import verify_bytes
from service.transparency.signing import Signer

DPSGD = event(
    mechanism=gaussian(noise_multiplier=1.1), sampling=poisson(sampling_probability=0.004), steps=90
)


@pytest.fixture
def client(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    with Client(address) as client:
        yield client


def create(client: Client, **given: Any) -> None:
    client.create_dataset(
        "data",
        **{
            "dataset_size": 60000,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
            **given,
        },
    )


def test_a_dataset_is_created_for_a_training(client: Client) -> None:
    made = client.create_dataset(
        "data", dataset_size=60000, neighboring_relation="add_or_remove_one",
        privacy_unit="example", budget={"epsilon": 1.0, "delta": 1e-5}, for_events=[DPSGD],
    )  # fmt: skip
    assert made.budget is not None
    assert made.budget.order == 12.0
    assert made.would_admit is not None
    assert made.would_admit[0].name == "small batches"


def test_a_dataset_is_created_with_orders_and_what_was_spent_before(client: Client) -> None:
    create(
        client, budget={"epsilon": 3.0, "delta": 1e-5}, filter="fixed_order_renyi", orders=[8.0],
        opening_balance=[DPSGD],
    )  # fmt: skip
    found = client.dataset("data")
    assert found.budget is not None
    assert found.budget.order == 8.0
    assert found.budget.share is not None
    assert found.budget.share > 0
    assert client.dataset_guarantee("data").steps == 90


def test_a_part_of_a_dataset_has_rows_of_its_parent(client: Client) -> None:
    create(client)
    part = client.create_dataset(
        "part", dataset_size=1000, neighboring_relation="add_or_remove_one", privacy_unit="row",
        parents=["data"], rows_per_parent_record=3,
    )  # fmt: skip
    assert part.rows_per_parent_record == {"at_most": 3}
    one = client.create_dataset(
        "one", dataset_size=9, neighboring_relation="add_or_remove_one", privacy_unit="example",
        parents=["data"], rows_per_parent_record=1,
    )  # fmt: skip
    assert one.rows_per_parent_record == "at_most_one"


def test_a_filter_needs_a_budget(client: Client) -> None:
    with pytest.raises(ValueError, match="envelope: give the budget"):
        create(client, envelope=[DPSGD])


def test_a_plan_becomes_the_envelope_of_a_dataset(client: Client) -> None:
    plan = client.plan(
        neighboring_relation="add_or_remove_one", events=[DPSGD], delta=1e-5, as_envelope=True
    )
    assert plan.envelope is not None
    create(client, budget=plan.envelope)
    budget = client.dataset("data").budget
    assert budget is not None
    assert budget.envelope is not None
    assert budget.envelope[0].allowed == budget.remaining_steps == 90


def test_a_parameter_is_calibrated(client: Client) -> None:
    solved = client.calibrate(
        solve_for="noise_multiplier", epsilon=0.1, delta=1e-5,
        neighboring_relation="add_or_remove_one", events=[DPSGD],
    )  # fmt: skip
    assert solved.solved is not None
    assert solved.epsilon is not None
    assert solved.epsilon <= 0.1
    assert solved.solved.value > 1.1


def test_who_spent_what_and_what_would_fit(client: Client) -> None:
    create(client, budget={"epsilon": 3.0, "delta": 1e-5})
    with client.start_run(
        "run", "data", mechanism=DPSGD["mechanism"], sampling=DPSGD["sampling"]
    ) as run:
        run.step(steps=90)
    spent = client.explain("data")
    assert [(one.run, one.steps) for one in spent.runs] == [("run", 90)]
    remedies = client.remedies("data", [DPSGD | {"steps": 10**7}])
    assert not remedies.fits
    assert remedies.fewer_steps.value is not None
    assert 0 < remedies.fewer_steps.value < 10**7
    assert remedies.failing_scopes[0].scope == "dataset:data"


def test_a_certificate_is_saved_in_the_form_that_is_signed(
    serve: Callable[..., AbstractContextManager[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    Signer.create(tmp_path / "key")
    with (
        serve(signing_key_file=tmp_path / "key") as address,
        Client(address, START_TOKEN) as client,
    ):
        create(client, budget={"epsilon": 3.0, "delta": 1e-5})
        noise = gaussian(noise_multiplier=8.0)
        with client.start_run("run", "data", mechanism=noise, sampling=full()) as run:
            run.step()
        signed = client.certificate("run", model_sha256="0" * 64)
        assert client.dataset_certificate("data").certificate.statements
    assert signed.certificate.model_sha256 == "0" * 64
    signed.save(tmp_path / "certificate.json")
    content = (tmp_path / "certificate.json").read_bytes()
    assert verify_bytes(content, public_key=signed.public_key).pinned
