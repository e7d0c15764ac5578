"""Say what a run's curve means for an attacker who tries to find out who was in the data."""

import math
from collections.abc import Hashable
from dataclasses import replace
from decimal import Decimal
from functools import reduce
from typing import Any, Final

import numpy as np
from sqlalchemy import Connection, Row

import accounting
from accounting import privacy_profile
from accounting.event_counts import EventCounts
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, weakest
from accounting.privacy_profile import Profile, rate_grid
from service.formatting import NARROW, percent_rounded_up, trimmed
from service.guarantees.recorded_facts import run_facts
from service.ledger.budgets.budget import accept_of
from service.ledger.lookups import dataset_of, find_run
from service.schemas.responses import EVERY_STEP, Answer
from service.storage.versioned_cache import VersionedCache

CURVE_POINTS: Final = 100_000_000  # of work for a curve (accounting/work_limit.py)
_POINTS: Final = 200  # as many as the API tells at most: a chart has no corner between them
PROFILES_MAX: Final = 64  # of a process
_TOLD: Final = (1e-3, 1e-2, 1e-1)  # rates of false alarms that are put in words
_profiles: Final[VersionedCache[Profile]] = VersionedCache(PROFILES_MAX)
_EVERYBODY: Final = 0.9995  # above, three digits up are all of them


class ProfilePoint(Answer):
    """Delta at an epsilon."""

    epsilon: float  # nats
    delta: float  # upper
    delta_lower: float  # zero where nothing is proved


class TradeOffPoint(Answer):
    """What every membership test must miss at a rate of false alarms."""

    false_positive_rate: float
    false_negative_rate: float  # lower


class RatePoint(Answer):
    """What no membership test finds more of at a rate of false alarms."""

    false_positive_rate: float
    true_positive_rate: float  # upper


class Curve(Answer):
    """A run's privacy profile, and what it says about any membership test."""

    run: str
    neighboring_relation: NeighboringRelation
    steps: int
    sequence: int
    core_version: str
    status: Status | None
    assumptions: list[Assumption]
    reason: str | None  # why there is no profile
    profile: list[ProfilePoint]
    trade_off: list[TradeOffPoint]
    membership_advantage: float  # upper; 1 where nothing is proved
    true_positive_rates: list[RatePoint]


RATES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # of false positives at which a curve says what is found
REASON_NO_PROFILE = "No accepted bound is finite; GET the guarantee for the reason."


def curve_answer(
    profile: Profile,
    *,
    run: str,
    relation: NeighboringRelation,
    steps: int,
    sequence: int,
    points: int,
) -> Curve:
    """The wire form of a profile and of what it says about membership tests."""
    alarms, few = rate_grid(points), np.array(RATES)
    missed, found = profile.trade_off(alarms), profile.true_positive_rates(few)
    known = len(profile.epsilons) > 0
    return Curve(
        run=run,
        neighboring_relation=relation,
        steps=steps,
        sequence=sequence,
        core_version=accounting.__version__,
        status=profile.status if known else None,
        assumptions=list(profile.assumptions) if known else [],
        reason=None if known else REASON_NO_PROFILE,
        profile=[
            ProfilePoint(epsilon=epsilon, delta=upper, delta_lower=lower)
            for epsilon, upper, lower in zip(
                profile.epsilons.tolist(),
                profile.upper.tolist(),
                profile.lower.tolist(),
                strict=True,
            )
        ],
        trade_off=[
            TradeOffPoint(false_positive_rate=rate, false_negative_rate=least)
            for rate, least in zip(alarms.tolist(), missed.tolist(), strict=True)
        ],
        membership_advantage=profile.advantage(),
        true_positive_rates=[
            RatePoint(false_positive_rate=rate, true_positive_rate=most)
            for rate, most in zip(few.tolist(), found.tolist(), strict=True)
        ],
    )


def known_profile(of: Hashable, dataset: Row[Any], counts: EventCounts, *, points: int) -> Profile:
    """The profile of event counts; pages ask again and again for those of runs that have ended.

    Args:
        of: what is asked about, for as long as its counts are the same.
        dataset: whose relation and statuses count.
        counts: the events.
        points: epsilons at most.
    """
    relation = NeighboringRelation(dataset.neighboring_relation)
    accept = accept_of(dataset)

    def work() -> Profile:
        grid = privacy_profile.epsilon_grid(counts, relation=relation, points=points, accept=accept)
        return privacy_profile.privacy_profile(
            counts, relation=relation, epsilons=grid, accept=accept, points=CURVE_POINTS
        )

    each = (counts.steps, counts.passes, counts.begun, counts.starts)
    counted = tuple(frozenset(events.items()) for events in each)
    return _profiles.compute((of, points), (relation, accept, counted), work)


