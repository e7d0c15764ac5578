"""MLflow: what a run has spent, as metrics and tags beside its other ones.

    with mlflow.start_run(), dpledger_client.start_run(...) as run, Mirror(run):
        ...

Everything is said by a thread of its own: training waits for it only at the end, and not for long.
"""

import math
import time
from threading import Event, Thread
from types import TracebackType
from typing import Any, Final, Self

import mlflow
from mlflow.entities import Metric, RunTag

from dpledger_client.errors import DPLedgerError
from dpledger_client.recording.outbox import LOG
from dpledger_client.training.run import Run

EVERY_STEPS: Final = 100
LOOK_SECONDS: Final = 0.5  # between two looks at how far training is
_OF_BUDGET: Final = ("epsilon", "spent", "reserved", "remaining")
WAIT_SECONDS: Final = 10.0  # for the last words; MLflow itself would try for minutes


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


class Mirror:
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
        if not every_steps >= 1:
            raise ValueError("every_steps must be at least 1.")
        self._run = run
        self._every_steps = every_steps
        self._wait_seconds = wait_seconds
        # Which run is active is known to this thread only, and where MLflow is may change.
        self._mlflow_run_id = mlflow_run_id or _active()
        self._mlflow = mlflow.MlflowClient()
        self._warned = False
        self._closing = Event()
        self._thread = Thread(target=self._work, name="dpledger-mlflow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Say the last, and wait for that, but no longer than `wait_seconds`."""
        self._closing.set()
        self._thread.join(self._wait_seconds)
        if self._thread.is_alive():
            self._warn("it does not answer")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _work(self) -> None:
        shown = self._run.next_step
        while not self._closing.wait(LOOK_SECONDS):
            if self._run.next_step - shown >= self._every_steps:
                shown = self._run.next_step
                self._show()
        self._show()

    def _show(self) -> None:
        if self._run.rank:
            return
        try:
            guarantee = _guarantee(self._run)
            self._mlflow.log_batch(
                self._mlflow_run_id,
                metrics=_metrics(guarantee, self._run.budget),
                tags=_tags(self._run, guarantee),
            )
        except Exception as error:  # whatever MLflow raises: it must not end a training
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning(
                "dpledger: MLflow is not told what run %s spent: %s", self._run.name, reason
            )


def _active() -> str:
    active = mlflow.active_run()
    if active is None:
        raise ValueError("No MLflow run is active: start one, or give mlflow_run_id.")
    run_id: str = active.info.run_id
    return run_id


def _guarantee(run: Run) -> dict[str, Any] | None:
    if run.trouble is None:
        try:
            return run.guarantee()
        except DPLedgerError:
            pass  # away, or no delta is known; what was said last still holds for its steps
    return run.last_guarantee


def _metrics(guarantee: dict[str, Any] | None, budget: dict[str, Any] | None) -> list[Metric]:
    if guarantee is None:
        return []
    epsilon = guarantee["epsilon"]
    values = {
        "epsilon": math.inf if epsilon is None else epsilon,
        "epsilon_lower": guarantee["epsilon_lower"],
        "delta": guarantee["delta"],
        **{f"budget.{name}": (budget or {}).get(name) for name in _OF_BUDGET},
    }
    now = time.time_ns() // 1_000_000
    return [
        Metric(f"dpledger.{name}", float(value), now, guarantee["steps"])
        for name, value in values.items()
        if value is not None
    ]


def _tags(run: Run, guarantee: dict[str, Any] | None) -> list[RunTag]:
    tags = {"run": run.name, "dataset": run.dataset, "url": run.url, **_standing(run)}
    if guarantee is not None:
        tags["core_version"] = guarantee["core_version"]
    return [RunTag(f"dpledger.{name}", str(value)) for name, value in tags.items()]


def _standing(run: Run) -> dict[str, str]:
    """What the service holds of the sampling: classes and settings, nothing that sizes told."""
    if run.trouble is not None:
        return {}
    try:
        found = run._transport.get(f"/v1/runs/{run.name}", retries=0)
    except DPLedgerError:
        return {}
    return {"sampling_status": found["sampling_status"]}
