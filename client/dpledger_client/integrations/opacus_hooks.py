"""Stands in an optimizer of Opacus between the sum of clipped gradients and its noise."""

import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from opacus.optimizers import (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)
from torch.utils.data import BatchSampler

from dpledger_client import loaders
from dpledger_client.integrations.opacus_batches import Batches, is_splitter
from dpledger_client.integrations.torch_distributed import refuse_shared_coins, together
from dpledger_client.integrations.torch_shards import refuse_other_shards
from dpledger_client.schemas import event, full, gaussian, no_noise, unknown
from dpledger_client.training.batch_size_check import SamplingContradicted
from dpledger_client.training.run import Run

_GHOST: Final = (
    DPOptimizerFastGradientClipping,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
)
_PER_LAYER: Final = (DPPerLayerOptimizer, SimpleDistributedPerLayerOptimizer)
# Those whose noise is noise_multiplier * max_grad_norm, drawn once a step, after the one question
# whether the step is to be skipped.
_KNOWN: Final = (*_GHOST, *_PER_LAYER, DPOptimizer, DistributedDPOptimizer)
_BY_PASS: Final = ("shuffle", "cyclic")
_OURS: Final = WeakKeyDictionary[Run, dict[str, Any]]()  # what a guard declared last
_ADAPTIVE: Final = (
    "Adaptive clipping divides by the size of the batch that was drawn, which is private: no "
    "bound covers it."
)


