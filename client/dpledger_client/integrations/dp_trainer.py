"""A Trainer of Hugging Face whose steps are those of DP-SGD, and in the ledger.

    with dpledger_client.start_run(None, "reviews") as run:
        DPTrainer(
            run=run, model=model, args=args, train_dataset=records,
            noise_multiplier=1.1, clipping_norm=1.0,
        ).train()

It needs transformers, accelerate and opacus.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from opacus import GradSampleModule
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments

from dpledger_client.integrations.torch_callbacks import Stop
from dpledger_client.integrations.transformers import LedgerCallback
from dpledger_client.training.budget_fit import DatasetBudget
from dpledger_client.training.run import Run

RecordLoss = Callable[[Any, torch.Tensor], torch.Tensor]

_OWN: Final = ("position_ids", "token_type_ids")  # that models else make once for a batch


class DPTrainer(Trainer):
    """Trains with DP-SGD: Poisson batches, clipped gradients of single records, Gaussian noise.

    Each step is counted in the run before it is taken. If a budget refuses one, `train` raises
    BudgetExhausted, or returns with `stop="quietly"`; the weights are those of the step before.
    `args.per_device_train_batch_size` is the expected size of a batch: each record joins each batch
    by a coin of its own, from a generator that is seeded by the system.

    Args:
        run: open, as `start_run` returned it.
        model: any that Opacus can differentiate by record; BatchNorm is refused.
        args: for one process, without accumulation of gradients.
        train_dataset: the records, with a length.
        noise_multiplier: noise standard deviation / clipping_norm; unitless, > 0.
        clipping_norm: L2 norm to which the gradient of each record is clipped, > 0.
        record_loss: of the model's output and the labels, the loss of each record: shape (batch,).
            It may not mix records. By default the cross entropy of `logits`, for one label a
            record.
        optimizer: of the model's parameters; by default AdamW with the rate and the decay of args.
        callbacks: beside the ledger's.
        stop: "raise" or "quietly", as of `LedgerCallback`.
        dataset_budget: "this plan" makes the dataset's budget an envelope of this training.
        given: other arguments of `Trainer`.

    Raises:
        ValueError: an argument does not allow steps of DP-SGD.
        opacus.validators.errors.UnsupportedModuleError: a layer mixes records.
    """

    def __init__(
        self,
        *,
        run: Run,
        model: torch.nn.Module,
        args: TrainingArguments,
        train_dataset: Any,
        noise_multiplier: float,
        clipping_norm: float,
        record_loss: RecordLoss | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        stop: Stop = "raise",
        dataset_budget: DatasetBudget | None = None,
        **given: Any,
    ) -> None:
        _require_alone(args, noise_multiplier, clipping_norm, given)
        args = copy.copy(args)
        args.max_grad_norm = 0.0  # of the sum, which the private optimizer replaces
        args.remove_unused_columns = False  # the wrapped model names no columns
        model.train()
        ModuleValidator.validate(model, strict=True)
        self._record_loss = record_loss or cross_entropy
        self._takes = set(inspect.signature(model.forward).parameters)
        wrapped = GradSampleModule(model)
        private = DPOptimizer(
            optimizer or _adam(model, args),
            noise_multiplier=noise_multiplier,
            max_grad_norm=clipping_norm,
            expected_batch_size=args.per_device_train_batch_size,
        )
        ledger = LedgerCallback(run, stop=stop, dataset_budget=dataset_budget)
        super().__init__(
            model=wrapped,
            args=args,
            train_dataset=train_dataset,
            optimizers=(private, given.pop("lr_scheduler", None)),
            callbacks=[ledger, *callbacks, _ClearSums()],
            **given,
        )

    @property
    def trained_model(self) -> torch.nn.Module:
        """The model that was given, with its present weights."""
        module: torch.nn.Module = self.model._module
        return module

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Poisson batches of the expected size that the arguments name."""
        loader: Any = DataLoader(
            self.train_dataset,
            self.args.per_device_train_batch_size,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
        )
        coins = torch.Generator()
        coins.seed()  # a checkpoint restores those of the process, which drew these batches before
        batches = DPDataLoader.from_data_loader(loader, generator=coins)
        batches.collate_fn = _Collate(self.data_collator)  # Opacus' fails if the first is empty
        return batches

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Forward and backward; a batch without records has the sum of no gradients."""
        if _size(inputs):
            return super().training_step(model, inputs, num_items_in_batch)
        model.train()
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.grad_sample = parameter.new_zeros(0, *parameter.shape)
        return torch.zeros((), device=self.args.device)

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The mean of the records' losses; in an evaluation, the loss of the model.

        Raises:
            ValueError: the loss has no entry for each record.
        """
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs)
        inputs = {**inputs}
        labels = inputs.pop("labels")
        outputs = model(**inputs, **self._of_each_record(inputs))
        losses = self._record_loss(outputs, labels)
        if losses.shape != (len(labels),):
            raise ValueError("record_loss must return one loss for each record: shape (batch,).")
        loss = losses.mean()
        return (loss, outputs) if return_outputs else loss

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model that was given, without its wrapper, which checkpoints keep."""
        saves = getattr(self.trained_model, "save_pretrained", None)
        if _internal_call or saves is None:
            super().save_model(output_dir, _internal_call)
        else:
            saves(output_dir or self.args.output_dir)

    def _of_each_record(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Inputs that models share among records, one of each: else their gradients are summed."""
        tokens = inputs.get("input_ids")
        if tokens is None:
            return {}
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        made = {"position_ids": places, "token_type_ids": torch.zeros_like(tokens)}
        return {name: made[name] for name in _OWN if name in self._takes and name not in inputs}


class _Collate:
    """As the collator that is given; a batch without records is an empty mapping."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, records: list[Any]) -> Any:
        return self._collate(records) if records else {}


class _ClearSums(TrainerCallback):
    """The Trainer clears the gradients of its model, and not what the optimizer has summed."""

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        given["optimizer"].zero_grad()


def cross_entropy(outputs: Any, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each record of a classification.

    Args:
        outputs: of the model, with `logits` of shape (batch, classes).
        labels: of shape (batch,), integers.

    Raises:
        ValueError: there is not one label a record, so a mean over labels would mix records.
    """
    if labels.ndim != 1 or labels.is_floating_point():
        raise ValueError("Give record_loss: the labels are not one class for each record.")
    logits = outputs["logits"]
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _require_alone(
    args: TrainingArguments, noise: float, norm: float, given: Mapping[str, Any]
) -> None:
    if args.world_size > 1 or args.n_gpu > 1 or args.gradient_accumulation_steps != 1:
        raise ValueError("DPTrainer takes one device, and gradient_accumulation_steps=1.")
    # They run or move the hooks of Opacus.
    for name in ("activation_checkpointing", "gradient_checkpointing", "torch_compile"):
        if getattr(args, name, False):
            raise ValueError(f"DPTrainer takes no {name}: Opacus needs its hooks.")
    if not noise > 0 or not norm > 0:
        raise ValueError("noise_multiplier and clipping_norm must be positive.")
    for name in ("compute_loss_func", "model_init", "optimizers", "optimizer_cls_and_kwargs"):
        if given.get(name) is not None:
            raise ValueError(f"DPTrainer takes no {name}: give record_loss, or an optimizer.")


def _adam(model: torch.nn.Module, args: TrainingArguments) -> torch.optim.Optimizer:
    weights = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.AdamW(weights, lr=args.learning_rate, weight_decay=args.weight_decay)


def _size(inputs: Any) -> int:
    """How many records a batch has."""
    return len(next(iter(inputs.values()))) if inputs else 0
