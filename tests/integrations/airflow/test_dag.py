"""The example for Airflow as Airflow runs it: `dag.test()`, without a scheduler."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from dpledger_client import Client

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "airflow" / "budget_dag.py"
STEPS: Final = 30
SECONDS: Final = 300
# A script of the example's training: it fails if FAILS is set.
TRAIN: Final = f"""
import os
import dpledger_client as dp
step = {{
    "mechanism": dp.gaussian(noise_multiplier=1.0),
    "sampling": dp.poisson(sampling_probability=0.005),
}}
reserved = os.environ["DPLEDGER_RUN"]
with dp.start_run(None, DATASET, reserved=reserved, resume="allow", **step) as run:
    for _ in range({STEPS} - run.next_step):
        run.step()
        if run.next_step == 10 and "FAILS" in os.environ:
            raise SystemExit("it fails")
"""
# The retries wait for minutes.
RUN: Final = """
import json
import budget_dag
dag = budget_dag.train_with_budget()
for task in dag.tasks:
    task.retries = 0
run = dag.test()
states = {task.task_id: str(task.state) for task in run.get_task_instances()}
print("RESULT", json.dumps({"dag": str(run.state), **states}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("airflow")
    words = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(
        words, env=environment(home), check=True, timeout=SECONDS, stdout=subprocess.DEVNULL
    )
    return home


def environment(home: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "PYTHONPATH": str(home / "dags"),
    }


@pytest.fixture
def run(
    home: Path, spool: Path, dataset: Callable[..., str]
) -> Callable[..., tuple[str, dict[str, str]]]:
    """Run the example on a new dataset with a budget; its name, and the states of the tasks."""

    def run(epsilon: float, **given: str) -> tuple[str, dict[str, str]]:
        name = dataset(dataset_size=60_000, budget={"epsilon": epsilon, "delta": 1e-6})
        dags = home / "dags"
        dags.mkdir(exist_ok=True)
        code = EXAMPLE.read_text(encoding="utf-8")
        for old, new in (('"letters"\n', f'"{name}"\n'), ('"steps": 600', f'"steps": {STEPS}')):
            assert code.count(old) == 1
            code = code.replace(old, new)
        (dags / "budget_dag.py").write_text(code, encoding="utf-8")
        (dags / "train.py").write_text(TRAIN.replace("DATASET", repr(name)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-c", RUN],
            env=environment(home) | given, capture_output=True, text=True, timeout=SECONDS,
            check=False,
        )  # fmt: skip
        (line,) = [one for one in done.stdout.splitlines() if one.startswith("RESULT ")] or [""]
        assert line, done.stdout[-4000:] + done.stderr[-4000:]
        return name, json.loads(line.removeprefix("RESULT "))

    return run


def runs_of(client: Client, dataset: str) -> list[tuple[Any, Any]]:
    return [(one["state"], one["steps"]) for one in client.runs(dataset=dataset)]


def test_a_training_takes_what_was_reserved(run: Any, client: Client) -> None:
    dataset, states = run(2.0)
    assert states == dict.fromkeys(("dag", "reserve_budget", "train", "return_rest"), "success")
    assert runs_of(client, dataset) == [("finished", STEPS)]


def test_a_training_that_fails_returns_the_rest_and_fails_the_dag_run(
    run: Any, client: Client
) -> None:
    dataset, states = run(2.0, FAILS="1")
    assert states == {
        "dag": "failed", "reserve_budget": "success", "train": "failed", "return_rest": "success"
    }  # fmt: skip
    assert runs_of(client, dataset) == [("aborted", 10)]
    assert client.dataset(dataset)["reserved"] == 0


def test_a_refusal_starts_no_training_and_fails_the_dag_run(run: Any, client: Client) -> None:
    dataset, states = run(0.01)
    assert (states["dag"], states["reserve_budget"]) == ("failed", "failed")
    assert states["train"] == "upstream_failed"
    assert runs_of(client, dataset) == []
