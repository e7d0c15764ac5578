"""Opacus 1.6: each step of its optimizer is counted before its noise is drawn.

    privacy_engine.accountant = LedgerAccountant(run)   # before make_private

or, in a script that has called make_private already,

    attach(privacy_engine, run, optimizer=optimizer, data_loader=data_loader)

Before the first step it prints how many steps the budgets admit. The number of epochs is read from
make_private_with_epsilon, or given as `epochs`. With `dataset_budget="this plan"` the dataset's
budget becomes an envelope of exactly this training, if it does not admit all of it as it is.

In a distributed job `start_run(broadcast=broadcast)`, with the function of this module, stops all
ranks at the same step. Nothing is drawn from a generator of torch, and nothing of a batch leaves
the process.
"""

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

from opacus.accountants.accountant import IAccountant
from opacus.optimizers import DPOptimizer
from opacus.privacy_engine import PrivacyEngine

from dpledger_client.errors import Unavailable
from dpledger_client.integrations import opacus_histories
from dpledger_client.integrations.opacus_hooks import Guard, mechanism_of, training_events
from dpledger_client.integrations.torch_distributed import broadcast
from dpledger_client.recording.outbox import LOG
from dpledger_client.schemas import unknown
from dpledger_client.training.budget_fit import BudgetFit, DatasetBudget, check_budget
from dpledger_client.training.run import Run

__all__ = ["LedgerAccountant", "attach", "broadcast"]

STATE: Final = "dpledger"  # key of run.state_dict() in the accountant's state


class LedgerAccountant(IAccountant):
    """An accountant of Opacus whose steps are in the ledger before they are taken.

    Set it as `privacy_engine.accountant` before `make_private`. When the optimizer's step raises
    BudgetExhausted, no noise was drawn and no weight has changed.

    Args:
        run: open; from `start_run`.
        epochs: of the training, > 0; by default as make_private_with_epsilon is told.
        dataset_budget: "this plan" makes the dataset's budget an envelope of this training, as
            `check_budget` does; by default what fits is only printed.

    Raises:
        ValueError: epochs is not positive.
    """

    def __init__(
        self,
        run: Run,
        *,
        epochs: float | None = None,
        dataset_budget: DatasetBudget | None = None,
    ) -> None:
        super().__init__()
        if epochs is not None and not epochs > 0:
            raise ValueError("epochs must be positive.")
        self.run: Final = run
        self._epochs = epochs
        self._dataset_budget: DatasetBudget | None = dataset_budget
        self._guards: list[Guard] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count a step that is about to be taken, of whatever sampling the run declares.

        For loops that call accountants by hand; `sample_rate` alone says nothing about who joins,
        so that the step is recorded as `unknown()` if nothing is declared, or what has no rate.

        Raises:
            BudgetExhausted: it does not fit; nothing was counted.
            ValueError: the declared probability is below `sample_rate`.
            DPLedgerError: any other refusal.
        """
        sampling = self.run.sampling or unknown()
        rate = _rate(sampling, self.run.dataset_size)
        if rate is None:
            sampling = sampling if sampling["kind"] in ("full", "unknown") else unknown()
        elif rate < sample_rate and not math.isclose(rate, sample_rate, rel_tol=1e-12):
            raise ValueError(f"sample_rate is higher than the declared rate, {rate:g}.")
        self.run.step(mechanism=mechanism_of(noise_multiplier), sampling=sampling)
        self._remember(noise_multiplier, sample_rate)

    def get_epsilon(self, delta: float, *args: Any, **kwargs: Any) -> float:
        """What the run has spent, as the ledger certifies it: nats, upper; infinite if unbounded.

        While the service is away it is infinite, too, with a warning: to ask must not end training.

        Raises:
            DPLedgerError: the service refused.
        """
        try:
            epsilon = self.run.guarantee(delta=delta)["epsilon"]
        except Unavailable as error:
            LOG.warning("dpledger: epsilon is not known while the service is away: %s", error)
            return math.inf
        return math.inf if epsilon is None else float(epsilon)

    def __len__(self) -> int:
        """Steps of the run's branch, those before it included."""
        return self.run.next_step

    @classmethod
    def mechanism(cls) -> str:
        """The accountant by which Opacus calibrates noise, and that can read a checkpoint."""
        return "prv"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[DPOptimizer], None]:
        """What Opacus calls once noise was added; here only to see that the step was counted.

        `make_private` hands the optimizer to the hook after its first noise, and the loader
        never. Both are taken from its frame, so that steps are counted before any noise; so is the
        number of epochs, from that of `make_private_with_epsilon`.

        Raises:
            ValueError: the noise of the optimizer is unknown, or another optimizer calls.
            DPLedgerError: as `envelope`.
        """
        frame = sys._getframe(1)
        if frame.f_code is PrivacyEngine.make_private.__code__:
            known = frame.f_locals
            optimizer, loader, module = (
                known[name] for name in ("optimizer", "data_loader", "module")
            )
            guard = self._guard(optimizer, loader, module, sample_rate)
            caller = frame.f_back
            if caller and caller.f_code is PrivacyEngine.make_private_with_epsilon.__code__:
                self._epochs = self._epochs or caller.f_locals["epochs"]
            self.envelope(optimizer, loader, self._epochs, dataset_budget=self._dataset_budget)
            return guard.settle
        raise ValueError("Only make_private may ask for the hook: call attach() instead.")

    def state_dict(self, destination: Any = None) -> Any:
        """The state of an Opacus accountant, and the run's under "dpledger"."""
        state = super().state_dict(destination)
        state[STATE] = self.run.state_dict()
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a checkpoint. What was spent since stays spent: a rewind opens a branch.

        A checkpoint of Opacus alone is one of the run if its steps were imported as this run.

        Raises:
            ValueError: the ledger does not know the steps of this checkpoint: import them first.
            DPLedgerError: the branch could not be opened.
        """
        if "history" in state_dict and STATE not in state_dict:
            imported = opacus_histories.state_of(state_dict["history"], self.run)
            # By whatever accountant it was counted, a history says the same.
            state_dict = {**state_dict, STATE: imported, "mechanism": self.mechanism()}
        super().load_state_dict(state_dict)
        state = state_dict[STATE]
        place = state["next_step"]
        resumed = self.run.branch.startswith(f"from-{place}-") and self.run.next_step == place
        if not resumed:  # by start_run(state=) just now
            self.run.load_state_dict(state)
        for guard in self._guards:
            guard.batches.branched()

    def envelope(
        self,
        optimizer: DPOptimizer,
        loader: Any,
        epochs: float | None,
        *,
        dataset_budget: DatasetBudget | None = None,
    ) -> BudgetFit | None:
        """Print how many steps of a training the budgets admit, and make it the budget if asked.

        Args:
            optimizer: from `make_private`; its noise is that of all steps.
            loader: from `make_private`.
            epochs: how often the loop goes through the loader; None if that is not known.
            dataset_budget: as `check_budget` takes it.

        Returns:
            What `check_budget` returns; None also where noise or sampling cannot be told yet.

        Raises:
            ValueError: as `check_budget`; or "this plan" was asked for, and cannot be told.
            BudgetExhausted, DPLedgerError: as `check_budget`.
        """
        events = training_events(self.run, optimizer, loader, epochs)
        if not events:
            if dataset_budget is not None:
                raise ValueError("Noise or sampling cannot be told before the first step.")
            return None
        known = epochs is not None
        return check_budget(self.run, events, length_known=known, dataset_budget=dataset_budget)

    def _guard(self, optimizer: Any, loader: Any, module: Any, sample_rate: float) -> Guard:
        guard = Guard(
            self.run,
            optimizer,
            loader=loader,
            module=module,
            counted=lambda noise, batches: self._remember(noise, sample_rate * batches),
        )
        self._guards.append(guard)
        return guard

    def _remember(self, noise_multiplier: float, sample_rate: float) -> None:
        """As Opacus' own accountants do, for those that read the checkpoint."""
        steps = 0
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps = self.history.pop()[2]
        self.history.append((noise_multiplier, sample_rate, steps + 1))


