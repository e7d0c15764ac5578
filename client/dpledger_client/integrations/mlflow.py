"""MLflow: what a run has spent, as metrics and tags beside its other ones.

    with mlflow.start_run(), dpledger_client.start_run(...) as run, Mirror(run):
        ...

Everything is said by a thread of its own: training waits for it only at the end, and not for long.
"""

import time
from collections.abc import Mapping
from typing import Final

import mlflow
from mlflow.entities import Metric, RunTag

from dpledger_client.training.mirror import EVERY_STEPS, WAIT_SECONDS, TrackerMirror
from dpledger_client.training.run import Run

_NANOSECONDS: Final = 1_000_000  # of a millisecond


def log(run: Run, mlflow_run_id: str | None = None, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Say once, as of now, what a run has spent. An MLflow that is away is only warned of.

    Args:
        run: of the ledger. Only rank 0 says anything.
        mlflow_run_id: by default that of the active MLflow run.
        wait_seconds: how long to wait for MLflow; after that it goes on by itself.

    Raises:
        ValueError: no MLflow run is active, and none was given.
    """
    Mirror(run, mlflow_run_id=mlflow_run_id, wait_seconds=wait_seconds).close()


class Mirror(TrackerMirror):
    """Says what a run has spent while it trains, and once more at the end of the block.

    Metrics, at the number of steps that they cover: `dpledger.epsilon` and `dpledger.epsilon_lower`
    (nats), `dpledger.delta`, and with a budget `dpledger.budget.epsilon`, `.spent`, `.reserved` and
    `.remaining`. Tags: `dpledger.run`, `.dataset`, `.url`, `.sampling_status` and `.core_version`.
    Batch sizes, and what follows from them, are never among them.

    Args:
        run: of the ledger. Only rank 0 says anything.
        every_steps: how many steps lie between two points of a metric at least, >= 1.
        mlflow_run_id: by default that of the active MLflow run.
        wait_seconds: how long `close` waits for MLflow.

    Raises:
        ValueError: an argument is out of range, or no MLflow run is active and none was given.
    """

    def __init__(
        self,
        run: Run,
        *,
        every_steps: int = EVERY_STEPS,
        mlflow_run_id: str | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        # Which run is active is known to this thread only, and where MLflow is may change.
        self._mlflow_run_id = mlflow_run_id or _active()
        self._mlflow = mlflow.MlflowClient()
        super().__init__(run, every_steps=every_steps, wait_seconds=wait_seconds, tracker="MLflow")

    def _tell(self, metrics: Mapping[str, float], steps: int, tags: Mapping[str, str]) -> None:
        now = time.time_ns() // _NANOSECONDS
        self._mlflow.log_batch(
            self._mlflow_run_id,
            metrics=[Metric(name, value, now, steps) for name, value in metrics.items()],
            tags=[RunTag(name, text) for name, text in tags.items()],
        )


def _active() -> str:
    active = mlflow.active_run()
    if active is None:
        raise ValueError("No MLflow run is active: start one, or give mlflow_run_id.")
    run_id: str = active.info.run_id
    return run_id
