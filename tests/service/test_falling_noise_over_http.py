"""Noise that falls inside a pass, over HTTP: sums, odometer and verification agree."""

from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, select

from accounting.event_counts import count_events
from accounting.events import BallsAndBins, Event, Full, Gaussian, NeighboringRelation, Span
from accounting.filters import odometer_epsilon
from accounting.guarantees import DEFAULT_ACCEPT, Status
from service.schemas.event_codec import event_of
from service.storage.engine import snapshot
from service.storage.tables import distinct_events
from service.transparency.verification.ledger import verify
from tests.service.samples import WRITER, Json, append, event, setup
from tests.service.test_corrections import correct
from tests.service.test_reservations import reserve
from tests.service.world_checks import require_recorded, require_reserved

TRUSTING = DEFAULT_ACCEPT | {Status.DERIVED}
SPECIAL = NeighboringRelation.REPLACE_SPECIAL
LONG: Json = {"kind": "balls_and_bins", "steps_per_pass": 1000}
SHORT: Json = {"kind": "balls_and_bins", "steps_per_pass": 10}
LADDER = [round(4 - 0.05 * i, 2) for i in range(13)]


def gaussian(noise: float) -> Json:
    return {"kind": "gaussian", "noise_multiplier": noise}


def begin(api: httpx.Client, **given: Any) -> None:
    accept = ["published", "derived", "declared"]
    about = {"neighboring_relation": "replace_special", "accept": accept} | given
    setup(api, dataset_given=about, delta=1e-5)


def ladder(api: httpx.Client, inside: int) -> None:
    """Three passes of 1,000 steps at each noise, the last of which goes on at the next noise."""
    counts = [3000] * len(LADDER)
    counts[0], counts[-1] = 3000 - inside, 3000 + inside
    first = 0
    for noise, steps in zip(LADDER, counts, strict=True):
        found = append(api, event(first, steps, mechanism=gaussian(noise), sampling=LONG))
        assert found.status_code == 201, found.text
        first += steps


@pytest.mark.parametrize(("inside", "told"), [(0, 0.3177), (500, 0.8805)])
def test_thirteen_noises_are_told_as_they_fell(
    api: httpx.Client, engine: Engine, inside: int, told: float
) -> None:
    begin(api)
    ladder(api, inside)
    for path in ("runs/run", "datasets/data"):
        asked: Json = {"accountant": "odometer", "delta": 1e-5}
        found = api.get(f"/v1/{path}/guarantee", params=asked).json()
        assert found["epsilon"] == pytest.approx(told, abs=5e-5)
        assert found["valid_for"] == "adaptive"
        assert ("falling-noise" in found["theorems"]) == (inside > 0)
    with snapshot(engine) as connection:
        assert verify(connection).broken == []


def spans(*parts: tuple[float, int]) -> list[Span]:
    sampling = BallsAndBins(steps_per_pass=10)
    return [
        Span(
            event=Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling), steps=steps
        )
        for noise, steps in parts
    ]


def spent(api: httpx.Client, name: str = "data") -> Any:
    return api.get(f"/v1/datasets/{name}").json()["budget"]


def test_a_budget_counts_a_fall_in_each_open_pass_before_the_step_that_uses_it(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api, budget={"epsilon": 10.0, "delta": 1e-5})
    append(api, event(0, 15, mechanism=gaussian(4.0), sampling=SHORT))
    body = {"name": "b", "writer": WRITER, "from_step": 15, "order": "fresh"}
    assert api.post("/v1/runs/run/branches", json=body).status_code == 201
    append(api, event(15, 5, mechanism=gaussian(3.0), sampling=SHORT), branch="b")
    ahead: Json = {"event": {"mechanism": gaussian(2.0), "sampling": SHORT}}
    assert reserve(api, "next", 8, **ahead).status_code == 201
    held = spent(api)
    append(api, event(15, 8, mechanism=gaussian(2.0), sampling=SHORT))
    after = spent(api)
    assert after["reserved"] == pytest.approx(0.0, abs=1e-12)
    assert after["spent"] == pytest.approx(held["spent"] + held["reserved"], rel=1e-9)
    append(api, event(20, 2, mechanism=gaussian(2.5), sampling=SHORT), branch="b")
    main = spans((4.0, 15), (2.0, 8))
    other = spans((3.0, 5), (2.5, 2))
    with snapshot(engine) as connection:
        require_recorded(connection)
        require_reserved(connection)
        assert verify(connection).broken == []
        rows = connection.execute(select(distinct_events)).all()
    stored = {event_of(row.content, 60000): (row.passes, row.begun) for row in rows}
    expected = count_events([main, other])
    assert stored == {
        one: (expected.passes.get(one, 0), expected.begun.get(one, 0)) for one in expected.steps
    }
    read = odometer_epsilon(expected, relation=SPECIAL, delta=1e-5, accept=TRUSTING)
    asked: Json = {"accountant": "odometer", "delta": 1e-5}
    found = api.get("/v1/datasets/data/guarantee", params=asked).json()
    assert found["epsilon"] == pytest.approx(read, rel=1e-12)


def test_what_a_loader_falls_to_is_refused_where_the_budget_does_not_hold_it(
    api: httpx.Client,
) -> None:
    begin(api, budget={"epsilon": 1.0, "delta": 1e-5})
    append(api, event(0, 5, mechanism=gaussian(4.0), sampling=SHORT), mode="charge")
    fallen = event(5, 1, mechanism=gaussian(1.0), sampling=SHORT)
    assert append(api, fallen, mode="charge").status_code == 409
    again = event(5, 5, mechanism=gaussian(4.0), sampling=SHORT)
    assert append(api, again, mode="charge").status_code == 201


def test_a_correction_leaves_open_where_the_passes_of_its_loader_began(
    api: httpx.Client, engine: Engine
) -> None:
    begin(api, budget={"epsilon": 100.0, "delta": 1e-5})
    append(api, event(0, 30, mechanism=gaussian(4.0), sampling=SHORT))
    append(api, event(30, 30, mechanism=gaussian(2.0), sampling=SHORT))
    before = spent(api)["spent"]
    answer = correct(api, event(5, 1, mechanism=gaussian(50.0), sampling={"kind": "full"}))
    assert answer.status_code == 201, answer.text
    with snapshot(engine) as connection:
        assert verify(connection).broken == []
    really = count_events(
        [[*spans((4.0, 5)), Span(event=full(50.0), steps=1), *spans((4.0, 24), (2.0, 30))]]
    )
    known = odometer_epsilon(really, relation=SPECIAL, delta=1e-5, accept=TRUSTING)
    assert spent(api)["spent"] > before
    found = api.get(
        "/v1/datasets/data/guarantee", params={"accountant": "odometer", "delta": 1e-5}
    ).json()
    assert found["epsilon"] >= known * (1 - 1e-12)


def full(noise: float) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=Full())
