"""Tell a dpledger service what a training run does, step by step.

A name is imported when it is first used, so that `import dpledger_client` takes a few milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dpledger_client import answers, loaders, sampling_check
    from dpledger_client.client import Client, start_run
    from dpledger_client.errors import (
        AnotherPerson,
        BranchExists,
        BudgetExhausted,
        Conflict,
        DPLedgerError,
        Forbidden,
        InvalidRequest,
        LedgerSuspended,
        NotFound,
        OutOfSequence,
        RunExists,
        RunFinished,
        Unauthorized,
        Unavailable,
        UnsupportedEvent,
    )
    from dpledger_client.loaders import shuffled
    from dpledger_client.loaders.choices import compare_sampling
    from dpledger_client.recording.checkpoint_pins import LedgerRewritten
    from dpledger_client.recording.write_ahead_file import SpoolError
    from dpledger_client.schemas import (
        approximate_dp,
        balls_and_bins,
        cyclic,
        cyclic_poisson,
        event,
        fixed_size,
        full,
        gaussian,
        laplace,
        matrix_gaussian,
        min_separation,
        no_noise,
        non_uniform,
        poisson,
        random_allocation,
        randomized_response,
        shuffle,
        truncated_poisson,
        unknown,
        with_replacement,
        zcdp,
    )
    from dpledger_client.sweeps import (
        ReportTooLate,
        TrialOver,
        negative_binomial_trials,
        poisson_trials,
    )
    from dpledger_client.training.batch_size_check import SamplingContradicted
    from dpledger_client.training.budget_fit import BudgetFit, check_budget
    from dpledger_client.training.checkpoints import state_at
    from dpledger_client.training.run import Run

# The public names, by the module that defines them.
_HOMES: Final[dict[str, str]] = {
    "client": "Client start_run",
    "errors": (
        "AnotherPerson BranchExists BudgetExhausted Conflict DPLedgerError Forbidden "
        "InvalidRequest LedgerSuspended NotFound OutOfSequence RunExists RunFinished "
        "Unauthorized Unavailable UnsupportedEvent"
    ),
    "loaders": "shuffled",
    "loaders.choices": "compare_sampling",
    "recording.checkpoint_pins": "LedgerRewritten",
    "recording.write_ahead_file": "SpoolError",
    "schemas": (
        "approximate_dp balls_and_bins cyclic cyclic_poisson event fixed_size full gaussian "
        "laplace matrix_gaussian min_separation no_noise non_uniform poisson "
        "random_allocation randomized_response shuffle truncated_poisson unknown "
        "with_replacement zcdp"
    ),
    "sweeps": "ReportTooLate TrialOver negative_binomial_trials poisson_trials",
    "training.batch_size_check": "SamplingContradicted",
    "training.budget_fit": "BudgetFit check_budget",
    "training.checkpoints": "state_at",
    "training.run": "Run",
}
_MODULES: Final = ("answers", "loaders", "sampling_check")

__all__ = [
    "AnotherPerson", "BranchExists", "BudgetExhausted", "BudgetFit", "Client", "Conflict",
    "DPLedgerError", "Forbidden", "InvalidRequest", "LedgerRewritten", "LedgerSuspended",
    "NotFound", "OutOfSequence", "ReportTooLate", "Run", "RunExists", "RunFinished",
    "SamplingContradicted", "SpoolError", "TrialOver", "Unauthorized", "Unavailable",
    "UnsupportedEvent", "answers", "approximate_dp", "balls_and_bins", "check_budget",
    "compare_sampling", "cyclic", "cyclic_poisson", "event", "fixed_size", "full", "gaussian",
    "laplace", "loaders", "matrix_gaussian", "min_separation", "negative_binomial_trials",
    "no_noise", "non_uniform", "poisson", "poisson_trials", "random_allocation",
    "randomized_response", "sampling_check", "shuffle", "shuffled", "start_run", "state_at",
    "truncated_poisson", "unknown", "with_replacement", "zcdp",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    for module, names in _HOMES.items():
        if name in names.split():
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
