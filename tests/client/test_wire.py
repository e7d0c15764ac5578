import json
import math
from collections.abc import Callable
from typing import Any

import dpledger_client as dp
import numpy as np
import pytest
from pydantic import TypeAdapter

from service.schemas.mechanisms import MechanismMessage
from service.schemas.samplings import SamplingMessage

_MECHANISM: TypeAdapter[Any] = TypeAdapter(MechanismMessage)
_SAMPLING: TypeAdapter[Any] = TypeAdapter(SamplingMessage)


@pytest.mark.parametrize(
    ("made", "wire"),
    [
        (dp.gaussian(noise_multiplier=1), {"kind": "gaussian", "noise_multiplier": 1.0}),
        (dp.no_noise(), {"kind": "none"}),
        (dp.laplace(noise_multiplier=20), {"kind": "laplace", "noise_multiplier": 20.0}),
        (
            dp.randomized_response(probability_of_truth=0.6, categories=2),
            {"kind": "randomized_response", "probability_of_truth": 0.6, "categories": 2},
        ),
        (
            dp.approximate_dp(epsilon=1, delta=0),
            {"kind": "approximate_dp", "epsilon": 1.0, "delta": 0.0},
        ),
        (
            dp.matrix_gaussian(noise_multiplier=4, strategy="sha256:" + 64 * "0"),
            {"kind": "matrix_gaussian", "noise_multiplier": 4.0, "strategy": "sha256:" + 64 * "0"},
        ),
        (
            dp.min_separation(steps_per_pass=64, min_separation=8, placement="by_slot"),
            {
                "kind": "min_separation",
                "steps_per_pass": 64,
                "min_separation": 8,
                "placement": "by_slot",
                "noise_restarts_each_pass": False,
            },
        ),
        (
            dp.min_separation(
                steps_per_pass=64,
                min_separation=8,
                placement="by_record",
                participations=3,
                noise_restarts_each_pass=True,
            ),
            {
                "kind": "min_separation",
                "steps_per_pass": 64,
                "min_separation": 8,
                "participations": 3,
                "placement": "by_record",
                "noise_restarts_each_pass": True,
            },
        ),
        (
            dp.cyclic_poisson(
                sampling_probability=0.1, cycle_length=8, steps_per_pass=64, placement="by_record"
            ),
            {
                "kind": "cyclic_poisson",
                "sampling_probability": 0.1,
                "cycle_length": 8,
                "steps_per_pass": 64,
                "placement": "by_record",
                "noise_restarts_each_pass": False,
            },
        ),
        (dp.zcdp(rho=1), {"kind": "zcdp", "rho": 1.0}),
        (dp.full(), {"kind": "full"}),
        (dp.unknown(), {"kind": "unknown"}),
        (dp.poisson(sampling_probability=1), {"kind": "poisson", "sampling_probability": 1.0}),
        (dp.poisson(expected_batch_size=64), {"kind": "poisson", "expected_batch_size": 64.0}),
        (dp.fixed_size(batch_size=64), {"kind": "fixed_size", "batch_size": 64}),
        (
            dp.cyclic(batch_size=64, steps_per_pass=938),
            {"kind": "cyclic", "batch_size": 64, "steps_per_pass": 938},
        ),
        (
            dp.cyclic(batch_size=64, steps_per_pass=3),
            {"kind": "cyclic", "batch_size": 64, "steps_per_pass": 3},
        ),
        (
            dp.shuffle(batch_size=64, steps_per_pass=938),
            {"kind": "shuffle", "batch_size": 64, "reshuffle": "each_pass", "steps_per_pass": 938},
        ),
        (
            dp.shuffle(batch_size=64, reshuffle="once", steps_per_pass=3),
            {"kind": "shuffle", "batch_size": 64, "reshuffle": "once", "steps_per_pass": 3},
        ),
        (
            dp.shuffle(batch_size=64, steps_per_pass=3, left_out=0),
            {
                "kind": "shuffle",
                "batch_size": 64,
                "reshuffle": "each_pass",
                "steps_per_pass": 3,
                "left_out": 0,
            },
        ),
        (
            dp.truncated_poisson(sampling_probability=1, max_batch_size=64),
            {"kind": "truncated_poisson", "sampling_probability": 1.0, "max_batch_size": 64},
        ),
        (dp.with_replacement(batch_size=64), {"kind": "with_replacement", "batch_size": 64}),
        (dp.balls_and_bins(steps_per_pass=3), {"kind": "balls_and_bins", "steps_per_pass": 3}),
        (
            dp.random_allocation(steps_per_pass=3, participations=3),
            {"kind": "random_allocation", "steps_per_pass": 3, "participations": 3},
        ),
        (dp.non_uniform(max_weight=1), {"kind": "non_uniform", "max_weight": 1.0}),
        (
            dp.event(mechanism=dp.no_noise(), sampling=dp.full(), steps=2),
            {"steps": 2, "mechanism": {"kind": "none"}, "sampling": {"kind": "full"}},
        ),
    ],
)
def test_constructors_make_the_wire_form(made: dict[str, Any], wire: dict[str, Any]) -> None:
    assert made == wire