class Guard:
    """Counts the steps of an optimizer, each before its noise is drawn.

    Args:
        run: open.
        optimizer: from `make_private`; three of its methods are wrapped.
        loader: of its batches.
        module: of its parameters; only ghost clipping needs it.
        counted: called after a step was counted, with the optimizer's noise multiplier and the
            number of batches that Opacus takes the step to have.

    Raises:
        ValueError: its noise cannot be told.
    """

    def __init__(
        self,
        run: Run,
        optimizer: Any,
        *,
        loader: Any,
        module: Any,
        counted: Callable[[float, int], None],
    ) -> None:
        self._on_all_ranks: Callable[[Callable[[], Any]], Any] = (
            together if getattr(optimizer, "world_size", 1) > 1 else _alone
        )
        self._on_all_ranks(lambda: _refuse(optimizer, module, run))
        self._run, self._optimizer, self._loader, self._module = run, optimizer, loader, module
        self.batches: Final = Batches(loader, self._pending)
        self._counted = counted
        self._parameter = optimizer.params[0]
        self._norm = 0.0  # the largest that parts of the next step were clipped to
        self._size = 0  # of the next batch: private
        self._settled, self._warned = True, False
        self._found: dict[str, Any] | None = None
        self._tests_sizes = type(optimizer) not in _GHOST + _PER_LAYER  # until the loader is known
        self._backward_passes = 1  # of the last part
        self._steps_per_pass, self._draws, self._last_draws = 1, 1, 1
        self._mechanism: tuple[float, dict[str, Any]] = 0.0, no_noise()
        self._check, self._signal = optimizer._check_skip_next_step, optimizer.signal_skip_step
        self._zero_grad = optimizer.zero_grad
        optimizer._check_skip_next_step = self._checked
        optimizer.signal_skip_step = self._signalled
        optimizer.zero_grad = self._zeroed

    def settle(self, _: Any) -> None:
        """The hook of Opacus: noise was drawn, no weight has changed, the step must be counted."""
        if self._settled:
            self._count()
        self._settled = True

    # What the optimizer calls

    def _checked(self, pop_next: bool = True) -> bool:
        skip = bool(self._check(pop_next=pop_next))
        if pop_next:
            self._hold()
            if not skip:
                self._count()
        return skip

    def _signalled(self, do_skip: bool = True) -> None:
        frame = sys._getframe(1)
        if is_splitter(frame) and type(self._optimizer) is FSDPOptimizerFastGradientClipping:
            _refuse_unequal_parts(self._loader)
        self.batches.signal(frame, skip=do_skip)
        self._signal(do_skip=do_skip)

    def _zeroed(self, set_to_none: bool = False) -> None:
        self._zero_grad(set_to_none)
        if not self._optimizer._is_last_step_skipped:
            self._forget()

    # Counting

    def _hold(self) -> None:
        """A part was clipped and added to the sum."""
        optimizer = self._optimizer
        if type(optimizer) in _GHOST:
            norm = self._module.max_grad_norm
        elif type(optimizer) in _PER_LAYER:  # as Opacus joins them for the noise
            norm = torch.norm(torch.Tensor(optimizer.max_grad_norms), p=2).item()
        else:
            norm = optimizer.max_grad_norm
            if self._tests_sizes:
                self._size += _records(self._parameter.grad_sample)
        self._norm = max(self._norm, float(norm))
        piled = isinstance(getattr(self._parameter, "grad_sample", None), list)
        self._backward_passes = optimizer.accumulated_iterations if piled else 1
        self.batches.hold(self._backward_passes)

    def _pending(self) -> bool:
        """Whether there are gradients in no sum."""
        samples = getattr(self._parameter, "grad_sample", None)
        parts = samples if isinstance(samples, list) else [] if samples is None else [samples]
        return not all(getattr(part, "_processed", False) for part in parts)

    def _forget(self) -> None:
        self._norm, self._size = 0.0, 0
        self.batches.drop()

    def _count(self) -> None:
        found = self._found = self._watched() if self._found is None else self._found
        sampling, times, in_place = self._sampling(found)
        mechanism, run = self._mechanism_of(self._noise() / times), self._run
        if run.mechanism != mechanism or run.sampling != sampling:  # as others may have left it
            run.declare(mechanism=mechanism, sampling=sampling)
        _OURS[run] = sampling
        tested = self._tests_sizes and sampling is found
        run.step(size=self._size if tested else None)
        self._counted(self._optimizer.noise_multiplier, self._backward_passes)
        self.batches.taken(in_place=in_place, steps_per_pass=self._steps_per_pass)
        self._forget()
        self._settled = False

    def _mechanism_of(self, noise: float) -> dict[str, Any]:
        if self._mechanism[0] != noise:
            self._mechanism = noise, mechanism_of(noise)
        return self._mechanism[1]

    def _noise(self) -> float:
        """Noise standard deviation / the norm that gradients were clipped to, rounded down."""
        optimizer = self._optimizer
        _refuse_shards(optimizer, self._module)  # FSDP may have been told otherwise since
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise ValueError(_ADAPTIVE)
        noise, norm = float(optimizer.noise_multiplier), float(optimizer.max_grad_norm)
        return noise if self._norm <= norm else math.nextafter(noise * (norm / self._norm), 0.0)

    def _sampling(self, found: dict[str, Any]) -> tuple[dict[str, Any], int, bool]:
        """Of the next step: who joins, how often at most, and whether it has its place in a pass.

        A record that may be in the sum k times moves it k times as far: the noise counts as
        much less, and no sampling hides that.
        """
        batches = self.batches
        if batches.draws > batches.given:
            self._warn_of_others()
            return unknown(), batches.draws, False
        if 0 < batches.draws < batches.given:  # they may have been joined
            return full(), batches.given, False
        if found["kind"] not in _BY_PASS:
            return (full(), batches.draws, False) if batches.draws > 1 else (found, 1, True)
        if batches.passes_touched > 1:
            return full(), batches.passes_touched, False
        in_place = batches.in_its_place(self._draws_of)
        return (found if in_place else full()), 1, in_place

    def _draws_of(self, place: int) -> int:
        if place < self._steps_per_pass - 1:
            return self._draws
        return self._last_draws if place == self._steps_per_pass - 1 else 0

    # Before the first step

    def _watched(self) -> dict[str, Any]:
        """What the loader is; the optimizer has the batches of its first step."""
        if not self.batches.passes:
            self._warn_of_others()
        finding: loaders.Finding | None = self._on_all_ranks(self._compared)
        if finding is None:
            return unknown()
        _refuse_shared_coins(finding, self._loader, self._run)
        return finding.sampling

    def _compared(self) -> loaders.Finding | None:
        """The loader against what was declared; None where its batches are not used."""
        if not self.batches.passes:
            return None
        run, loader = self._run, self._loader
        size, said = run.dataset_size, run.sampling
        foreign = said is not None and said == _OURS.get(run)
        said = None if foreign else said
        alone = loaders.inspect(loader, declared=said, dataset_size=size)
        joined = self.batches.draws if alone.sampling["kind"] in _BY_PASS else 1
        if foreign:  # a finding about another loader does not apply to this one
            own = loaders.inspect(loader, declared=None, dataset_size=size, accumulation=joined)
            run.declare(sampling=own.sampling)
        finding = run.watch(loader, accumulation=joined)
        self._tests_sizes &= finding.status == "declared" and run.world_size == 1
        if finding.sampling["kind"] in _BY_PASS:
            self._draws = joined
            self._steps_per_pass = int(finding.sampling["steps_per_pass"])
            rest = int(alone.sampling["steps_per_pass"]) - joined * (self._steps_per_pass - 1)
            self._last_draws = min(joined, max(1, rest))
        return finding

    def _warn_of_others(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "dpledger: batches do not come from the loader of make_private, or come from it "
                "once and are used repeatedly. Such steps are recorded as unknown.",
                SamplingContradicted,
                stacklevel=2,
            )


