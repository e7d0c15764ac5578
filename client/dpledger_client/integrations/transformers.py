"""A callback of the Hugging Face Trainer: each optimizer step is counted before it is taken."""

import json
import math
import os
from pathlib import Path
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary

from transformers.trainer_callback import (
    ExportableState,
    TrainerCallback,
    TrainerControl,
    TrainerState,
)
from transformers.training_args import TrainingArguments

from dpledger_client.integrations.torch_callbacks import BY_PASS, Steps, Stop, own_coins
from dpledger_client.integrations.torch_distributed import broadcast
from dpledger_client.training.budget_fit import DatasetBudget
from dpledger_client.training.run import Run

__all__ = ["LedgerCallback", "broadcast", "saved_state"]

BY_LENGTH: Final = ("group_by_length", "batch_rebalance")


class LedgerCallback(TrainerCallback, ExportableState):
    """Counts the steps of a Trainer in a run: `Trainer(..., callbacks=[LedgerCallback(run)])`.

    The noise is read from the optimizer of Opacus that the Trainer was given. The sampling is read
    from the Trainer's own loader, whatever was declared. A step is counted when its gradients are
    ready and before the optimizer is called, once for all the batches that it accumulates; one that
    the scaler of mixed precision then skips stays counted. Checkpoints keep the run's state.

    Args:
        run: open, as `start_run` returned it. With several processes give that
            `broadcast=dpledger_client.integrations.transformers.broadcast`.
        noise_multiplier: noise standard deviation / per-record norm bound; unitless, >= 0. For
            steps that are private by other means than an optimizer of Opacus.
        stop: what a step does that does not fit in a budget. "raise": `train` raises
            BudgetExhausted, and the weights are those of the step before. "quietly": the step
            before is the last, and `train` returns; it still raises if there is none before, or
            in a strict run, where asking ahead would charge.
        dataset_budget: "this plan" makes the dataset's budget an envelope of this training if it
            does not admit all of it as it is, as `dpledger_client.check_budget` does. By default
            it is only printed how many steps fit.

    Raises:
        ValueError: noise_multiplier or stop is out of range.
    """

    _open: ClassVar[WeakValueDictionary[str, Run]] = WeakValueDictionary()

    def __init__(
        self,
        run: Run | str,
        *,
        noise_multiplier: float | None = None,
        stop: Stop = "raise",
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        if isinstance(run, str):
            # restore_callback_states_from_checkpoint makes callbacks anew, from what JSON can say.
            if run not in self._open:
                raise ValueError(f"No run {run} is open in this process.")
            run = self._open[run]
        self._open[run.name] = run
        self._arguments = {"run": run.name, "noise_multiplier": noise_multiplier, "stop": stop}
        self._steps = Steps(
            run, noise_multiplier=noise_multiplier, stop=stop, dataset_budget=dataset_budget
        )
        self._in_the_middle = False
        self._batches = 1  # of the next step

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps; called by the Trainer when it saves one."""
        saved = self._steps.state()
        return {"args": dict(self._arguments), "attributes": {"saved": saved}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Look at the loader and the optimizer, and go on from the checkpoint, if there is one.

        Raises:
            ValueError: noise or sampling cannot be told with certainty.
            BudgetExhausted, DPLedgerError: the training cannot be made the budget.
        """
        if args.train_sampling_strategy in BY_LENGTH:
            raise ValueError(
                f"train_sampling_strategy={args.train_sampling_strategy!r} makes batches by the "
                "lengths of the records: no sampling covers that."
            )
        loader, resumed = given["train_dataloader"], state.global_step > 0
        if resumed and (saved := _saved(state.stateful_callbacks)) is not None:
            self._steps.go_on_from(saved)
        batches, accumulation = _length(loader), args.gradient_accumulation_steps
        self._steps.begin(
            loader,
            [given["optimizer"]],
            accumulation=accumulation,
            place=(args.process_index, args.world_size),
            batches=batches,
            again=resumed,
        )
        if resumed:
            self._check_coins(loader)
            length = math.inf if batches is None else math.ceil(batches / accumulation)
            # If the batches that were taken are not skipped, they are taken again.
            self._in_the_middle = state.global_step % length != 0
        self._steps.check_budget([given["optimizer"]], steps=state.max_steps - state.global_step)

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """A pass begins, or its rest."""
        self._steps.pass_begins(in_its_middle=self._in_the_middle)
        self._in_the_middle = False
        self._batches = 1

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """A step takes one more batch."""
        self._batches += 1

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """Count the step that is about to be taken.

        Raises:
            BudgetExhausted: it does not fit; it is neither counted nor taken.
            ValueError: its noise cannot be told with certainty.
            DPLedgerError: any other refusal.
        """
        batches, self._batches = self._batches, 1
        self._steps.look_at(given["optimizer"], batches=batches)
        self._steps.before([given["optimizer"]])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **given: Any
    ) -> None:
        """End training here if it is to end quietly and the next step would not fit."""
        if not control.should_training_stop and self._steps.ends_here([given["optimizer"]]):
            control.should_training_stop = True

    def _check_coins(self, loader: Any) -> None:
        """A checkpoint restores the random numbers of the process, and so draws that used them."""
        sampling = self._steps.run.sampling or {}
        if sampling.get("kind") not in (*BY_PASS, "full", "unknown") and own_coins(loader) is None:
            raise ValueError(
                "Going on from a checkpoint would draw batches again that later steps had drawn "
                "before: give the sampler a torch.Generator of its own, seeded anew."
            )


def saved_state(checkpoint: str | os.PathLike[str]) -> dict[str, Any]:
    """What a checkpoint of the Trainer keeps of the run, for `start_run(state=)`.

    Args:
        checkpoint: its folder, such as output/checkpoint-500.

    Raises:
        ValueError: it was saved without a LedgerCallback.
    """
    text = Path(checkpoint, "trainer_state.json").read_text(encoding="utf-8")
    saved = _saved(json.loads(text).get("stateful_callbacks"))
    if saved is None:
        raise ValueError(f"{checkpoint} was saved without a LedgerCallback.")
    return saved


def _saved(callbacks: Any) -> dict[str, Any] | None:
    kept = (callbacks or {}).get(LedgerCallback.__name__)
    return None if kept is None else dict(kept["attributes"]["saved"])


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
