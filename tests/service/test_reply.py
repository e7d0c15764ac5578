"""The answer to an append as bytes: the same values as JSON has, and no number that is not one."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounting.events import Event, Full, Gaussian, Laplace, NeighboringRelation, Poisson
from accounting.guarantees import Status
from service.ledger.append import rdp_reading
from service.ledger.append.rdp_reading import meter_of, read_guarantee
from service.ledger.budgets.steps_and_passes import StepsAndPasses
from service.web.api.append_events import encode
from tests.service.samples import BUDGET, Json, append, event, setup

FULL_TWO = Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=Full())
POISSON_ONE, POISSON_TWO = (
    Event(mechanism=Gaussian(noise_multiplier=noise), sampling=Poisson(sampling_probability=0.01))
    for noise in (1.0, 2.0)
)
LAPLACE_TWO = Event(mechanism=Laplace(noise_multiplier=2.0), sampling=Full())
NOT_NUMBERS = [math.nan, math.inf, -math.inf]
ANSWER: Json = {
    "accepted": 1,
    "guarantee": {"epsilon": 0.5, "delta": 1e-5, "reason": None, "theorems": ["gaussian-renyi"]},
    "budget": {"spent": 0.25, "filter": {"orders": [2.0, 8.0], "weights": [0.5, 0.5]}},
}


def places(value: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Where a value has a number that may have a fraction."""
    if isinstance(value, float):
        yield path
    named = value.items() if isinstance(value, dict) else ()
    for name, part in [*named, *(enumerate(value) if isinstance(value, list) else ())]:
        yield from places(part, *path, name)


PLACES = list(places(ANSWER))


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("bad", [*NOT_NUMBERS, np.float64("nan")])
def test_a_number_that_is_not_finite_is_never_written_as_null(
    place: tuple[str | int, ...], bad: float
) -> None:
    assert len(PLACES) == 7
    answer = json.loads(json.dumps(ANSWER))
    part = answer
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = bad
    with pytest.raises(ValueError, match="not finite"):
        encode(answer)


@dataclass
class Pair:
    epsilon: float


@pytest.mark.parametrize("bad", NOT_NUMBERS)
@pytest.mark.parametrize(
    "hidden",
    [
        lambda bad: (0.5, bad),
        lambda bad: {"orders": (2.0, {"epsilon": bad})},
        lambda bad: np.float32(bad),
        lambda bad: np.float16(bad),
        lambda bad: np.array([0.5, bad]),
        lambda bad: Pair(bad),
        lambda bad: Decimal(bad),
    ],
)
def test_no_type_hides_a_number_that_is_not_finite(
    hidden: Callable[[float], object], bad: float
) -> None:
    with pytest.raises(ValueError, match=r"not finite|no value of type"):
        encode(ANSWER | {"budget": {"spent": hidden(bad)}})


def test_what_may_hide_a_number_is_refused_whatever_it_holds() -> None:
    for value in (Pair(0.5), np.array([0.5]), {0.5}, 1j, Decimal("0.5")):
        with pytest.raises(ValueError, match="no value of type"):
            encode(ANSWER | {"spent": value})
    plain: Json = {"spent": (0.5, np.float32(0.5), None, True, 2, Status.PUBLISHED)}
    assert json.loads(encode(plain)) == {"spent": [0.5, 0.5, None, True, 2, "published"]}


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 2**63 - 1))
def test_the_values_are_those_of_json_to_the_last_bit(number: float, count: int) -> None:
    answer = {"epsilon": number, "orders": [number, np.float64(number)], "sequence": count}
    assert json.loads(encode(answer)) == json.loads(json.dumps(answer))


def test_nan_where_an_epsilon_is_read_fails_and_the_fact_is_kept(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET}, delta=1e-5)
    append(api, event(0, 1))
    with monkeypatch.context() as broken:
        broken.setattr(rdp_reading, "rounded_up", lambda *_given, **_named: math.nan)
        answer = append(api, event(1, 1))
    assert (answer.status_code, answer.json()["type"]) == (500, "/problems/internal-error")
    with httpx.Client(base_url=api.base_url, headers=api.headers) as fresh:  # that one was closed
        again = append(fresh, event(1, 1))
        assert (again.status_code, again.json()["duplicates"]) == (200, 1)
        assert fresh.get("/v1/runs/run").json()["steps"] == 2


def test_nan_stays_in_a_reading_for_the_encoder_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    relation, accept = NeighboringRelation.ADD_OR_REMOVE_ONE, frozenset({Status.PUBLISHED})
    units = {
        Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=Full()): StepsAndPasses(steps=9)
    }
    meter = meter_of(units, relation=relation, accept=accept, delta=1e-5)
    monkeypatch.setattr(rdp_reading, "UNIT_ROUNDOFF", math.nan)
    found = read_guarantee(meter, units, relation=relation, accept=accept, sequence=1)
    for name in ("epsilon", "unamplified_epsilon"):
        assert math.isnan(found[name])


@pytest.mark.parametrize("further", [FULL_TWO, POISSON_TWO, LAPLACE_TWO])
def test_a_meter_that_grows_is_the_one_from_nothing(further: Event) -> None:
    """Whether the event rests on what the others do, on something else, or is no Gaussian."""
    relation, accept = NeighboringRelation.ADD_OR_REMOVE_ONE, frozenset({Status.PUBLISHED})
    units = {event: StepsAndPasses(steps=9) for event in (FULL_TWO, POISSON_ONE)}
    units.pop(further, None)
    given: dict[str, Any] = {"relation": relation, "accept": accept, "delta": 1e-5}
    known = meter_of(units, **given)
    units[further] = StepsAndPasses(steps=4)
    grown, fresh = meter_of(units, known=known, **given), meter_of(units, **given)
    assert (grown.events, grown.keys) == (fresh.events, fresh.keys)
    read = {"epsilon": None}  # from the counts of the moment, not from those of the form
    assert {**grown.form, **read} == {**fresh.form, **read}
    given.pop("delta")
    assert read_guarantee(grown, units, sequence=1, **given) == read_guarantee(
        fresh, units, sequence=1, **given
    )
    assert set(fresh.events) == set(units)
