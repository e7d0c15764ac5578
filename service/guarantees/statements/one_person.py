"""What one person is promised, in numbers: certified, charged, and in other cases.

A person stands for one protected unit: one record. Every epsilon and every share of people is an
upper bound, rounding included.
"""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from sqlalchemy import Connection, Row, bindparam, func, select

from accounting.accountants.unit_bound import chain_holds, group_profile
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import ValidFor
from accounting.privacy_profile import Profile, trade_off_of_profile
from accounting.rounding import Array
from service.errors import TooExpensiveError
from service.guarantees.attribution import charge_of_run
from service.guarantees.privacy_curve import known_profile
from service.guarantees.recorded_facts import dataset_facts, run_facts
from service.ledger.fixed_plans import declared_end
from service.schemas.responses import BudgetAnswer, DatasetGuarantee, GuaranteeAnswer
from service.storage.tables import lineage

FALSE_ALARMS: Final = 0.01  # the false-positive rate of the attacker who is spoken of
PERSON_ROWS: Final = (2, 5)  # records of one person that are told
_POINTS: Final = 100  # of a profile
_RATE: Final = np.array([FALSE_ALARMS])
_PARENTS: Final = select(func.count()).where(
    lineage.c.dataset_id == bindparam("dataset"), lineage.c.parent
)
_CHILDREN: Final = select(func.count()).where(lineage.c.ancestor_id == bindparam("dataset"))
CaseKind = Literal["certified", "charged", "limit", "rows", "every_step", "elsewhere"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonCase:
    """What is promised in one case."""

    kind: CaseKind
    epsilon: float | None  # nats, upper; None where nothing finite is proved
    delta: float
    found: float  # the share of people that an attacker finds at FALSE_ALARMS; upper
    epsilon_lower: float | None = None
    rows: int = 1  # records of the person


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonPromise:
    """What one person is promised."""

    unit: str
    of_run: bool
    cases: Sequence[PersonCase]  # the certified one first
    charged: float | None  # share of the limit's capacity, upper; None if infinite or no limit
    budget: BudgetAnswer | None
    budget_of_run: bool  # the run's own, not the dataset's
    groups_known: bool  # whether a bound for several records of a person follows
    parents: int  # datasets that this one was made from
    children: int  # datasets that were made from this one


def found_at_most(epsilon: float, delta: float, false_alarms: float) -> float:
    """The share of members that any test finds at a rate of false alarms. Upper.

    min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)): what (epsilon, delta) says of tests.
    """
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, math.nextafter(min(first, second) * (1 + 1e-12), math.inf))


def promise_of_run(
    connection: Connection,
    run: Row[Any],
    dataset: Row[Any],
    found: GuaranteeAnswer,
    budget: BudgetAnswer | None,
) -> PersonPromise | None:
    """What one person is promised about a run; None where nothing finite is certified.

    Args:
        connection: a snapshot.
        run: the run's row.
        dataset: its dataset's row.
        found: the run's guarantee, read from the same snapshot.
        budget: the run's own budget, else its dataset's.

    Raises:
        TooExpensiveError: too many entries would have to be read.
    """
    if found.epsilon is None or found.delta is None:
        return None
    facts = run_facts(connection, run, dataset)
    accounts = [facts.recorded, *([] if facts.corrected is None else [facts.corrected])]
    if run.on_plan and found.planned_steps is not None:
        accounts.append(declared_end(run, dataset.dataset_size))
    own = run.budget_epsilon is not None
    charged = None if budget is None else budget.share
    if not own:
        charged = _charged_epsilon(connection, run, dataset)
    return _promise(
        connection,
        dataset,
        found,
        cases=_list_certified_cases(("run", run.id, run.created_at), dataset, found, accounts),
        groups_known=_knows_groups(dataset, accounts),
        of_run=True,
        budget=budget,
        budget_of_run=own,
        charged=charged,
    )


def promise_of_dataset(
    connection: Connection, dataset: Row[Any], found: DatasetGuarantee, *, reserved: bool
) -> PersonPromise | None:
    """What one person is promised about all runs of a dataset; None where nothing is certified.

    Args:
        connection: a snapshot.
        dataset: the dataset's row.
        found: its guarantee, read from the same snapshot.
        reserved: whether what is reserved counts as certified, too.

    Raises:
        TooExpensiveError: too many entries would have to be read.
    """
    told: GuaranteeAnswer = found if reserved else found.without_reservations
    if told.epsilon is None or told.delta is None:
        return None
    accounts = dataset_facts(connection, dataset, reserved=reserved).accounts
    key = ("dataset", dataset.id, dataset.created_at, reserved)
    return _promise(
        connection,
        dataset,
        told,
        cases=_list_certified_cases(key, dataset, told, accounts),
        groups_known=_knows_groups(dataset, accounts),
        of_run=False,
        budget=found.budget,
        budget_of_run=False,
        charged=None if found.budget is None else found.budget.share,
    )


