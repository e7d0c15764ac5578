"""The numbers of an audit beside those of jax_privacy.auditing."""

import secrets

import numpy as np
import pytest
from dpledger_client import Client
from jax_privacy.auditing import CanaryScoreAuditor, Explicit

COUNTS = [  # canaries, guesses, right, delta
    (1000, 100, 100, 1e-12),
    (1000, 100, 95, 1e-5),
    (1000, 1000, 700, 1e-5),
    (10_000, 500, 480, 1e-5),
    (100, 10, 10, 1e-12),
    (1000, 200, 190, 1e-12),
    (1000, 200, 188, 1e-3),
    (1000, 100, 50, 1e-5),
]


@pytest.mark.parametrize(("canaries", "guesses", "correct", "delta"), COUNTS)
def test_the_headline_is_the_number_of_the_library_and_the_sharper_one_is_not_below(
    client: Client, canaries: int, guesses: int, correct: int, delta: float
) -> None:
    expected = theirs(canaries, guesses, correct, delta)
    name = f"audited-{secrets.token_hex(8)}"
    client.create_dataset(
        name, dataset_size=1000, neighboring_relation="add_or_remove_one", privacy_unit="record"
    )
    with client.start_run(name, name):
        pass
    # Counts that were not registered: their level is the significance, as in the library.
    body = {
        "canaries": canaries, "guesses": guesses, "correct": correct, "delta": delta,
        "out": "absent", "synthetic": True,
    }  # fmt: skip
    found = client._transport.post(f"/v1/runs/{name}/audits", body)
    assert found["state"] == "estimate"
    assert found["epsilon_at_least"] == pytest.approx(expected, abs=2e-6)
    assert found["sharper"]["epsilon_at_least"] >= expected - 2e-6


def theirs(canaries: int, guesses: int, correct: int, delta: float) -> float:
    """All canaries with score 1 are guessed in; as many of them are in as guesses are right."""
    inside, outside = np.zeros(max(correct, 1)), np.zeros(canaries - max(correct, 1))
    inside[:correct], outside[: guesses - correct] = 1.0, 1.0
    auditor = CanaryScoreAuditor(inside, outside)
    return float(auditor.epsilon_one_run(0.05, delta, threshold_strategy=Explicit(0.5)))
