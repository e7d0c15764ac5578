"""An epsilon that is not a number is never within a budget."""

import math
from types import SimpleNamespace
from typing import Final

import pytest

from accounting.accountants import best_bound
from accounting.calibration import _log_ratio
from accounting.events import Event, Full, Gaussian, NeighboringRelation, Span
from accounting.guarantees import DEFAULT_ACCEPT
from service.errors import BudgetExhaustedError
from service.guarantees.guarantee import _epsilon
from service.ledger import fixed_plans, runs
from service.ledger.budgets import cost_cache, envelopes
from service.schemas.requests import Budget, NewRun
from tests.service.samples import BUDGET, FULL, GAUSSIAN, run

NAN: Final = math.nan
RELATION: Final = NeighboringRelation.ADD_OR_REMOVE_ONE


def test_a_plan_of_nan_is_refused() -> None:
    certified = fixed_plans.PlanCertificate(
        epsilon=NAN, delta=1e-5, accept=DEFAULT_ACCEPT, admissible_steps=0
    )
    new = NewRun.model_validate(run(budget=BUDGET))
    with pytest.raises(BudgetExhaustedError):
        runs._require_certified(new, DEFAULT_ACCEPT, certified)


def test_a_plan_of_nan_is_certified_for_no_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = SimpleNamespace(epsilon=NAN, delta=0.0)
    monkeypatch.setattr(best_bound, "best_bound", lambda *_args, **_given: bound)
    monkeypatch.setattr(fixed_plans, "_leading", lambda *_args, **_given: 0)
    spans = [Span(event=Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=Full()), steps=1)]
    budget = Budget.model_validate(BUDGET)
    found = fixed_plans._certify_spans(spans, budget, relation=RELATION, accept=DEFAULT_ACCEPT)
    assert (math.isnan(found.epsilon), found.delta, found.admissible_steps) == (True, 1.0, 0)


def test_an_envelope_of_nan_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = cost_cache.CertifiedItems(epsilon=NAN, fit=0)
    monkeypatch.setattr(cost_cache, "ask", lambda *_args: found)
    item = {"mechanism": GAUSSIAN, "sampling": FULL, "steps": 5, "name": "all"}
    budget = Budget.model_validate(BUDGET | {"filter": "envelope", "envelope": [item]})
    with pytest.raises(BudgetExhaustedError):
        envelopes.envelope_record(
            budget, scope="data", relation=RELATION, accept=DEFAULT_ACCEPT, dataset_size=60000
        )


def test_no_epsilon_is_stated_at_a_delta_of_nan() -> None:
    dataset = SimpleNamespace(neighboring_relation="add_or_remove_one", accept="[]")
    asked = SimpleNamespace(accountant="best")
    assert _epsilon([], dataset, asked, NAN) is None  # type: ignore[arg-type]


def test_nan_never_reaches_a_target() -> None:
    assert _log_ratio(NAN, 1.0) == math.inf