def _charged_epsilon(connection: Connection, run: Row[Any], dataset: Row[Any]) -> float | None:
    try:
        charge = charge_of_run(connection, run, dataset)
    except TooExpensiveError:
        return None
    return None if charge is None else charge.share


def _promise(
    connection: Connection,
    dataset: Row[Any],
    found: GuaranteeAnswer,
    *,
    cases: Iterable[PersonCase],
    budget: BudgetAnswer | None,
    **given: Any,
) -> PersonPromise:
    first, *others = cases
    asked = {"dataset": dataset.id}
    return PersonPromise(
        unit=dataset.privacy_unit,
        cases=[first, *_of_budget(budget), *others, *_list_unamplified_cases(found)],
        budget=budget,
        parents=connection.scalar(_PARENTS, asked) or 0,
        children=connection.scalar(_CHILDREN, asked) or 0,
        **given,
    )


def _of_budget(budget: BudgetAnswer | None) -> list[PersonCase]:
    """What is charged, and the whole limit: both hold however the steps were chosen."""
    if budget is None or budget.valid_for is not ValidFor.ADAPTIVE:
        return []
    each: tuple[tuple[CaseKind, float | None], ...] = (
        ("charged", budget.spent),
        ("limit", budget.epsilon),
    )
    told = each[:1] if budget.overdrawn else each  # what is beyond its limit is held by none
    return [_case(kind, epsilon, budget.delta) for kind, epsilon in told]


def _list_unamplified_cases(found: GuaranteeAnswer) -> list[PersonCase]:
    """The same steps, had every record joined each of them; None if that changes nothing."""
    epsilon = found.unamplified_epsilon
    if found.delta is None or epsilon is None or epsilon <= (found.epsilon or 0.0):
        return []
    return [_case("every_step", epsilon, found.delta)]


def _case(kind: CaseKind, epsilon: float | None, delta: float) -> PersonCase:
    found = 1.0 if epsilon is None else found_at_most(epsilon, delta, FALSE_ALARMS)
    return PersonCase(kind=kind, epsilon=epsilon, delta=delta, found=found)


def _knows_groups(dataset: Row[Any], accounts: Sequence[EventCounts]) -> bool:
    relation = NeighboringRelation(dataset.neighboring_relation)
    return all(chain_holds(counts, relation) for counts in accounts)


def _list_certified_cases(
    of: Hashable, dataset: Row[Any], found: GuaranteeAnswer, accounts: Sequence[EventCounts]
) -> list[PersonCase]:
    """The certified case, that of several records, and that of a second dataset as costly."""
    epsilon, delta = found.epsilon, found.delta
    assert epsilon is not None  # noqa: S101 (the callers asked)
    assert delta is not None  # noqa: S101
    profiles = [
        known_profile((of, place), dataset, counts, points=_POINTS)
        for place, counts in enumerate(accounts)
    ]
    one = found_at_most(epsilon, delta, FALSE_ALARMS)
    by_profile = max(float(profile.true_positive_rates(_RATE)[0]) for profile in profiles)
    first = PersonCase(
        kind="certified",
        epsilon=epsilon,
        epsilon_lower=found.epsilon_lower,
        delta=delta,
        found=min(one, by_profile),
    )
    # Two datasets that each promise as much: epsilons and deltas add up.
    twice = [(2 * profile.epsilons, np.minimum(1.0, 2 * profile.upper)) for profile in profiles]
    cases = [first, _worst("elsewhere", twice, delta)]
    if _knows_groups(dataset, accounts):
        cases += [_several(profiles, rows, delta) for rows in PERSON_ROWS]
    return cases


def _several(profiles: Sequence[Profile], rows: int, delta: float) -> PersonCase:
    together = [group_profile(one.epsilons, one.upper, rows=rows) for one in profiles]
    return _worst("rows", together, delta, rows=rows)


def _worst(
    kind: CaseKind, points: Sequence[tuple[Array, Array]], delta: float, *, rows: int = 1
) -> PersonCase:
    """The case that holds for each of some profiles, given by points. Upper."""
    epsilon = max(
        float(np.min(epsilons[deltas <= delta], initial=math.inf)) for epsilons, deltas in points
    )
    found = max(
        1 - float(trade_off_of_profile(epsilons=one, deltas=both, false_positive_rates=_RATE)[0])
        for one, both in points
    )
    return PersonCase(
        kind=kind,
        epsilon=None if math.isinf(epsilon) else epsilon,
        delta=delta,
        found=min(1.0, math.nextafter(found, math.inf)),
        rows=rows,
    )
