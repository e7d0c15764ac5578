"""Sweeps that are charged as one private selection: the best trial alone is ever shown."""

from dpledger_client.sweeps.laws import negative_binomial_trials, poisson_trials
from dpledger_client.sweeps.trials import Best, ReportTooLate, Trial, TrialOver, Trials, selection

__all__ = [
    "Best",
    "ReportTooLate",
    "Trial",
    "TrialOver",
    "Trials",
    "negative_binomial_trials",
    "poisson_trials",
    "selection",
]
