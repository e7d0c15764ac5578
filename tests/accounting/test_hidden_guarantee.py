"""The guarantee of a run that hides iterates: which bound stands at its head, and why."""

from dataclasses import replace
from typing import Any

from accounting.accountants.best_bound import guarantee
from accounting.event_counts import count_events
from accounting.guarantees import ACCEPTABLE, DEFAULT_ACCEPT, Status
from accounting.hidden_state import HIDDEN, REASON_NO_GAIN, guarantee_of_hidden
from accounting.hidden_state_runs import HiddenRun
from accounting.last_iterate.declared import DataOrder
from tests.accounting.test_hidden import DELTA, REPLACE_ONE, run_of


def told(run: HiddenRun, accept: frozenset[Status], **given: Any) -> Any:
    target = given or {"delta": DELTA}
    found = guarantee(count_events([run.spans]), relation=REPLACE_ONE, accept=accept, **target)
    return found, guarantee_of_hidden(found, run, accept=accept, epsilon=given.get("epsilon"))


def test_a_guarantee_takes_the_smaller_bound_where_it_is_accepted() -> None:
    accept = DEFAULT_ACCEPT | {Status.CONDITIONAL}
    for target in ({"delta": DELTA}, {"epsilon": 2.0}):
        shown, hidden = told(run_of(DataOrder.CYCLIC), accept, **target)
        assert (hidden.epsilon, hidden.delta) < (shown.epsilon, shown.delta)
        assert hidden.headline.accountant == HIDDEN
        assert shown.headline in hidden.alternatives
        assert hidden.hidden_reason is None
        assert hidden.epsilon_lower == hidden.headline.epsilon_lower
        assert hidden.unamplified_epsilon == shown.unamplified_epsilon


def test_a_guarantee_keeps_a_smaller_bound_aside_where_it_is_not_accepted() -> None:
    shown, hidden = told(run_of(DataOrder.CYCLIC), DEFAULT_ACCEPT)
    assert hidden.headline == shown.headline
    assert hidden.hidden_reason == "The bound for hidden iterates is conditional: not accepted."
    assert hidden.alternatives[-1].accountant == HIDDEN
    # What all iterates attain, those that are shown need not.
    assert hidden.epsilon_lower is None
    assert shown.epsilon_lower is not None


def test_a_guarantee_says_why_nothing_is_gained() -> None:
    _, hidden = told(run_of(DataOrder.CYCLIC, every_pass=True), ACCEPTABLE)
    assert hidden.hidden_reason == REASON_NO_GAIN
    assert hidden.headline.accountant != HIDDEN
    _, hidden = told(replace(run_of(DataOrder.FULL), dataset_size=None), ACCEPTABLE)
    assert "dataset's size" in hidden.hidden_reason
    assert all(bound.accountant != HIDDEN for bound in hidden.alternatives)


def test_a_hidden_bound_serves_where_no_other_does() -> None:
    shown, _ = told(run_of(DataOrder.CYCLIC), DEFAULT_ACCEPT)
    nothing = replace(shown, headline=None, epsilon=None, reason="none", alternatives=())
    hidden = guarantee_of_hidden(nothing, run_of(DataOrder.CYCLIC), accept=ACCEPTABLE)
    assert hidden.headline is not None
    assert (hidden.reason, hidden.alternatives) == (None, ())
