"""Tell a dpledger service what a training run does, step by step."""

from dpledger_client import loaders, sampling_check
from dpledger_client.batch_size_check import SamplingContradicted
from dpledger_client.budget_fit import BudgetFit, check_budget
from dpledger_client.checkpoints import state_at
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
from dpledger_client.run import Run
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

__all__ = [
    "AnotherPerson", "BranchExists", "BudgetExhausted", "BudgetFit", "Client", "Conflict",
    "DPLedgerError", "Forbidden", "InvalidRequest", "LedgerRewritten", "LedgerSuspended",
    "NotFound", "OutOfSequence", "ReportTooLate", "Run", "RunExists", "RunFinished",
    "SamplingContradicted", "SpoolError", "TrialOver", "Unauthorized", "Unavailable",
    "UnsupportedEvent", "approximate_dp", "balls_and_bins", "check_budget", "compare_sampling",
    "cyclic", "cyclic_poisson", "event", "fixed_size", "full", "gaussian", "laplace", "loaders",
    "matrix_gaussian", "min_separation", "negative_binomial_trials", "no_noise", "non_uniform",
    "poisson", "poisson_trials", "random_allocation",
    "randomized_response", "sampling_check", "shuffle", "shuffled", "start_run", "state_at",
    "truncated_poisson", "unknown", "with_replacement", "zcdp",
]  # fmt: skip
