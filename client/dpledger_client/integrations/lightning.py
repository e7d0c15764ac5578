"""A callback of Lightning's Trainer: each optimizer step is counted before it is taken."""

import math
import os
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from dpledger_client.integrations.torch_callbacks import Steps, Stop
from dpledger_client.integrations.torch_distributed import broadcast
from dpledger_client.training.budget_fit import DatasetBudget
from dpledger_client.training.run import Run

__all__ = ["LedgerCallback", "broadcast", "saved_state"]


class LedgerCallback(Callback):
    """Counts the steps of a Trainer in a run: `Trainer(callbacks=[LedgerCallback(run)])`.

    The noise is read from the optimizer of Opacus that `configure_optimizers` returned. The
    sampling is read from the Trainer's own loader, whatever was declared. A step is counted when
    its gradients are ready and before weights change, once for all the batches that it accumulates.
    Several optimizers that each step once on a batch are one step, with the noise that they leave
    together. Checkpoints keep the run's state.

    Args:
        run: open, as `start_run` returned it. With several processes open it after the Trainer
            was made, with its `global_rank` and `world_size`, and
            `broadcast=dpledger_client.integrations.lightning.broadcast`.
        noise_multiplier: noise standard deviation / per-record norm bound; unitless, >= 0. For
            steps that are private by other means than an optimizer of Opacus; of each optimizer.
        accumulation: batches whose gradients make one step, >= 1, where the module steps by
            itself; by default the Trainer's `accumulate_grad_batches`.
        stop: what a step does that does not fit in a budget. "raise": `fit` raises BudgetExhausted,
            and the weights are those of the step before. "quietly": the step before is the last,
            and `fit` returns; it still raises if there is none before, if `min_steps` or
            `min_epochs` go on, or in a strict run, where asking ahead would charge.
        dataset_budget: "this plan" makes the dataset's budget an envelope of this training if it
            does not admit all of it as it is, as `dpledger_client.check_budget` does. By default
            it is only printed how many steps fit.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        run: Run,
        *,
        noise_multiplier: float | None = None,
        accumulation: int | None = None,
        stop: Stop = "raise",
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        if accumulation is not None and not accumulation >= 1:
            raise ValueError("accumulation must be at least 1.")
        self._steps = Steps(
            run, noise_multiplier=noise_multiplier, stop=stop, dataset_budget=dataset_budget
        )
        self._accumulation = accumulation
        self._loaded: dict[str, Any] | None = None  # of a checkpoint that training goes on from
        self._seen: tuple[Any, int] | None = None  # loader and accumulation, as last looked at
        self._first = False  # no batch of this fit has come yet
        self._batches = 0  # since the last step
        self._joined = 0  # in the last step
        self._stepped: set[int] = set()  # optimizers, on these batches

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps; called by the Trainer when it saves one."""
        return self._steps.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training, if it comes, goes on from there; tests and predictions spend nothing."""
        self._loaded = dict(state_dict)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the checkpoint, if there is one, and look at loader and optimizers.

        Raises:
            ValueError: noise or sampling cannot be told with certainty.
            BudgetExhausted, DPLedgerError: the training cannot be made the budget.
        """
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._steps.go_on_from(loaded)
        self._first, self._seen, self._batches = True, None, 0
        self._look(trainer)
        self._steps.check_budget(trainer.optimizers, steps=_steps_left(trainer, self._accumulation))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look again if the Trainer changed its loader or its accumulation; a pass may begin."""
        self._look(trainer)
        if batch_idx == 0 or self._first:
            # Even if the loader itself begins anew, it does not come to the end of this pass.
            self._steps.pass_begins(in_its_middle=batch_idx > 0)
            self._batches = 0
        self._first = False
        self._batches += 1

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Any
    ) -> None:
        """Count the step that is about to be taken.

        Raises:
            BudgetExhausted: it does not fit; it is neither counted nor taken.
            ValueError: it is not the one step of its batches, or its noise cannot be told.
            DPLedgerError: any other refusal.
        """
        first = self._batches > 0
        if first:
            self._check_batches(trainer)
            self._joined, self._batches, self._stepped = self._batches, 0, set()
        if id(optimizer) in self._stepped:
            raise ValueError(
                f"{type(optimizer).__name__} steps again on the same batch: its records are in "
                "several steps, and no kind of sampling describes that."
            )
        self._stepped.add(id(optimizer))
        self._steps.look_at(optimizer, batches=self._joined)
        tell = self._steps.before if first else self._steps.go_on
        tell(trainer.optimizers)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End training here if it is to end quietly and the next step would not fit."""
        if not trainer.should_stop and self._steps.ends_here(trainer.optimizers):
            trainer.should_stop = True

    def _look(self, trainer: Trainer) -> None:
        accumulation = self._accumulation or trainer.accumulate_grad_batches
        loader = trainer.train_dataloader
        if self._seen is not None and self._seen[0] is loader and self._seen[1] == accumulation:
            return
        if isinstance(loader, list | tuple | Mapping):
            raise ValueError("A step uses several loaders, and no kind of sampling describes that.")
        batches = trainer.num_training_batches
        self._steps.begin(
            loader,
            trainer.optimizers,
            accumulation=accumulation,
            place=(trainer.global_rank, trainer.world_size),
            batches=None if batches == float("inf") else batches,
            again=trainer.ckpt_path is not None,
        )
        self._seen = loader, accumulation

    def _check_batches(self, trainer: Trainer) -> None:
        wanted = self._accumulation or trainer.accumulate_grad_batches
        if self._batches > wanted or (self._batches < wanted and not trainer.is_last_batch):
            raise ValueError(
                f"The module steps after {self._batches} batches, and {wanted} make a step: give "
                "accumulation."
            )


def _steps_left(trainer: Trainer, accumulation: int | None) -> float:
    """How many steps this fit still takes; infinite where that is not known."""
    if accumulation is not None or len(trainer.optimizers) > 1:
        return math.inf  # the module steps by itself
    return float(trainer.estimated_stepping_batches) - trainer.global_step


def saved_state(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """What a checkpoint of the Trainer keeps of the run, for `start_run(state=)`.

    Args:
        checkpoint: the file.

    Raises:
        ValueError: it was saved without a LedgerCallback.
    """
    kept = torch.load(checkpoint, map_location="cpu", weights_only=True).get("callbacks", {})
    if LedgerCallback.__name__ not in kept:
        raise ValueError(f"{checkpoint} was saved without a LedgerCallback.")
    return dict(kept[LedgerCallback.__name__])