def covering_profile(first: Profile, second: Profile) -> Profile:
    """Return a profile that holds whichever of two accounts of the facts is right.

    It has the epsilons of the profile that reaches further. Both profiles fall: between two of its
    epsilons the other one is at most what it is at the lower, and at least what it is at the upper.

    Args:
        first: the profile of one account.
        second: that of the other.

    Returns:
        The larger upper delta and the smaller lower one at each epsilon; nothing where one of the
        accounts has no finite bound.
    """
    wide, other = sorted((first, second), key=lambda one: -max(one.epsilons, default=math.inf))
    if not len(wide.epsilons):
        return wide
    before = np.searchsorted(other.epsilons, wide.epsilons, side="right") - 1
    after = np.searchsorted(other.epsilons, wide.epsilons, side="left")
    upper = np.where(before >= 0, other.upper[before], 1.0)
    lower = np.append(other.lower, 0.0)[after]
    statuses = [one.status for one in (first, second) if one.status is not None]
    return Profile(
        epsilons=wide.epsilons,
        lower=np.minimum(wide.lower, lower),
        upper=np.maximum(wide.upper, upper),
        mu=None if first.mu is None or second.mu is None else max(first.mu, second.mu),
        status=weakest(statuses) if statuses else None,
        assumptions=tuple(sorted({*first.assumptions, *second.assumptions})),
    )


def curve(connection: Connection, run_name: str, *, points: int) -> Curve:
    """A run's privacy profile at up to `points` epsilons, and what it says of membership tests.

    Fewer where each takes long: any number of points bounds the rest. It holds for the recorded and
    for the corrected steps.

    Raises:
        NotFoundError: there is no such run.
        TooExpensiveError: too many entries would have to be read.
    """
    run = find_run(connection, run_name)
    dataset = dataset_of(connection, run)
    facts = run_facts(connection, run, dataset)
    profiles = [
        known_profile((run.id, run.created_at, place), dataset, counts, points=points)
        for place, counts in enumerate(facts.accounts)
    ]
    found = reduce(covering_profile, profiles)
    if run.release != EVERY_STEP:  # what all iterates attain, those that are shown need not
        found = replace(found, lower=np.zeros_like(found.lower))
    return curve_answer(
        found,
        run=run.name,
        relation=NeighboringRelation(dataset.neighboring_relation),
        steps=sum(facts.recorded.steps.values()),
        sequence=dataset.head_sequence,
        points=points,
    )


class Sentence(Answer):
    """The most that is found at a rate of false alarms, in words."""

    false_positive_rate: float
    true_positive_rate: float  # upper
    text: str


class Membership(Answer):
    """A run's curve, and what it says of an attacker."""

    curve: Curve
    sentences: list[Sentence]
    advantage: str  # in words


def membership(connection: Connection, run_name: str) -> Membership:
    """What a run's privacy profile says.

    Raises:
        NotFoundError: there is no such run.
    """
    return membership_of(curve(connection, run_name, points=_POINTS))


def membership_of(curve: Curve) -> Membership:
    """A curve with its meaning."""
    sentences = [
        Sentence(
            false_positive_rate=one.false_positive_rate,
            true_positive_rate=one.true_positive_rate,
            text=_sentence(one.false_positive_rate, one.true_positive_rate),
        )
        for one in curve.true_positive_rates
        if one.false_positive_rate in _TOLD
    ]
    return Membership(curve=curve, sentences=sentences, advantage=_advantage(curve))


def _sentence(wrong: float, found: float) -> str:
    rate = trimmed(Decimal(repr(wrong)) * 100)
    said = f"An attacker who is wrong {rate}{NARROW}% of the time on non-members finds"
    if found >= _EVERYBODY:
        return f"{said} possibly every member: nothing less is proved."
    return f"{said} at most {percent_rounded_up(found)} of members."


def _advantage(curve: Curve) -> str:
    if not curve.profile:
        return "Nothing is proved: an attacker might tell members from non-members every time."
    if not curve.steps:
        return "Nothing was recorded, so there is nothing to learn from."
    return (
        "Whatever the attacker does, the share of members found exceeds the share of false alarms "
        f"by at most {percent_rounded_up(curve.membership_advantage)[:-2]} percentage points."
    )
