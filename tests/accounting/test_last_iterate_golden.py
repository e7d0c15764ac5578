"""The golden values of golden/last_iterate.json that concern steps in a fixed order."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accounting.gaussian import gaussian_epsilon
from accounting.last_iterate.closed_forms import shift_share, worst_cyclic_mu
from accounting.last_iterate.lipschitz import clipped_step_lipschitz
from accounting.last_iterate.shift import best_start_mu, shift_mu

TABLE: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "golden" / "last_iterate.json").read_text(encoding="utf-8")
)
SAME = 1e-9
ONE_UP = 1 - 1e-15  # a bound may not lie below the value by more than the value's own rounding


def named(*beginnings: str) -> pytest.MarkDecorator:
    """The rows whose names begin so."""
    rows = [row for row in TABLE if row["name"].startswith(beginnings)]
    assert rows
    return pytest.mark.parametrize("row", rows, ids=[row["name"] for row in rows])


def close_above(found: float, row: dict[str, Any]) -> bool:
    value = float(row["value"])
    return bool(value * (ONE_UP - row["ref_rel_err"]) <= found <= value * (1 + SAME))


def test_every_row_of_the_first_nineteen_is_used() -> None:
    names = {row["name"].split(".mu2")[0] for row in TABLE[:19]}
    runs = {row["name"].split(".mu2")[0] for row in TABLE[:19] if "z0" in row["input"]}
    assert names - runs == {"domain_gd", "theta", "lip_clipped", "gdp_eps"}


@named("gd_", "fmtt", "berthier", "cgd", "hetero", "start_D")
def test_a_run_costs_what_the_reference_says(row: dict[str, Any]) -> None:
    given = row["input"]
    mu = shift_mu(
        lipschitz=np.array(given["L"]),
        sensitivities=np.array(given["s"], dtype=np.float64),
        noises=np.array(given["sigma"]),
        start=given["z0"],
    )
    assert close_above(mu * mu, row)


@named("domain_gd")
def test_a_bounded_domain_is_worth_what_the_reference_says(row: dict[str, Any]) -> None:
    given = row["input"]
    steps = np.ones(given["T"])
    mu = best_start_mu(
        lipschitz=steps * given["L"],
        sensitivities=steps * given["s"],
        noises=steps * given["sigma"],
        diameter=given["D"],
    )
    assert close_above(mu * mu, row)
    closed = worst_cyclic_mu(
        lipschitz=given["L"],
        sensitivity=given["s"],
        noise=given["sigma"],
        steps=given["T"],
        steps_per_pass=1,
        diameter=given["D"],
    )
    assert close_above(closed * closed, row)


@named("theta")
def test_shares_are_those_of_the_reference(row: dict[str, Any]) -> None:
    share = shift_share(lipschitz=row["input"]["L"], steps=row["input"]["k"])
    assert close_above(share, row)


@named("lip_clipped")
def test_clipped_steps_have_the_constants_of_the_reference(row: dict[str, Any]) -> None:
    given = row["input"]
    found = clipped_step_lipschitz(
        learning_rate=given["lr"], smoothness=given["M"], convexity=-given["m"]
    )
    assert close_above(found, row)


@named("gdp_eps")
def test_a_mu_means_the_epsilon_of_the_reference(row: dict[str, Any]) -> None:
    found = gaussian_epsilon(row["input"]["delta"], mu=row["input"]["mu"])
    assert close_above(found, row)
