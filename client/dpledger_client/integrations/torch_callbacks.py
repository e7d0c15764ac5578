"""What the callbacks of trainers on PyTorch share: whose noise it is, and where a pass begins."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import torch

from dpledger_client.errors import BudgetExhausted
from dpledger_client.integrations.torch_distributed import refuse_shared_coins
from dpledger_client.loaders import Finding
from dpledger_client.schemas import event, full, gaussian, no_noise
from dpledger_client.training.budget_fit import DatasetBudget, check_budget
from dpledger_client.training.run import Run

Stop = Literal["raise", "quietly"]

# Optimizers of Opacus that clip by themselves and add noise of noise_multiplier * max_grad_norm,
# once a step. Not the adaptive one, which divides by the size of the batch that was drawn, nor
# those of ghost clipping, where the model clips, to a norm of its own.
ALONE: Final = ("DPOptimizer", "DPPerLayerOptimizer")
TOGETHER: Final = ("DistributedDPOptimizer",)
WRAPPERS: Final = {"accelerate": "optimizer", "lightning": "_optimizer"}  # where the inner one is
DOWN: Final = 1 - 1e-14  # more than a few roundings
BY_PASS: Final = ("cyclic", "shuffle", "balls_and_bins", "random_allocation")
BY_ORDER: Final = ("cyclic", "shuffle")

# Of each run, as several callbacks may count its steps one after the other.
_PASSES: Final[WeakKeyDictionary[Run, tuple[int, dict[str, Any]]]] = WeakKeyDictionary()
_READ: Final[WeakKeyDictionary[Run, dict[str, Any]]] = WeakKeyDictionary()  # not declared by anyone


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
        raise ValueError(f"The noise that {type(optimizer).__name__} adds cannot be read.")
    if "_check_skip_next_step" in vars(optimizer):
        raise ValueError("A LedgerAccountant already counts the steps of this optimizer.")
    return optimizer


class Steps:
    """Tells a run the steps of a training loop, one by one, before each is taken.

    Args:
        run: open.
        noise_multiplier: noise standard deviation / per-record norm bound; unitless, >= 0. None
            asks the optimizer, else the run's declared mechanism.
        stop: whether a refused step raises only, or is looked for after the step before, where
            asking for it does not charge it.
        dataset_budget: "this plan" makes the dataset's budget an envelope of the training.

    Raises:
        ValueError: noise_multiplier or stop is out of range.
    """

    def __init__(
        self,
        run: Run,
        *,
        noise_multiplier: float | None,
        stop: Stop,
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        if stop not in ("raise", "quietly"):
            raise ValueError("stop must be raise or quietly.")
        self.run: Final = run
        self.stop: Final = stop
        self._dataset_budget: DatasetBudget | None = dataset_budget
        self._given = None if noise_multiplier is None else _checked(noise_multiplier)
        self._sampling: dict[str, Any] | None = None  # that of whole passes
        self._broken = False  # whether the ledger counts this pass from elsewhere than it began
        self._splits = False  # whether the loader gives batches in parts
        self._norm = 0.0  # the largest that parts of the next step were clipped to
        self._counted: dict[str, Any] | None = None  # mechanism of the last step

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the run, for a training that goes on with this callback.

        That counts by pass from the beginning of a pass on alone. A cyclic loader then begins its
        one order anew; a shuffle may draw orders that were used before, for seeds may be repeated,
        so that nothing is said of its order, and the branch counts one pass more.
        """
        order = {"order": "fresh"} if (self._sampling or {}).get("kind") == "cyclic" else {}
        return {**self.run.state_dict(), **order}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint: on a branch, unless `start_run(state=)` has just opened it.

        A checkpoint of another run changes nothing: what that run spent stays in the ledger, and
        what this one spends comes on top.

        Raises:
            ValueError: it is no state of a run.
            DPLedgerError: the branch could not be opened.
        """
        opened = f"from-{state.get('next_step')}-"
        fresh = self.run.next_step == state.get("next_step") and self.run not in _PASSES
        branched = fresh and self.run.branch.startswith(opened)
        if state.get("run") == self.run.name and not branched:
            self.run.load_state_dict(state)
        _PASSES.pop(self.run, None)

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
        self._tell(optimizers)
        self._norm = 0.0
        if self._sampling is not None:
            self.run.declare(sampling=self._sampling)
        finding = self.run.watch(loader, accumulation=accumulation)
        if self.run.world_size > 1:
            _check_coins(finding, loader)
        self._sampling, self._splits = dict(finding.sampling), "splitter" in finding.seen
        if again and self._sampling["kind"] == "shuffle":
            self._sampling["reshuffle"] = "once"
        if self._sampling["kind"] in BY_ORDER and batches is not None:
            if not self._splits:
                # What the loop does counts: it may end a pass early, and it steps at its end.
                steps = math.ceil(batches / accumulation)
                shorter = steps < self._sampling["steps_per_pass"]
                if shorter and not finding.is_secret and self._sampling["kind"] == "shuffle":
                    self._sampling["reshuffle"] = "once"  # its next pass may begin with the same
                self._sampling["steps_per_pass"] = steps
                self._sampling.pop("left_out", None)  # of a whole pass
            elif batches < len(loader):
                raise ValueError("A pass of parts of batches ends early, after an unknown part.")
        self.run.declare(sampling=self._sampling)

    def check_budget(self, optimizers: Sequence[Any], *, steps: float) -> None:
        """Print how many of the steps to come the budgets admit, before the first is taken.

        Args:
            optimizers: that each take one step on a batch.
            steps: to come; infinite if that is not known.

        Raises:
            ValueError: noise cannot be told; or the plan is to be the budget and has no end.
            BudgetExhausted, DPLedgerError: as `budget_fit.check_budget`.
        """
        self._tell(optimizers)
        run, known = self.run, math.isfinite(steps)
        if steps < 1 or run.mechanism is None or run.sampling is None:
            return
        count = int(steps) if known else 1
        events = [event(mechanism=run.mechanism, sampling=run.sampling, steps=count)]
        check_budget(run, events, length_known=known, dataset_budget=self._dataset_budget)

    def pass_begins(self, *, in_its_middle: bool = False) -> None:
        """The loader begins anew, or goes on in the middle of a pass that it began before.

        The ledger counts a pass by its steps, from a fresh order on. The rest of a pass is out of
        step with that, and so is the pass after one that was broken off: both are recorded as
        `full`, which relies on no order.
        """
        self._broken = in_its_middle or self._out_of_step()
        sampling = self._sampling_now()
        if sampling is not None:
            _PASSES[self.run] = self.run.next_step, sampling

    def look_at(self, optimizer: Any, *, batches: int) -> None:
        """Look at the gradients that an optimizer is about to clip, of so many batches.

        Raises:
            ValueError: they may be larger than its noise is made for.
        """
        inner = opacus_of(optimizer)
        if inner is None:
            return
        if (passes := inner.accumulated_iterations) != batches:
            raise ValueError(
                f"There were {passes} backward passes on the batches of a step, {batches} by "
                "number: a record is clipped in each, and no noise multiplier tells how often."
            )
        self._norm = max(self._norm, _clipped_to(inner))
        if not self._norm <= inner.max_grad_norm:
            raise ValueError(
                f"Gradients are clipped to {self._norm}, and max_grad_norm, which the noise is "
                f"made for, is {inner.max_grad_norm}: change it between steps, and not by layer."
            )
        if not inner._check_skip_next_step(pop_next=False):
            self._norm = 0.0

    def before(self, optimizers: Sequence[Any]) -> None:
        """Count the step that optimizers are about to take on a batch.

        Raises:
            BudgetExhausted: it does not fit; nothing was counted.
            ValueError: its noise cannot be told with certainty.
            DPLedgerError: any other refusal.
        """
        inner = self._tell(optimizers)
        # Parts of a batch that is too large for the memory are one step, taken at the last.
        if not any(each._check_skip_next_step(pop_next=False) for each in inner):
            self.run.step()
            self._counted = self.run.mechanism
        elif len(optimizers) > 1 or not self._splits:
            raise ValueError(
                "A step is skipped on what is no part of a batch, or by one of several optimizers: "
                "its records join the next step, and no kind of sampling describes that."
            )

    def go_on(self, optimizers: Sequence[Any]) -> None:
        """Another of the optimizers is about to take its part of the step that was counted.

        Raises:
            ValueError: noise was changed in between.
        """
        self._tell(optimizers)
        if self.run.mechanism != self._counted:
            raise ValueError("The noise of an optimizer was changed after its step was counted.")

    def ends_here(self, optimizers: Sequence[Any]) -> bool:
        """Whether to end training now, quietly, because the next step would be refused."""
        if self.stop == "raise" or not self.run.admits_ahead:
            return False
        self._tell(optimizers)
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
        first, sampling = _PASSES.get(self.run, (0, full()))
        if sampling["kind"] not in BY_PASS:
            return False
        return (self.run.next_step - first) % int(sampling["steps_per_pass"]) != 0

    def _sampling_now(self) -> dict[str, Any] | None:
        by_pass = self._sampling is not None and self._sampling["kind"] in BY_PASS
        return full() if self._broken and by_pass else self._sampling

    def _tell(self, optimizers: Sequence[Any]) -> list[Any]:
        """Declare what the next step is, whatever was; which of the optimizers are of Opacus."""
        inner = [opacus_of(optimizer) for optimizer in optimizers]
        mechanism, sampling = self._mechanism(inner), self._sampling_now()
        if mechanism != self.run.mechanism:
            self.run.declare(mechanism=mechanism)
        if sampling not in (None, self.run.sampling):
            self.run.declare(sampling=sampling)
        return [each for each in inner if each is not None]

    def _mechanism(self, inner: Sequence[Any | None]) -> dict[str, Any]:
        noises = [noise for each in inner if (noise := self._noise_of(each)) is not None]
        if noises and len(noises) == len(inner):
            noise = _joint(noises)
            read = gaussian(noise_multiplier=noise) if noise else no_noise()
            _READ[self.run] = read
            return read
        declared = self.run.mechanism
        if declared is None or len(inner) > 1 or declared == _READ.get(self.run):
            raise ValueError(
                "A trainer clips the gradient of a batch, not of each record, and so adds no noise "
                "of a known multiplier: give it an optimizer of Opacus, or give noise_multiplier."
            )
        return declared

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
    refuse_shared_coins(own_coins(loader))


def _clipped_to(optimizer: Any) -> float:
    """The norm of a record's gradient, rounded as Opacus rounds that of all layers."""
    norms = getattr(optimizer, "max_grad_norms", None)
    if norms is None:
        return float(optimizer.max_grad_norm)
    return float(torch.tensor(norms, dtype=torch.float32).norm(p=2))


def _joint(noises: Sequence[float]) -> float:
    """Of several releases of the same records: the squared ratios of norm and noise add up."""
    if len(noises) == 1 or 0.0 in noises:
        return min(noises)
    return DOWN / math.hypot(*(1 / noise for noise in noises))


def _checked(noise_multiplier: float) -> float:
    if not 0 <= float(noise_multiplier) < math.inf:
        raise ValueError("noise_multiplier must be finite and at least 0.")
    return float(noise_multiplier)