@pytest.mark.parametrize(
    "make",
    [
        lambda: dp.gaussian(noise_multiplier=0),
        lambda: dp.gaussian(noise_multiplier=-1),
        lambda: dp.gaussian(noise_multiplier=math.nan),
        lambda: dp.gaussian(noise_multiplier=math.inf),
        lambda: dp.laplace(noise_multiplier=0),
        lambda: dp.laplace(noise_multiplier=math.nan),
        lambda: dp.randomized_response(probability_of_truth=0, categories=2),
        lambda: dp.randomized_response(probability_of_truth=1, categories=2),
        lambda: dp.randomized_response(probability_of_truth=math.nan, categories=2),
        lambda: dp.randomized_response(probability_of_truth=0.5, categories=1),
        lambda: dp.approximate_dp(epsilon=-1, delta=0),
        lambda: dp.approximate_dp(epsilon=math.inf, delta=0),
        lambda: dp.approximate_dp(epsilon=math.nan, delta=0),
        lambda: dp.approximate_dp(epsilon=1, delta=1),
        lambda: dp.approximate_dp(epsilon=1, delta=-0.1),
        lambda: dp.approximate_dp(epsilon=1, delta=math.nan),
        lambda: dp.zcdp(rho=0),
        lambda: dp.zcdp(rho=math.inf),
        lambda: dp.poisson(),
        lambda: dp.poisson(sampling_probability=0.1, expected_batch_size=1),
        lambda: dp.poisson(sampling_probability=0),
        lambda: dp.poisson(sampling_probability=1.5),
        lambda: dp.poisson(expected_batch_size=math.nan),
        lambda: dp.fixed_size(batch_size=0),
        lambda: dp.cyclic(batch_size=1, steps_per_pass=0),
        lambda: dp.shuffle(batch_size=1, steps_per_pass=1, left_out=-1),
        lambda: dp.truncated_poisson(sampling_probability=0, max_batch_size=1),
        lambda: dp.truncated_poisson(sampling_probability=1.5, max_batch_size=1),
        lambda: dp.truncated_poisson(sampling_probability=math.nan, max_batch_size=1),
        lambda: dp.truncated_poisson(sampling_probability=0.5, max_batch_size=0),
        lambda: dp.with_replacement(batch_size=0),
        lambda: dp.balls_and_bins(steps_per_pass=0),
        lambda: dp.random_allocation(steps_per_pass=0, participations=0),
        lambda: dp.random_allocation(steps_per_pass=3, participations=0),
        lambda: dp.random_allocation(steps_per_pass=3, participations=4),
        lambda: dp.non_uniform(max_weight=0),
        lambda: dp.non_uniform(max_weight=1.5),
        lambda: dp.non_uniform(max_weight=math.nan),
        lambda: dp.event(mechanism=dp.no_noise(), sampling=dp.full(), steps=0),
    ],
)
def test_what_no_service_accepts_is_refused_at_once(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"must|Give"):
        make()


@pytest.mark.parametrize(
    "made",
    [
        dp.gaussian(noise_multiplier=1e-9),
        dp.gaussian(noise_multiplier=1e9),
        dp.laplace(noise_multiplier=np.float32(0.5)),  # type: ignore[arg-type]
        dp.randomized_response(probability_of_truth=1e-12, categories=2),
        dp.randomized_response(
            probability_of_truth=math.nextafter(1, 0),
            categories=np.int64(10**6),  # type: ignore[arg-type]
        ),
        dp.approximate_dp(epsilon=0, delta=0),
        dp.approximate_dp(epsilon=10_000, delta=math.nextafter(1, 0)),
        dp.zcdp(rho=1e-12),
        dp.zcdp(rho=10_000),
        dp.no_noise(),
    ],
)
def test_the_service_takes_the_mechanisms_as_they_are_made(made: dict[str, Any]) -> None:
    taken = _MECHANISM.validate_json(json.dumps(made))
    assert taken.model_dump(mode="json") == made


@pytest.mark.parametrize(
    "made",
    [
        dp.full(), dp.unknown(), dp.poisson(sampling_probability=1e-12),
        dp.poisson(expected_batch_size=64), dp.fixed_size(batch_size=64),
        dp.truncated_poisson(sampling_probability=1, max_batch_size=64),
        dp.shuffle(batch_size=64, steps_per_pass=938),
        dp.with_replacement(batch_size=64), dp.cyclic(batch_size=64, steps_per_pass=3),
        dp.balls_and_bins(steps_per_pass=3), dp.non_uniform(max_weight=1),
        dp.random_allocation(steps_per_pass=3, participations=3),
    ],
)  # fmt: skip
def test_the_service_takes_the_samplings_as_they_are_made(made: dict[str, Any]) -> None:
    taken = _SAMPLING.validate_json(json.dumps(made))
    assert taken.model_dump(mode="json", exclude_none=True) == made


def test_a_count_is_never_a_fraction() -> None:
    with pytest.raises(TypeError):
        dp.fixed_size(batch_size=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dp.random_allocation(steps_per_pass=3, participations=1.5)  # type: ignore[arg-type]


def test_numbers_of_array_libraries_become_json() -> None:
    made = [
        dp.gaussian(noise_multiplier=np.float32(0.5)),  # type: ignore[arg-type]
        dp.fixed_size(batch_size=np.int64(8)),  # type: ignore[arg-type]
        dp.fixed_size(batch_size=True),
        dp.non_uniform(max_weight=np.float32(0.5)),  # type: ignore[arg-type]
        dp.random_allocation(steps_per_pass=np.int64(3), participations=np.int32(2)),  # type: ignore[arg-type]
    ]
    assert json.dumps(made) == json.dumps(
        [
            {"kind": "gaussian", "noise_multiplier": 0.5},
            {"kind": "fixed_size", "batch_size": 8},
            {"kind": "fixed_size", "batch_size": 1},
            {"kind": "non_uniform", "max_weight": 0.5},
            {"kind": "random_allocation", "steps_per_pass": 3, "participations": 2},
        ]
    )


@pytest.mark.parametrize("make", [dp.cyclic, dp.shuffle])
def test_the_length_of_a_pass_has_no_default(make: Any) -> None:
    with pytest.raises(ValueError, match=r"steps_per_pass must be given.*ceil.*floor.*drop_last"):
        make(batch_size=10)
