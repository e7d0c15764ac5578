"""An optimizer of PyTorch with the correlated noise of optimizer.py, each step metered."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from dpledger_client import Run
from torch import Tensor, nn

Gradients = dict[str, Tensor]


def gradients_of(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """The gradients of each record alone, as (rows, labels) -> a tensor for each parameter.

    Args:
        model: without layers that mix records, such as batch norm.
        loss: of outputs and labels, both with a first dimension of records.

    Returns:
        Tensors of shape (records, *parameter.shape), in the order of model.parameters().
    """

    def of_one(parameters: Gradients, row: Tensor, label: Tensor) -> Tensor:
        return loss(torch.func.functional_call(model, parameters, (row[None],)), label[None])

    each = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))

    def found(rows: Tensor, labels: Tensor) -> list[Tensor]:
        parameters = {name: one.detach() for name, one in model.named_parameters()}
        gradients = each(parameters, rows, labels)
        return [gradients[name] for name in parameters]

    return found


def clipped_sums(gradients: Sequence[Tensor], norm_bound: float) -> list[Tensor]:
    """The sums over records, each clipped to the norm of all its gradients together.

    A record whose gradients are not finite adds nothing.
    """
    norms = torch.stack([one.flatten(1).norm(dim=1) for one in gradients]).norm(dim=0)
    shares = torch.where(norms.isfinite(), norm_bound / norms.clamp(min=norm_bound), 0.0)
    return [torch.tensordot(shares, one.nan_to_num(0.0, 0.0, 0.0), dims=1) for one in gradients]


class CorrelatedOptimizer:
    """Takes steps of an optimizer with noisy sums, each counted by a run before noise is drawn.

    Args:
        optimizer: any of PyTorch; it moves by the noisy sum over the batch size.
        run: a pass of its declared sampling has as many steps as are taken here.
        coefficients: of the strategy, c_0 > 0 first, as the run's event names it.
        noise_multiplier: standard deviation of the raw noise over the norm bound.
        norm_bound: of all gradients of a record together.
        batch_size: records of a batch, a number that does not depend on the data.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, run: Run, *, coefficients: Sequence[float],
        noise_multiplier: float, norm_bound: float, batch_size: float,
    ) -> None:  # fmt: skip
        self._optimizer, self._run = optimizer, run
        self._first, *self._others = coefficients
        self._deviation, self._norm_bound = noise_multiplier * norm_bound, norm_bound
        self._batch_size = batch_size
        # Not of torch, whose generator of processors keeps 32 bits of a seed. Never seed it.
        self._source = np.random.default_rng()
        self._added: deque[list[Tensor]] = deque(maxlen=len(self._others))  # the newest first

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Take one step.

        Args:
            gradients: of each record, for each parameter, shape (records, *parameter.shape).

        Raises:
            BudgetExhausted, DPLedgerError: as run.step; no noise was drawn, and nothing moved.
        """
        self._run.step()  # the first one of a pass is charged with all of it
        sums = clipped_sums(gradients, self._norm_bound)
        noises = [self._raw(one) for one in sums]
        for coefficient, earlier in zip(self._others, self._added, strict=False):
            for noise, one in zip(noises, earlier, strict=True):
                noise -= coefficient * one
        noises = [noise / self._first for noise in noises]
        self._added.appendleft(noises)
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        for parameter, total, noise in zip(parameters, sums, noises, strict=True):
            parameter.grad = (total + noise) / self._batch_size
        self._optimizer.step()

    def _raw(self, like: Tensor) -> Tensor:
        drawn = self._source.normal(0.0, self._deviation, tuple(like.shape))
        return torch.from_numpy(np.asarray(drawn)).to(like)
