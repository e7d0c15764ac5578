"""Independent noise of a key that can be guessed is refused."""

import dataclasses
import inspect
from typing import Any

import jax
import numpy as np
import pytest
from dpledger_client.integrations.jax_privacy import (
    UnsupportedPlan,
    plan_events,
    with_secret_key,
)
from jax_privacy import noise_addition
from jax_privacy.experimental.execution_plan import BandMFExecutionPlanConfig, DPExecutionPlan

STEPS = 12


def plan(strategy: Any) -> DPExecutionPlan:
    return BandMFExecutionPlanConfig(
        iterations=STEPS, strategy=strategy, epsilon=None, delta=None, noise_multiplier=1.5,
        sampling_prob=0.1,
    ).plan  # fmt: skip


@pytest.mark.parametrize("strategy", [np.ones(1), np.array([0.3])], ids=["identity", "scaled"])
@pytest.mark.parametrize(
    "seed", [None, 7, 2**40 + 7, jax.random.key(3), jax.random.key(3, impl="rbg")], ids=repr
)
def test_noise_of_a_small_seed_is_refused(strategy: Any, seed: Any) -> None:
    made = plan(strategy)
    parts = inspect.getclosurevars(made.noise_addition_transform.update).nonlocals
    privatizer = noise_addition.matrix_factorization_privatizer(
        parts["noising_matrix"], stddev=parts["stddev"], prng_key=seed
    )
    made = dataclasses.replace(made, noise_addition_transform=privatizer)
    with pytest.raises(UnsupportedPlan, match="with_secret_key"):
        plan_events(made)
    assert plan_events(with_secret_key(made))[0]["steps"] == STEPS


def test_no_noise_needs_no_key() -> None:
    silent = noise_addition.gaussian_privatizer(stddev=0.0)
    made = dataclasses.replace(plan(np.ones(1)), noise_addition_transform=silent)
    assert plan_events(made)[0]["mechanism"]["kind"] == "none"