def _rate(sampling: Mapping[str, Any], dataset_size: int | None) -> float | None:
    """With what chance each record joins, by its own coin; None where there are no coins."""
    if "expected_batch_size" in sampling:
        return float(sampling["expected_batch_size"] / dataset_size) if dataset_size else None
    return sampling.get("sampling_probability")


def attach(
    privacy_engine: PrivacyEngine | None,
    run: Run,
    *,
    optimizer: DPOptimizer,
    data_loader: Any,
    module: Any = None,
    epochs: float | None = None,
    dataset_budget: DatasetBudget | None = None,
) -> LedgerAccountant:
    """Count the steps of an optimizer that `make_private` has made already.

    Call it before the loader is iterated.

    Args:
        privacy_engine: its accountant is replaced; None if the optimizer was made without one.
        run: open; from `start_run`.
        optimizer: from `make_private`.
        data_loader: the one that `make_private` returned.
        module: the same; needed for ghost clipping, which clips there.
        epochs: as for `LedgerAccountant`.
        dataset_budget: as for `LedgerAccountant`.

    Returns:
        The accountant; `privacy_engine.get_epsilon` asks it.

    Raises:
        ValueError: steps were taken before; or the optimizer's noise cannot be told.
        BudgetExhausted, DPLedgerError: the training cannot be made the budget.
    """
    if privacy_engine is not None and privacy_engine.accountant.history:
        raise ValueError("Steps were taken before the ledger was attached: it cannot see them.")
    accountant = LedgerAccountant(run, epochs=epochs, dataset_budget=dataset_budget)
    guard = accountant._guard(optimizer, data_loader, module, 1 / len(data_loader))
    accountant.envelope(optimizer, data_loader, epochs, dataset_budget=dataset_budget)
    optimizer.attach_step_hook(guard.settle)
    if privacy_engine is not None:
        privacy_engine.accountant = accountant
    return accountant
