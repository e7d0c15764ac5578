"""Tells another tracker what a run has spent, by a thread of its own."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from dpledger_client.answers.budgets import BudgetState
from dpledger_client.answers.guarantees import Guarantee
from dpledger_client.errors import DPLedgerError
from dpledger_client.recording.outbox import LOG
from dpledger_client.training.run import Run

EVERY_STEPS: Final = 100
LOOK_SECONDS: Final = 0.5  # between two looks at how far training is
WAIT_SECONDS: Final = 10.0  # for the last words; a tracker itself may try for minutes
_OF_BUDGET: Final = ("epsilon", "spent", "reserved", "remaining")


class TrackerMirror(ABC):
    """Says what a run has spent while it trains, and once more at the end of the block.

    Training waits for the tracker only at the end, and not for long. A tracker that is away is
    only warned of.

    Args:
        run: of the ledger. Only rank 0 says anything.
        every_steps: how many steps lie between two points of a metric at least, >= 1.
        wait_seconds: how long `close` waits for the tracker.
        tracker: its name, for a warning.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, run: Run, *, every_steps: int, wait_seconds: float, tracker: str) -> None:
        if not every_steps >= 1:
            raise ValueError("every_steps must be at least 1.")
        self._run = run
        self._every_steps = every_steps
        self._wait_seconds = wait_seconds
        self._tracker = tracker
        self._warned = False
        self._closing = Event()
        self._thread = Thread(target=self._work, name=f"dpledger-{tracker.lower()}", daemon=True)
        self._thread.start()

    @abstractmethod
    def _tell(self, metrics: Mapping[str, float], steps: int, tags: Mapping[str, str]) -> None:
        """Tell the tracker metrics at a number of steps, and tags."""

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
            steps = 0 if guarantee is None else guarantee["steps"]
            self._tell(_metrics(guarantee, self._run.budget), steps, _tags(self._run, guarantee))
        except Exception as error:  # whatever a tracker raises: it must not end a training
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, reason: str) -> None:
        if not self._warned:
            self._warned = True
            LOG.warning(
                "dpledger: %s is not told what run %s spent: %s",
                self._tracker, self._run.name, reason,
            )  # fmt: skip


def _guarantee(run: Run) -> Guarantee | None:
    if run.trouble is None:
        try:
            return run.guarantee()
        except DPLedgerError:
            pass  # away, or no delta is known; what was said last still holds for its steps
    return run.last_guarantee


def _metrics(guarantee: Guarantee | None, budget: BudgetState | None) -> dict[str, float]:
    if guarantee is None:
        return {}
    epsilon, of_budget = guarantee["epsilon"], {} if budget is None else budget
    values = {
        "epsilon": math.inf if epsilon is None else epsilon,
        "epsilon_lower": guarantee["epsilon_lower"],
        "delta": guarantee["delta"],
        **{f"budget.{name}": of_budget.get(name) for name in _OF_BUDGET},
    }
    found = {name: value for name, value in values.items() if value is not None}
    return {f"dpledger.{name}": float(value) for name, value in found.items()}


def _tags(run: Run, guarantee: Guarantee | None) -> dict[str, str]:
    tags = {"run": run.name, "dataset": run.dataset, "url": run.url, **_standing(run)}
    if guarantee is not None:
        tags["core_version"] = guarantee["core_version"]
    return {f"dpledger.{name}": str(value) for name, value in tags.items()}


def _standing(run: Run) -> dict[str, str]:
    """What the service holds of the sampling: classes and settings, nothing that sizes told."""
    if run.trouble is not None:
        return {}
    try:
        found = run._transport.get(f"/v1/runs/{run.name}", retries=0)
    except DPLedgerError:
        return {}
    return {"sampling_status": found["sampling_status"]}
