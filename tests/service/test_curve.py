"""The curve of a run: bounds on its profile and on any membership test."""

from unittest.mock import Mock

import httpx
import numpy as np
import pytest

from accounting import privacy_profile
from accounting.guarantees import Status
from accounting.privacy_profile import Profile
from service.guarantees.privacy_curve import covering_profile
from tests.service.samples import Json, append, event, setup


def curve(api: httpx.Client, **query: object) -> Json:
    answer = api.get("/v1/runs/run/curve", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


@pytest.mark.parametrize("points", [2, 50, 200])
def test_a_curve_falls_and_agrees_with_the_guarantee(api: httpx.Client, points: int) -> None:
    setup(api)
    append(api, event(0, 1000))
    found = curve(api, points=points)
    assert (found["run"], found["steps"], found["sequence"]) == ("run", 1000, 1)
    assert (found["status"], found["reason"]) == ("published", None)
    assert "poisson_sampling" in found["assumptions"]
    profile = found["profile"]
    assert len(profile) == points
    assert profile[0]["epsilon"] == 0
    for one in profile:
        assert 0 < one["delta_lower"] <= one["delta"] <= 1
    deltas = [one["delta"] for one in profile]
    assert deltas == sorted(deltas, reverse=True)
    middle = profile[len(profile) // 2]
    at = api.get("/v1/runs/run/guarantee", params={"epsilon": middle["epsilon"]}).json()
    assert middle["delta_lower"] <= at["delta"] <= middle["delta"] * 1.001
    assert found["membership_advantage"] == pytest.approx(profile[0]["delta"], rel=1e-9)


def test_a_curve_bounds_every_membership_test(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 1000))
    found = curve(api)
    rates = [one["false_positive_rate"] for one in found["trade_off"]]
    missed = [one["false_negative_rate"] for one in found["trade_off"]]
    assert rates == sorted(set(rates))
    assert missed == sorted(missed, reverse=True)
    assert (rates[0], rates[-1], missed[-1]) == (0, 1, 0)
    for rate, least in zip(rates, missed, strict=True):
        assert 1 - rate - found["membership_advantage"] <= least + 1e-9
        assert least <= 1 - rate
    for one in found["true_positive_rates"]:
        assert one["false_positive_rate"] < one["true_positive_rate"] < 1
    assert 1e-3 in [one["false_positive_rate"] for one in found["true_positive_rates"]]


def test_a_run_that_stands_still_is_read_once(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    append(api, event(0, 1234))
    before = curve(api)
    read = Mock(wraps=privacy_profile.privacy_profile)
    monkeypatch.setattr(privacy_profile, "privacy_profile", read)
    assert curve(api) == before
    read.assert_not_called()
    append(api, event(1234, 1))
    assert curve(api)["profile"] != before["profile"]
    read.assert_called_once()


def test_nothing_recorded_tells_nothing(api: httpx.Client) -> None:
    setup(api)
    found = curve(api)
    assert found["profile"] == [{"epsilon": 0, "delta": 0, "delta_lower": 0}]
    assert found["membership_advantage"] == 0
    for one in found["true_positive_rates"]:
        assert one["true_positive_rate"] == pytest.approx(one["false_positive_rate"])


def test_without_a_bound_the_curve_says_so(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 5), event(5, 1, mechanism={"kind": "none"}))
    found = curve(api)
    assert (found["profile"], found["status"], found["membership_advantage"]) == ([], None, 1)
    assert found["reason"]
    assert all(one["false_negative_rate"] == 0 for one in found["trade_off"])


@pytest.mark.parametrize("points", ["1", "201", "x", "1.5", ""])
def test_points_out_of_range_are_named(api: httpx.Client, points: str) -> None:
    answer = api.get("/v1/runs/run/curve", params={"points": points})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["location"] == "query.points"


def test_an_unknown_run_has_no_curve(api: httpx.Client) -> None:
    assert api.get("/v1/runs/run/curve").status_code == 404


def corrected(api: httpx.Client, first_step: int, steps: int, **really: object) -> None:
    body = {"reason": "the log says so"} | event(first_step, steps) | really
    answer = api.post("/v1/runs/run/corrections", json=body)
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("noise", [0.7, 3.0])
def test_a_curve_holds_for_the_recorded_and_for_the_corrected_steps(
    api: httpx.Client, noise: float
) -> None:
    setup(api)
    append(api, event(0, 300))
    before = curve(api)
    mechanism = {"kind": "gaussian", "noise_multiplier": noise}
    corrected(api, 0, 200, mechanism=mechanism)
    found = curve(api)
    whole = api.get("/v1/runs/run/guarantee", params={"delta": 1e-5}).json()
    # The least epsilon of the curve at the delta of the guarantee is not below it.
    least = min(one["epsilon"] for one in found["profile"] if one["delta"] <= 1e-5)
    assert least >= whole["epsilon"] * (1 - 1e-4)
    more = found["membership_advantage"], before["membership_advantage"]
    assert more[0] > more[1] if noise < 1 else more[0] == more[1]
    for one in found["profile"]:
        assert 0 <= one["delta_lower"] <= one["delta"] <= 1
    assert (found["steps"], found["status"]) == (300, "published")


def test_a_correction_without_a_bound_leaves_no_curve(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 300))
    corrected(api, 10, 1, mechanism={"kind": "none"})
    found = curve(api)
    assert (found["profile"], found["status"], found["membership_advantage"]) == ([], None, 1)
    assert all(one["true_positive_rate"] == 1 for one in found["true_positive_rates"])


def test_the_larger_of_two_profiles_counts_between_their_points() -> None:
    def profile(epsilons: list[float], upper: list[float], lower: list[float]) -> Profile:
        arrays = [np.array(one) for one in (epsilons, upper, lower)]
        return Profile(
            epsilons=arrays[0], upper=arrays[1], lower=arrays[2], mu=None,
            status=Status.PUBLISHED, assumptions=(),
        )  # fmt: skip

    one = profile([0.0, 1.0, 2.0, 4.0], [0.5, 0.3, 0.1, 0.01], [0.4, 0.2, 0.05, 0.0])
    other = profile([0.0, 1.5, 3.0], [0.6, 0.2, 0.02], [0.5, 0.1, 0.01])
    for found in (covering_profile(one, other), covering_profile(other, one)):
        assert found.epsilons.tolist() == [0.0, 1.0, 2.0, 4.0]
        assert found.upper.tolist() == [0.6, 0.6, 0.2, 0.02]
        assert found.lower.tolist() == [0.4, 0.1, 0.01, 0.0]
