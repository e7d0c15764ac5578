"""The calls of the Airflow example, without Airflow, against a real ledger on both databases."""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import dpledger_client as dp
import httpx
import pytest

from tests.conftest import AS_ADMIN

PATH = Path(__file__).parents[2] / "examples" / "airflow" / "budget_dag.py"


class RefusedError(Exception):
    """In place of AirflowFailException."""


def decorated(*given: Any, **_: Any) -> Any:
    """In place of dag and task: nothing is run."""
    return (lambda *_: None) if given else (lambda _: lambda *_: None)


@pytest.fixture
def example(address: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    sdk, exceptions = ModuleType("airflow.sdk"), ModuleType("airflow.sdk.exceptions")
    vars(sdk).update(dag=decorated, task=decorated, get_current_context=dict, teardown=decorated)
    vars(exceptions).update(AirflowFailException=RefusedError)
    for module in (ModuleType("airflow"), sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("DPLEDGER_URL", address)
    monkeypatch.setenv("DPLEDGER_API_KEY", AS_ADMIN["Authorization"].removeprefix("Bearer "))
    spec = importlib.util.spec_from_file_location("budget_dag", PATH)
    assert spec is not None and spec.loader is not None  # noqa: PT018 - of one thing
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def create(address: str) -> Iterator[Callable[[float], dp.Client]]:
    client = dp.Client(address)

    def create(epsilon: float) -> dp.Client:
        client.create_dataset(
            "letters",
            dataset_size=60_000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="letter",
            budget={"epsilon": epsilon, "delta": 1e-6},
        )
        return client

    yield create
    client.close()


def test_a_dag_run_reserves_once_and_returns_the_rest(
    example: ModuleType, create: Callable[[float], dp.Client], tmp_path: Path
) -> None:
    client = create(2.0)
    reserved = example.reserve("manual-1")
    assert example.reserve("manual-1") == reserved
    listed = client._transport.get("/v1/datasets/letters/reservations")["reservations"]
    assert [one["steps"] for one in listed] == [600]
    taken = client.start_run(None, "letters", reserved=reserved, spool=tmp_path)
    with contextlib.suppress(ZeroDivisionError), taken as run:
        run.step(mechanism=example.STEPS["mechanism"], sampling=example.STEPS["sampling"])
        raise ZeroDivisionError  # the training fails
    example.release("manual-1")
    assert client._transport.get("/v1/datasets/letters/reservations")["reservations"] == []
    assert client.run(json.loads(reserved)["name"])["state"] == "aborted"
    with pytest.raises(RefusedError, match="has ended"):
        example.reserve("manual-1")
    example.release("never-registered")


def test_a_refusal_has_the_text_of_the_problem(
    example: ModuleType, create: Callable[[float], dp.Client]
) -> None:
    client = create(0.5)
    with pytest.raises(RefusedError, match="do not fit in the budget"):
        example.reserve("manual-2")
    everything = client._transport.get("/v1/datasets/letters/reservations", state="all")
    assert everything["reservations"] == []


def test_without_an_answer_it_may_be_tried_again(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPLEDGER_API_KEY", "dpl_none")
    with pytest.raises(httpx.HTTPStatusError):
        example.reserve("manual-3")
    monkeypatch.setenv("DPLEDGER_URL", "http://127.0.0.1:9")
    with pytest.raises(httpx.ConnectError):
        example.reserve("manual-3")
