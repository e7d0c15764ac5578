"""The deployed burn alerts, evaluated minute by minute on shares that a filter has counted."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from accounting.events import Event, Gaussian, NeighboringRelation, Poisson
from accounting.filters import choose, times

RULES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[1] / "deploy/monitoring/rules.yml").read_text(encoding="utf-8")
)["groups"][0]["rules"]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
ALERTS = {rule["alert"]: rule for rule in RULES if "GoneWithin" in rule.get("alert", "")}
SPENT = "dpledger:budget_spent:ratio"
MINUTES = {"m": 1, "h": 60, "d": 1440}
DAY = 1440
Share = Callable[[int], float]  # by minute

HELD = choose("union_of_orders", epsilon=50.0, delta=1e-5)
COST = HELD.cost(
    Event(mechanism=Gaussian(noise_multiplier=2.0), sampling=Poisson(sampling_probability=0.01)),
    relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
)


def share(steps: int) -> float:
    return HELD.share(times(COST, steps))


def value(text: str, at: int, found: Share) -> float:
    """An expression of these rules: recorded series, their deltas, and arithmetic."""

    def difference(match: re.Match[str]) -> str:
        width = int(match[2]) * MINUTES[match[3]]
        return repr(found(at) - found(at - width))

    text = re.sub(rf"delta\(({SPENT})\[(\d+)([mhd])\]\)", difference, text)
    for name, rule in RECORDED.items():
        known = found(at) if name == SPENT else 0.0 if name not in text else value(rule, at, found)
        text = text.replace(name, repr(known))
    assert re.fullmatch(r"[\d\s.*<>+e-]*(and[\d\s.*<>+e-]*)*", text), text
    return float(eval(text))  # noqa: S307, numbers alone, as was just seen


def pages(found: Share, until: int, *, stride: int = 1) -> dict[str, int]:
    """The first minute at which each alert has held for as long as it waits."""
    first: dict[str, int] = {}
    for name, rule in ALERTS.items():
        number, unit = re.fullmatch(r"(\d+)([mhd])", rule["for"]).groups()  # type: ignore[union-attr]
        wait, since = int(number) * MINUTES[unit], None
        for at in range(0, until, stride):
            since = (at if since is None else since) if value(rule["expr"], at, found) else None
            if since is not None and at - since >= wait:
                first[name] = at
                break
    return first


def after(start: int, steps: Callable[[int], int]) -> Share:
    return lambda at: share(steps(at - start)) if at >= start else 0.0


def test_the_first_step_of_a_dataset_pages_for_nothing() -> None:
    assert len(ALERTS) == 2
    small = choose("union_of_orders", epsilon=3.0, delta=1e-5)
    assert pages(lambda at: small.share(COST) if at >= 10 else 0.0, 2 * DAY, stride=5) == {}
    epsilon = small.spent(COST) / 3  # of the limit: what a conversion costs would page
    assert pages(lambda at: epsilon if at >= 10 else 0.0, 90)


def test_tiny_runs_page_for_nothing_though_their_renyi_epsilons_are_much_of_the_limit() -> None:
    each_minute = after(10, lambda minutes: min(625, minutes))
    assert pages(each_minute, 2 * DAY, stride=5) == {}


@pytest.mark.parametrize(("hours", "alert"), [(12, "PrivacyBudgetGoneWithinADay"),
                                              (100, "PrivacyBudgetGoneWithinAWeek")])  # fmt: skip
def test_an_honest_burn_pages_long_before_the_budget_is_gone(hours: int, alert: str) -> None:
    most = HELD.admissible(HELD.zero(), COST)
    burn = after(10, lambda minutes: min(most, most * minutes // (60 * hours)))
    at = pages(burn, 60 * hours, stride=5)[alert]
    assert burn(at) < 0.4
