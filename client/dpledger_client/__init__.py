"""Stream the privacy events of a training run to a dpledger service."""

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
    cyclic,
    event,
    fixed_size,
    full,
    gaussian,
    no_noise,
    poisson,
    shuffle,
    unknown,
)

__all__ = [
    "BranchExists", "BudgetExhausted", "Client", "Conflict", "DPLedgerError", "Forbidden",
    "InvalidRequest", "NotFound", "OutOfSequence", "Run", "RunExists", "RunFinished",
    "Unauthorized", "Unavailable", "UnsupportedEvent", "cyclic", "event", "fixed_size", "full",
    "gaussian", "no_noise", "poisson", "shuffle", "unknown",
]  # fmt: skip
