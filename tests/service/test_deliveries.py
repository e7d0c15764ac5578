"""Deliveries: claimed once, tried again in time, given up late, and not searched for ever."""

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine, func, select

from service import deliveries
from service.clock import now
from service.database import transaction
from service.deliveries import Wants
from service.incidents import Kind
from service.tables import deliveries as rows
from service.tables import incidents
from tests.service.receiver import happened
from tests.service.samples import setup
from tests.service.test_incidents import happen


def test_the_pause_between_attempts_doubles_to_its_limit_and_is_spread(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "BACKOFF_SECONDS", 5.0)
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    pauses: dict[int, list[float]] = {}
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        assert deliveries.claim(connection, incident.id, "t", moment) == 1
        for attempts in (1, 2, 3, 11, 10_000):
            for _ in range(20):
                assert deliveries.postpone(connection, incident, "t", attempts, moment)
                found = connection.scalar(select(rows.c.next_attempt_at))
                assert found is not None
                pause = found.replace(tzinfo=None) - moment.replace(tzinfo=None)
                pauses.setdefault(attempts, []).append(pause.total_seconds())
    for attempts, whole in ((1, 5), (2, 10), (3, 20), (11, 3600), (10_000, 3600)):
        assert whole / 2 <= min(pauses[attempts]) < max(pauses[attempts]) <= whole


def test_an_incident_is_given_up_after_days(api: httpx.Client, engine: Engine) -> None:
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    late = moment + deliveries.GIVE_UP + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        assert deliveries.due(connection, wants, late) is None  # nor is it begun that late
        assert deliveries.claim(connection, incident.id, "t", moment) == 1
        before = late - timedelta(seconds=2)
        assert not deliveries.postpone(connection, incident, "t", 30, before)
        assert deliveries.due(connection, wants, before) is None
        assert deliveries.waiting(connection, wants, moment) == 0


def test_a_claim_is_won_once_and_again_only_after_its_lease(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    later = moment + deliveries.LEASE + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = deliveries.due(connection, wants, moment)
        assert incident is not None
        found = [deliveries.claim(connection, incident.id, "t", moment) for _ in range(2)]
        assert found == [1, None]
        assert deliveries.claim(connection, incident.id, "other", moment) == 1
        assert deliveries.due(connection, wants, moment) is None
        assert deliveries.due(connection, wants, later) is not None
        assert deliveries.claim(connection, incident.id, "t", later) == 2
        deliveries.take(connection, incident.id, "t", later)
        # A slower process that failed, or that comes later, does not undo that.
        deliveries.postpone(connection, incident, "t", 1, later)
        assert deliveries.claim(connection, incident.id, "t", later + timedelta(days=1)) is None
        assert deliveries.due(connection, wants, later + timedelta(days=1)) is None


def test_what_is_long_over_is_not_searched_again_and_nothing_waiting_is_passed_over(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    for hours, sequence in ((80, 1), (30, 2), (29, 3), (0.5, 4), (0.4, 5)):
        happened(engine, hours_ago=hours, sequence=sequence)
    with transaction(engine) as connection:
        first, second, third, newest, _ = connection.scalars(
            select(incidents.c.id).order_by(incidents.c.id)
        ).all()
        wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
        assert deliveries.settled(connection, wants, moment) == first  # too old to be sent
        deliveries.claim(connection, third, "t", moment)
        deliveries.take(connection, third, "t", moment)
        assert deliveries.settled(connection, wants, moment) == first
        deliveries.claim(connection, second, "t", moment)
        assert deliveries.settled(connection, wants, moment) == first  # leased, not taken
        deliveries.take(connection, second, "t", moment)
        assert deliveries.settled(connection, wants, moment) == third  # the last is recent
        deliveries.claim(connection, newest, "t", moment)
        deliveries.take(connection, newest, "t", moment)
        assert deliveries.settled(connection, wants, moment) == third  # lower ids may still appear
        far = moment + timedelta(days=4)
        last = connection.scalar(select(func.max(incidents.c.id))) or 0
        assert deliveries.settled(connection, wants, far) == last
    nothing = Wants(target="t", kinds=tuple(Kind), after=last)
    with transaction(engine) as connection:
        assert deliveries.settled(connection, nothing, far) == last
