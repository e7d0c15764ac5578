"""Stream the privacy events of a training run to a dpledger service."""

from dpledger_client import sampling_check
from dpledger_client.client import Client
from dpledger_client.errors import (
    BranchExists,
    BudgetExhausted,
    Conflict,
    DPLedgerError,
    Forbidden,
    InvalidRequest,
    NotFound,
    OutOfSequence,
    RunExists,
    RunFinished,
    Unauthorized,
    Unavailable,
    UnsupportedEvent,
)
from dpledger_client.run import Run
from dpledger_client.wire import (
    balls_and_bins,
    cyclic,
    event,
    fixed_size,
    full,
    gaussian,
    no_noise,
    non_uniform,
    poisson,
    random_allocation,
    shuffle,
    truncated_poisson,
    unknown,
    with_replacement,
)

__all__ = [
    "BranchExists", "BudgetExhausted", "Client", "Conflict", "DPLedgerError", "Forbidden",
    "InvalidRequest", "NotFound", "OutOfSequence", "Run", "RunExists", "RunFinished",
    "Unauthorized", "Unavailable", "UnsupportedEvent", "balls_and_bins", "cyclic", "event",
    "fixed_size", "full", "gaussian", "no_noise", "non_uniform", "poisson", "random_allocation",
    "sampling_check", "shuffle", "truncated_poisson", "unknown", "with_replacement",
]  # fmt: skip
