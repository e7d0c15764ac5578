"""What the callbacks of trainers on PyTorch share: whose noise it is, and where a pass begins."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import torch.distributed

from dpledger_client.errors import BudgetExhausted
from dpledger_client.loaders import Finding
from dpledger_client.run import Run
from dpledger_client.wire import full, gaussian, no_noise

Stop = Literal["raise", "quietly"]

# Optimizers of Opacus that clip by themselves and add noise of noise_multiplier * max_grad_norm,
# once a step. Not the adaptive one, which divides by the size of the batch that was drawn, nor
# those of ghost clipping, where the model clips, to a norm of its own.
ALONE: Final = ("DPOptimizer", "DPPerLayerOptimizer")
TOGETHER: Final = ("DistributedDPOptimizer",)
WRAPPERS: Final = {"accelerate": "optimizer", "lightning": "_optimizer"}  # where the inner one is
DOWN: Final = 1 - 1e-14  # more than a few roundings
BY_PASS: Final = ("cyclic", "shuffle", "balls_and_bins", "random_allocation")


def broadcast(number: int) -> int:
    """The number of rank 0, on every rank: for `start_run(broadcast=)` in a job of torch.

    Raises:
        RuntimeError: torch.distributed has not been set up.
    """
    if not torch.distributed.is_initialized():
        raise RuntimeError("The ranks cannot hear each other before torch.distributed is set up.")
    box = [number]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]


def opacus_of(optimizer: Any) -> Any | None:
    """The optimizer of Opacus inside what a trainer wraps it in; None if there is none.

    Raises:
        ValueError: it is one of Opacus' whose noise cannot be read from its settings.
    """
    while (package := type(optimizer).__module__.partition(".")[0]) in WRAPPERS:
        optimizer = vars(optimizer).get(WRAPPERS[package])
    bases = [kind for kind in type(optimizer).__mro__ if kind.__module__.startswith("opacus.")]
    if not bases:
        return None
    if type(optimizer) is not bases[0] or bases[0].__name__ not in ALONE + TOGETHER:
        raise ValueError(f"What noise {type(optimizer).__name__} adds cannot be read from it.")
    if "_check_skip_next_step" in vars(optimizer):
        raise ValueError("A LedgerAccountant counts the steps of this optimizer already.")
    return optimizer


class Steps:
    """Tells a run the steps of a training loop, one by one, before each is taken.

    Args:
        run: open.
        noise_multiplier: noise standard deviation / per-record norm bound; unitless, >= 0. None
            asks the optimizer, else the run's declared mechanism.
        stop: whether a refused step raises only, or is looked for after the step before.

    Raises:
        ValueError: noise_multiplier or stop is out of range.
    """

    def __init__(self, run: Run, *, noise_multiplier: float | None, stop: Stop) -> None:
        if stop not in ("raise", "quietly"):
            raise ValueError("stop must be raise or quietly.")
        self.run: Final = run
        self.stop: Final = stop
        self._given = None if noise_multiplier is None else _checked(noise_multiplier)
        self._noise: float | None = None  # that the run was last told of
        self._sampling: dict[str, Any] | None = None  # that of whole passes
        self._taken = 0  # steps of this pass

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: on a branch, unless `start_run(state=)` has just opened it.

        A checkpoint of another run changes nothing: what that run spent stays in the ledger, and
        what this one spends comes on top.

        Raises:
            ValueError: it is no state of a run.
            DPLedgerError: the branch could not be opened.
        """
        opened = f"from-{state.get('next_step')}-"
        fresh = self.run.next_step == state.get("next_step") and not self._taken
        branched = fresh and self.run.branch.startswith(opened)
        if state.get("run") == self.run.name and not branched:
            self.run.load_state_dict(state)
        self._taken = 0

    def begin(
        self,
        loader: Any,
        optimizers: Sequence[Any],
        *,
        accumulation: int,
        place: tuple[int, int],
        batches: float | None,
        again: bool,
    ) -> None:
        """Look at what a loop is about to do.

        Args:
            loader: of its batches.
            optimizers: that each take one step on a batch.
            accumulation: batches whose gradients make one step, >= 1.
            place: rank of this process, and how many there are.
            batches: that the loop takes before the loader begins anew; None if that is not known.
            again: training goes on from a checkpoint, and restored or repeated seeds may give the
                orders that were gone through before.

        Raises:
            ValueError: something about it cannot be told with certainty; the message says what.
        """
        self._check_place(place)
        self._tell_noise(optimizers)
        if self._sampling is not None:
            self.run.declare(sampling=self._sampling)
        finding = self.run.watch(loader, accumulation=accumulation)
        if self.run.world_size > 1:
            _check_coins(finding, loader)
        self._sampling = dict(finding.sampling)
        if again and self._sampling["kind"] == "shuffle":
            self._sampling["reshuffle"] = "once"
        if self._sampling["kind"] in ("cyclic", "shuffle") and batches is not None:
            if "splitter" not in finding.seen:
                # What the loop does counts: it may end a pass early, and it steps at its end.
                self._sampling["steps_per_pass"] = math.ceil(batches / accumulation)
            elif batches < len(loader):
                raise ValueError("A pass of parts of batches ends early: nobody knows after which.")
        self.run.declare(sampling=self._sampling)

    def pass_begins(self, *, in_its_middle: bool = False) -> None:
        """The loader begins anew, or goes on in the middle of a pass that it began before.

        The ledger counts a pass by its steps, from a fresh order on. The rest of a pass is out of
        step with that, and so is the pass after one that was broken off: both are recorded as
        `full`, which relies on no order.
        """
        broken = in_its_middle or self._out_of_step()
        self._taken = 0
        if self._sampling is None:
            return
        if broken and self._sampling["kind"] in BY_PASS:
            self.run.declare(sampling=full())
        elif self.run.sampling != self._sampling:
            self.run.declare(sampling=self._sampling)

    def before(self, optimizers: Sequence[Any]) -> None:
        """Count the step that optimizers are about to take on a batch.

        Raises:
            BudgetExhausted: it does not fit; nothing was counted.
            ValueError: its noise cannot be told with certainty.
            DPLedgerError: any other refusal.
        """
        inner = self._tell_noise(optimizers)
        # Parts of a batch that is too large for the memory are one step, taken at the last.
        if not any(each._check_skip_next_step(pop_next=False) for each in inner):
            self.run.step()
            self._taken += 1

    def ends_here(self) -> bool:
        """Whether to end training now, quietly, because the next step would be refused."""
        if self.stop == "raise":
            return False
        try:
            self.run.admit()
        except BudgetExhausted:
            return True
        return False

    def _check_place(self, place: tuple[int, int]) -> None:
        run = self.run
        if place != (run.rank, run.world_size):
            raise ValueError(
                f"This is rank {place[0]} of {place[1]}, and the run was started as rank "
                f"{run.rank} of {run.world_size}: give start_run rank and world_size."
            )
        if run.world_size > 1 and run.mode != "observe" and run._broadcast is None:
            raise ValueError("Give start_run broadcast: a refusal has to stop all the ranks.")

    def _out_of_step(self) -> bool:
        """Whether the ledger believes the next step to be in the middle of a pass."""
        sampling = self.run.sampling
        if not self._taken or sampling is None or sampling["kind"] not in BY_PASS:
            return False
        length = sampling.get("steps_per_pass")
        if length is None:
            length = math.ceil((self.run.dataset_size or 1) / sampling["batch_size"])
        return self._taken % int(length) != 0

    def _tell_noise(self, optimizers: Sequence[Any]) -> list[Any]:
        """Declare the noise of the next step; which of the optimizers are of Opacus."""
        inner = [opacus_of(optimizer) for optimizer in optimizers]
        noises = [self._noise_of(each) for each in inner]
        if None not in noises:
            noise = _joint([each for each in noises if each is not None])
            if noise != self._noise:
                mechanism = gaussian(noise_multiplier=noise) if noise else no_noise()
                self.run.declare(mechanism=mechanism)
                self._noise = noise
        elif self.run.mechanism is None or len(optimizers) > 1 or self._noise is not None:
            raise ValueError(
                "A trainer clips the gradient of a batch, not of each record, and so adds no noise "
                "of a known multiplier: give it an optimizer of Opacus, or give noise_multiplier."
            )
        return [each for each in inner if each is not None]

    def _noise_of(self, optimizer: Any | None) -> float | None:
        if optimizer is None:
            return self._given
        noise = _checked(optimizer.noise_multiplier)
        if self._given not in (None, noise):
            raise ValueError(f"noise_multiplier is {self._given}; the optimizer's is {noise}.")
        if self.run.world_size > 1 and type(optimizer).__name__ not in TOGETHER:
            raise ValueError(
                f"{type(optimizer).__name__} adds noise in each of {self.run.world_size} "
                f"processes: take {TOGETHER[0]}."
            )
        return noise


