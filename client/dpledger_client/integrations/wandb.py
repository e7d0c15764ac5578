"""Weights & Biases: what a run has spent, as metrics and settings beside its other ones.

    with wandb.init(project="letters") as board, dpledger_client.start_run(...) as run, Mirror(run):
        ...

Everything is said by a thread of its own: training waits for it only at the end, and not for long.
"""

from collections.abc import Mapping
from typing import Any

import wandb

from dpledger_client.training.mirror import EVERY_STEPS, WAIT_SECONDS, TrackerMirror
from dpledger_client.training.run import Run


class Mirror(TrackerMirror):
    """Says what a run has spent while it trains, and once more at the end of the block.

    Metrics: `dpledger.epsilon` and `dpledger.epsilon_lower` (nats), `dpledger.delta`, and with a
    budget `dpledger.budget.epsilon`, `.spent`, `.reserved` and `.remaining`. Their axis is
    `dpledger.steps`, the number of steps that they cover, so that they do not move the board's own
    step. Settings (`config`): `dpledger.run`, `.dataset`, `.url`, `.sampling_status` and
    `.core_version`. Batch sizes, and what follows from them, are never among them.

    Args:
        run: of the ledger. Only rank 0 says anything.
        every_steps: how many steps lie between two points of a metric at least, >= 1.
        wandb_run: by default the active one.
        wait_seconds: how long `close` waits for the board.

    Raises:
        ValueError: an argument is out of range, or no W&B run is active and none was given.
    """

    def __init__(
        self,
        run: Run,
        *,
        every_steps: int = EVERY_STEPS,
        wandb_run: Any = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._board = wandb_run or wandb.run
        if self._board is None:
            raise ValueError("No W&B run is active: call wandb.init, or give wandb_run.")
        self._board.define_metric("dpledger.*", step_metric="dpledger.steps")
        super().__init__(run, every_steps=every_steps, wait_seconds=wait_seconds, tracker="W&B")

    def _tell(self, metrics: Mapping[str, float], steps: int, tags: Mapping[str, str]) -> None:
        self._board.config.update(dict(tags), allow_val_change=True)
        if metrics:
            self._board.log({**metrics, "dpledger.steps": steps})
