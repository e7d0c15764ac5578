"""What a service answers: frozen objects with attributes, which are dicts of the JSON too."""

from dpledger_client.answers.answer import Answer
from dpledger_client.answers.bounds import Bound
from dpledger_client.answers.budgets import BudgetState, EnvelopeItem
from dpledger_client.answers.certificates import Certificate, SignedCertificate, Statement
from dpledger_client.answers.datasets import AdmittedTraining, DatasetState
from dpledger_client.answers.explanations import (
    DatasetShare,
    Explanation,
    FailingScope,
    FewerSteps,
    LowerRate,
    MoreNoise,
    Remedies,
    RestShare,
    RunShare,
    StepsShare,
)
from dpledger_client.answers.guarantees import (
    Alternative,
    DatasetGuarantee,
    Guarantee,
    History,
    HistoryPoint,
    PoissonWouldSay,
    SmallerBound,
)
from dpledger_client.answers.incidents import Incident, IncidentNote
from dpledger_client.answers.plans import (
    OrderAdvice,
    Plan,
    PlanEnvelope,
    PlanUnit,
    SolvedParameter,
    TrialsPlan,
)
from dpledger_client.answers.requests import ChangeRequest, Decision
from dpledger_client.answers.runs import BranchState, RunState

__all__ = [
    "AdmittedTraining", "Alternative", "Answer", "Bound", "BranchState", "BudgetState",
    "Certificate", "ChangeRequest", "DatasetGuarantee", "DatasetShare", "DatasetState",
    "Decision", "EnvelopeItem", "Explanation", "FailingScope", "FewerSteps", "Guarantee",
    "History", "HistoryPoint", "Incident", "IncidentNote", "LowerRate", "MoreNoise",
    "OrderAdvice", "Plan", "PlanEnvelope", "PlanUnit", "PoissonWouldSay", "Remedies", "RestShare",
    "RunShare", "RunState", "SignedCertificate", "SmallerBound", "SolvedParameter", "Statement",
    "StepsShare", "TrialsPlan",
]  # fmt: skip
