"""The machine's clock jumps by hours or days: no number depends on it, and nothing waits for it."""

from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from service import clock
from service.ledger.incidents import Kind
from service.operations.webhook_queue import Wants, claim, due, postpone
from service.storage.engine import connect, transaction
from tests.service.faults.answers import begin, insisted, record, require_exactly, require_taken
from tests.service.faults.conftest import serving
from tests.service.samples import BUDGET, GAUSSIAN, POISSON
from tests.service.sse import take, watching
from tests.service.test_incidents import happen

STEPS = 3
JUMPS = (timedelta(days=-400), timedelta(hours=-3), timedelta(hours=3), timedelta(days=400))


class Clock:
    """What a clock that was set says."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self, zone: tzinfo) -> datetime:
        return datetime.now(zone) + self.ahead


@pytest.fixture
def jumping(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(clock, "datetime", found)
    return found


def reserve(api: httpx.Client, steps: int) -> None:
    body = {
        "name": "lease",
        "event": {"steps": steps, "mechanism": GAUSSIAN, "sampling": POISSON},
        "ttl_seconds": 600,
    }
    answer = insisted(partial(api.post, "/v1/runs/run/reservations", json=body))
    assert answer.status_code == 201, answer.text


def held(api: httpx.Client) -> float:
    """What is spent and reserved together."""
    found: dict[str, Any] = insisted(partial(api.get, "/v1/datasets/data")).json()
    return float(found["spent"] + found["reserved"])


@pytest.mark.parametrize("jump", JUMPS, ids=str)
def test_a_lease_counts_whatever_the_clock_says(
    file: Path, jumping: Clock, jump: timedelta
) -> None:
    with serving(f"sqlite:///{file}") as api:
        begin(api, 0, budget=BUDGET)
        reserve(api, 1000)
        before = held(api)
        assert before > 0
        jumping.ahead = jump
        assert held(api) == before
        dear = {"name": "more", "event": {"steps": 10**6, "mechanism": GAUSSIAN,
                "sampling": POISSON}, "ttl_seconds": 600}  # fmt: skip
        asked = partial(api.post, "/v1/runs/run/reservations", json=dear)
        assert insisted(asked).status_code == 409
        for number in range(STEPS):  # they use up what was reserved, expired or not
            require_taken(api, number)
            assert held(api) == pytest.approx(before, rel=1e-12)
        jumping.ahead = timedelta()
        assert held(api) == pytest.approx(before, rel=1e-12)
        require_exactly(api, STEPS)


def test_steps_are_recorded_and_streamed_across_jumps(file: Path, jumping: Clock) -> None:
    with serving(f"sqlite:///{file}") as api:
        begin(api, STEPS)
        with watching(api, "/v1/runs/run/stream") as stream:
            for number, jump in enumerate(JUMPS, start=STEPS):
                jumping.ahead = jump
                require_taken(api, number)
                assert insisted(partial(record, api, number)).status_code == 200
                require_exactly(api, number + 1)
                assert insisted(partial(api.get, "/readyz")).status_code == 200
            assert take(stream, 1)[0].data is not None
        asked = partial(api.get, "/v1/datasets/data/guarantee?delta=1e-5&as_of=4")
        assert insisted(asked).json()["steps"] == STEPS + 1  # in the order of facts, not of times


def test_an_attempt_that_a_clock_ahead_has_put_off_is_made(file: Path) -> None:
    with serving(f"sqlite:///{file}") as api:
        begin(api, 1)
        engine = connect(f"sqlite:///{file}")
        happen(engine, 1)
        wants = Wants(target="t", kinds=tuple(Kind), after=0)
        present = datetime.now(UTC)
        ahead = present + timedelta(days=1)
        with transaction(engine) as connection:
            incident = due(connection, wants, ahead)
            assert incident is not None
            assert claim(connection, incident.id, "t", ahead) == 1
            assert postpone(connection, incident, "t", 1, ahead)
            assert due(connection, wants, ahead) is None
            assert due(connection, wants, present) is not None
            assert claim(connection, incident.id, "t", present) == 2
            assert claim(connection, incident.id, "t", present) is None
        engine.dispose()