def mechanism_of(noise_multiplier: float) -> dict[str, Any]:
    """The mechanism of a step with so much noise, which may be none."""
    if noise_multiplier == 0:
        return no_noise()
    return gaussian(noise_multiplier=float(noise_multiplier))


def training_events(
    run: Run, optimizer: Any, loader: Any, epochs: float | None
) -> list[dict[str, Any]]:
    """What a training will do if each step takes one batch: one event, or none if it is not known.

    Args:
        run: open.
        optimizer: from `make_private`; its noise is that of all steps.
        loader: of the batches.
        epochs: how often the loop goes through the loader; by default the event is one step.
    """
    said = None if run.sampling == _OURS.get(run) else run.sampling
    try:
        finding = loaders.inspect(loader, declared=said, dataset_size=run.dataset_size)
        steps = 1 if epochs is None else math.ceil(epochs * len(loader) * (1 - 1e-12))
        mechanism = mechanism_of(float(optimizer.noise_multiplier))
        return [event(mechanism=mechanism, sampling=finding.sampling, steps=steps)]
    except (TypeError, ValueError):  # as it will be told at the first step
        return []


def _records(grad_sample: Any) -> int:
    parts = grad_sample if isinstance(grad_sample, list) else [grad_sample]
    return sum(len(part) for part in parts)


def _alone(check: Callable[[], Any]) -> Any:
    return check()


def _refuse(optimizer: Any, module: Any, run: Run) -> None:
    _refuse_unknown(optimizer, module)
    _refuse_other_ranks(optimizer, run)
    _refuse_shards(optimizer, module)


def _refuse_shards(optimizer: Any, module: Any) -> None:
    if type(optimizer) is FSDPOptimizerFastGradientClipping:
        refuse_other_shards(module, optimizer.params)


def _refuse_unequal_parts(loader: Any) -> None:
    """Batches that each rank draws by coins differ in size, and so in the number of their parts."""
    if type(getattr(loader, "batch_sampler", None)) is not BatchSampler:
        raise ValueError(
            "BatchMemoryManager splits the batches of the ranks into different numbers of parts, "
            "and FSDP adds up what all ranks compute at the same time: parts of one step would be "
            "in the next one of another rank. Choose a rate whose batches fit, or wrap the model "
            "in DifferentiallyPrivateDistributedDataParallel."
        )


def _refuse_unknown(optimizer: Any, module: Any) -> None:
    kind = type(optimizer)
    if kind not in _KNOWN:
        reason = _ADAPTIVE if kind.__name__ == "AdaClipDPOptimizer" else ""
        raise ValueError(f"The noise of {kind.__name__} cannot be told. {reason}".strip())
    if "_check_skip_next_step" in vars(optimizer):
        raise ValueError("The steps of this optimizer are counted already.")
    if kind in _GHOST and not hasattr(module, "max_grad_norm"):
        raise ValueError("Ghost clipping clips in the module: give attach() the module.")


def _refuse_other_ranks(optimizer: Any, run: Run) -> None:
    rank, world_size = getattr(optimizer, "rank", 0), getattr(optimizer, "world_size", 1)
    if (rank, world_size) != (run.rank, run.world_size):
        raise ValueError(
            f"The run was started as rank {run.rank} of {run.world_size}, and "
            f"{type(optimizer).__name__} is rank {rank} of {world_size}: wrap the model in "
            "DifferentiallyPrivateDistributedDataParallel or FSDP2Wrapper, and give start_run the "
            "same places."
        )
    if world_size > 1 and run.mode != "observe" and run._broadcast is None:
        raise ValueError("Give start_run broadcast=dpledger_client.integrations.opacus.broadcast.")


def _refuse_shared_coins(finding: loaders.Finding, loader: Any, run: Run) -> None:
    """A record must not be drawn by coins that several ranks flip."""
    drawn = run.world_size > 1 and finding.status != "declared"
    if drawn and finding.sampling["kind"] == "poisson":
        refuse_shared_coins(getattr(loader.batch_sampler, "generator", None))
