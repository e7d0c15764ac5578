"""No budget, no training: an Airflow DAG whose first task is one HTTP call to dpledger.

The call registers the run with its plan and budget, which reserves all steps of the plan; a
refusal fails the task at once, with the problem's text, so that the training never starts. Without
an answer the task is retried: the same request reserves once. The training task gets the request
from XCom, and `start_run(None, ..., reserved=...)` takes what was reserved. The last task ends the
run, however the training ended, which returns what was not used. It is a teardown: a DAG run whose
training failed, or was refused, has failed, though its last task has not.

It needs DPLEDGER_URL and DPLEDGER_API_KEY in the environment of the workers, httpx in Airflow's
environment, and train.py, with what it imports, beside this file.
"""

import hashlib
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from airflow.sdk import dag, get_current_context, task, teardown
from airflow.sdk.exceptions import AirflowFailException

DATASET = "letters"
BUDGET = {"epsilon": 2.0, "delta": 1e-6}  # of one run
STEPS = {
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.0},
    "sampling": {"kind": "poisson", "sampling_probability": 0.005},
    "steps": 600,
}
LATER = (401, 408, 429)  # beside those of a server: a later request may be answered otherwise


def request_of(dag_run: str) -> dict[str, Any]:
    """The request that registers the run of a DAG run: a retry sends the same one."""
    digest = hashlib.sha256(f"dpledger airflow {dag_run}".encode()).hexdigest()
    return {
        "name": f"airflow-{digest[:24]}",
        "writer": digest,
        "dataset": DATASET,
        "delta": BUDGET["delta"],
        "plan": [STEPS],
        "budget": BUDGET,
        "labels": {"airflow.dag_run": dag_run},
    }


def post(path: str, content: dict[str, Any], *, accepted: tuple[int, ...] = ()) -> dict[str, Any]:
    """The answer of dpledger to one call; that of a refusal with an accepted status, too.

    Raises:
        AirflowFailException: it refuses; a retry would be refused, too.
        httpx.HTTPError: there is no answer that says yes or no; Airflow retries.
    """
    headers = {"Authorization": f"Bearer {os.environ['DPLEDGER_API_KEY']}"}
    response = httpx.post(
        os.environ["DPLEDGER_URL"] + path, json=content, headers=headers, timeout=60.0
    )
    status = response.status_code
    if status >= 500 or status in LATER or 300 <= status < 400:
        response.raise_for_status()
    answer: dict[str, Any] = response.json()
    if status >= 400 and status not in accepted:
        raise AirflowFailException(f"{answer['title']}. {answer.get('detail', '')}")
    return answer


def reserve(dag_run: str) -> str:
    """Register the run of a DAG run, which reserves its plan; the request, for the training.

    Raises:
        AirflowFailException: it does not fit, or what was reserved was returned.
        httpx.HTTPError: there is no answer.
    """
    request = request_of(dag_run)
    answer = post("/v1/runs", request)
    if answer["state"] != "active" or not answer["on_plan"]:
        raise AirflowFailException(f"Run {request['name']} has ended: start a new DAG run.")
    return json.dumps(request)


def release(dag_run: str) -> None:
    """End the run, unless the training did (409) or it was never registered (404)."""
    ended = {"state": "aborted", "reason": "Airflow: the DAG run has ended"}
    post(f"/v1/runs/{request_of(dag_run)['name']}:finish", ended, accepted=(404, 409))


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args={"retries": 5, "retry_delay": timedelta(minutes=1)},
)
def train_with_budget() -> None:
    """Reserve, train, and return what was not used."""

    @task
    def reserve_budget() -> str:
        return reserve(get_current_context()["run_id"])

    @task.bash(
        env={"DPLEDGER_RUN": "{{ ti.xcom_pull('reserve_budget') }}"},
        append_env=True,
        cwd=str(Path(__file__).parent),
    )
    def train() -> str:
        return 'python train.py  # start_run(None, "letters", reserved=..., resume="allow")'

    @teardown
    def return_rest() -> None:
        release(get_current_context()["run_id"])

    reserve_budget() >> train() >> return_rest()


train_with_budget()
