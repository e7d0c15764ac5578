"""The Python of the guide and of the client's page runs, block by block, against a service.

ELSEWHERE names the blocks that do not run here, and why.
What a block uses and does not define is given: a model, a training function, an open client.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import dpledger_client as dp
import pytest

from benchmarks.servers import START_TOKEN
from deploy.release.session import blocks

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = {page.stem: page for page in sorted((ROOT / "docs" / "guide").glob("*.md"))} | {
    "client": ROOT / "client" / "README.md"
}
Place = tuple[str, int]  # a page, and the number of a Python block in it
OPACUS: Final = "needs Opacus: tests/integrations/opacus"
# Why a block is not run here, and where what it shows is tested.
ELSEWHERE: Final[dict[Place, str]] = {
    ("client", 2): "needs PyTorch: tests/integrations/opacus",
    ("client", 3): "needs PyTorch: tests/integrations/opacus",
    ("client", 4): "needs PyTorch: tests/integrations/opacus",
    ("first-hour-researcher", 0): "typed literally: tests/integrations/opacus",
    ("first-hour-researcher", 1): "typed literally: tests/integrations/opacus",
    ("jobs", 0): "of a job that was started: tests/client/test_reserved_runs.py",
    ("sampling", 0): "needs PyTorch: tests/integrations/opacus",
    ("streams", 0): "tests/service/test_webhook_settings.py",
    ("telemetry", 0): "needs an instrumentor of OpenTelemetry that trainers install; not tested",
    ("trainers", 0): OPACUS,
    ("trainers", 1): OPACUS,
    ("trainers", 2): "needs Transformers: tests/integrations/transformers",
    ("trainers", 3): "needs Transformers: tests/integrations/transformers",
    ("trainers", 4): "needs Lightning: tests/integrations/lightning",
    ("trainers", 5): "needs JAX-Privacy: tests/integrations/jax",
    ("trainers", 6): "needs JAX-Privacy: tests/integrations/jax",
    ("trainers", 7): "needs Flower: tests/integrations/flower",
    ("trainers", 8): "needs MLflow: tests/integrations/mlflow",
    ("trainers", 9): OPACUS,
}
PYTHON: Final[dict[Place, str]] = {
    (name, number): code
    for name, page in PAGES.items()
    for number, code in enumerate(
        code for language, code in blocks(page.read_text("utf-8")) if language == "python"
    )
}


@pytest.fixture
def client(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dp.Client]:
    monkeypatch.setenv("DPLEDGER_URL", address)
    monkeypatch.setenv("DPLEDGER_API_KEY", START_TOKEN)
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    opened: list[dp.Client] = []
    plain = dp.Client

    def opening(*given: Any, **named: Any) -> dp.Client:
        opened.append(plain(*given, **named))
        return opened[-1]

    monkeypatch.setattr(dp, "Client", opening)
    monkeypatch.setattr("dpledger_client.client.Client", opening)  # that of dp.start_run
    yield opening()
    for one in opened:  # a script leaves it to its end
        one.close()


def done(page: str, number: int, **given: Any) -> dict[str, Any]:
    """What is defined after a block of a page ran with given names."""
    names = {"dpledger_client": dp, "dp": dp} | given
    exec(compile(PYTHON[page, number], f"{page}.md, block {number}", "exec"), names)  # noqa: S102
    return names


def test_the_best_trial_of_a_sweep_is_released(client: dp.Client) -> None:
    planned = done("selection", 1)
    assert planned["plan"]["epsilon"] < 4.0
    released: list[str] = []
    done(
        "selection",
        0,
        new_model=lambda: "a model",
        noisy_step=lambda model, learning_rate: None,
        accuracy=lambda model, data: 0.9,
        public_data=(),
        release=released.append,
    )
    assert released == ["a model"]
    assert client.guarantee("sweep-1")["epsilon"] == pytest.approx(planned["plan"]["epsilon"])


def test_a_loop_of_the_clients_page_counts_its_steps(client: dp.Client) -> None:
    client.create_dataset(
        "letters",
        dataset_size=60_000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="patient",
        budget={"epsilon": 1.0, "delta": 1e-5},
    )
    trained: list[int] = []
    run = done("client", 0, loader=range(30), train_on=trained.append)["run"]
    assert (run.next_step, len(trained), client.run(run.name)["state"]) == (30, 30, "finished")
    trained.clear()
    declared = {"mechanism": dp.gaussian(noise_multiplier=8.0), "sampling": dp.full()}
    run = done("client", 1, loader=range(10**6), train_on=trained.append, declared=declared)["run"]
    assert 0 < run.next_step == len(trained) < 10**6
    assert client.run(run.name)["state"] == "stopped_at_budget"


def test_sizes_of_poisson_batches_refute_nothing_and_those_of_a_shuffle_do() -> None:
    coins = random.Random(7)
    drawn = [[0] * round(coins.gauss(256, 16)) for _ in range(50)]
    trained: list[list[int]] = []
    done("client", 5, batches=drawn, train_on=trained.append)
    assert len(trained) == 50
    with pytest.raises(RuntimeError, match="does not sample as declared"):
        done("client", 5, batches=[[0] * 256] * 50, train_on=trained.append)


def test_an_audit_is_compared_with_the_guarantee(client: dp.Client) -> None:
    client.create_dataset(
        "scans",
        dataset_size=60_000,
        neighboring_relation="add_or_remove_one",
        privacy_unit="patient",
        budget={"epsilon": 8.0, "delta": 1e-5},
    )

    def train(run: dp.Run, canaries: list[int]) -> None:
        assert 350 < len(canaries) < 650
        run.step(mechanism=dp.gaussian(noise_multiplier=1.0), sampling=dp.full())

    names = done("audits", 0, client=client, train=train, canaries=range(1000), score=float)
    assert names["found"]["compared"]["contradicts"] is False


def test_four_samplings_are_compared(client: dp.Client) -> None:
    found = done("planning", 0)["found"]
    assert len(found) == 4
    assert all(answer["epsilon"] > 0 for answer in found.values())


def test_every_block_is_run_or_says_why_not() -> None:
    called = re.findall(r'done\(\s*"([\w-]+)",\s*(\d)', Path(__file__).read_text("utf-8"))
    run = {(page, int(number)) for page, number in called}
    assert run.isdisjoint(ELSEWHERE)
    assert run | set(ELSEWHERE) == set(PYTHON)