def own_coins(loader: Any) -> torch.Generator | None:
    """The generator of a sampler inside, which no seed or checkpoint of the process changes."""
    sampler = loader
    while sampler is not None:
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
        generator: torch.Generator | None = getattr(sampler, "generator", None)
        if generator is not None:
            return generator
    return None


def _check_coins(finding: Finding, loader: Any) -> None:
    """No two ranks may flip the same coins."""
    if finding.sampling["kind"] in (*BY_PASS, "full", "unknown"):
        return
    coins = own_coins(loader) or torch.default_generator
    seeds: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(seeds, coins.initial_seed())
    if len(set(seeds)) < len(seeds):
        raise ValueError(
            "Ranks draw by the same seed, each the same places of its share: give the sampler of "
            "each rank a torch.Generator of its own, seeded anew."
        )


def _joint(noises: Sequence[float]) -> float:
    """Of several releases of the same records: the squared ratios of norm and noise add up."""
    if len(noises) == 1 or 0.0 in noises:
        return min(noises)
    return DOWN / math.hypot(*(1 / noise for noise in noises))


def _checked(noise_multiplier: float) -> float:
    if not 0 <= float(noise_multiplier) < math.inf:
        raise ValueError("noise_multiplier must be finite and at least 0.")
    return float(noise_multiplier)
