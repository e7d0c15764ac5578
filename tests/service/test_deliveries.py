"""Deliveries: claimed once, tried again in time, given up late, and not searched for ever."""

from datetime import timedelta

import httpx
import pytest
from sqlalchemy import Engine, func, select

from service.clock import now
from service.ledger.incidents import Kind
from service.operations import webhook_queue
from service.operations.webhook_queue import Wants
from service.storage.engine import transaction
from service.storage.tables import deliveries as rows
from service.storage.tables import incidents
from tests.service.receiver import happened
from tests.service.samples import setup
from tests.service.test_incidents import happen


def test_the_pause_between_attempts_doubles_to_its_limit_and_is_spread(
    api: httpx.Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_queue, "BACKOFF_SECONDS", 5.0)
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    pauses: dict[int, list[float]] = {}
    with transaction(engine) as connection:
        incident = webhook_queue.due(connection, wants, moment)
        assert incident is not None
        assert webhook_queue.claim(connection, incident.id, "t", moment) == 1
        for attempts in (1, 2, 3, 11, 10_000):
            for _ in range(20):
                assert webhook_queue.postpone(connection, incident, "t", attempts, moment)
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
    late = moment + webhook_queue.GIVE_UP + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = webhook_queue.due(connection, wants, moment)
        assert incident is not None
        assert webhook_queue.due(connection, wants, late) is None  # nor is it begun that late
        assert webhook_queue.claim(connection, incident.id, "t", moment) == 1
        before = late - timedelta(seconds=2)
        assert not webhook_queue.postpone(connection, incident, "t", 30, before)
        assert webhook_queue.due(connection, wants, before) is None
        assert webhook_queue.waiting(connection, wants, moment) == 0


def test_a_claim_is_won_once_and_again_only_after_its_lease(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    happen(engine, 1)
    wants, moment = Wants(target="t", kinds=tuple(Kind), after=0), now()
    later = moment + webhook_queue.LEASE + timedelta(seconds=1)
    with transaction(engine) as connection:
        incident = webhook_queue.due(connection, wants, moment)
        assert incident is not None
        found = [webhook_queue.claim(connection, incident.id, "t", moment) for _ in range(2)]
        assert found == [1, None]
        assert webhook_queue.claim(connection, incident.id, "other", moment) == 1
        assert webhook_queue.due(connection, wants, moment) is None
        assert webhook_queue.due(connection, wants, later) is not None
        assert webhook_queue.claim(connection, incident.id, "t", later) == 2
        webhook_queue.record_delivery(connection, incident.id, "t", later)
        # A slower process that failed, or that comes later, does not undo that.
        webhook_queue.postpone(connection, incident, "t", 1, later)
        assert webhook_queue.claim(connection, incident.id, "t", later + timedelta(days=1)) is None
        assert webhook_queue.due(connection, wants, later + timedelta(days=1)) is None


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
        assert (
            webhook_queue.find_settled_row(connection, wants, moment) == first
        )  # too old to be sent
        webhook_queue.claim(connection, third, "t", moment)
        webhook_queue.record_delivery(connection, third, "t", moment)
        assert webhook_queue.find_settled_row(connection, wants, moment) == first
        webhook_queue.claim(connection, second, "t", moment)
        assert (
            webhook_queue.find_settled_row(connection, wants, moment) == first
        )  # leased, not taken
        webhook_queue.record_delivery(connection, second, "t", moment)
        assert (
            webhook_queue.find_settled_row(connection, wants, moment) == third
        )  # the last is recent
        webhook_queue.claim(connection, newest, "t", moment)
        webhook_queue.record_delivery(connection, newest, "t", moment)
        assert (
            webhook_queue.find_settled_row(connection, wants, moment) == third
        )  # lower ids may still appear
        far = moment + timedelta(days=4)
        last = connection.scalar(select(func.max(incidents.c.id))) or 0
        assert webhook_queue.find_settled_row(connection, wants, far) == last
    nothing = Wants(target="t", kinds=tuple(Kind), after=last)
    with transaction(engine) as connection:
        assert webhook_queue.find_settled_row(connection, nothing, far) == last
