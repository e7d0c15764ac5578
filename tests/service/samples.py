"""Requests that tests share."""

from typing import Any

import httpx

Json = dict[str, Any]
WRITER = "writer-of-the-tests-1"
GAUSSIAN: Json = {"kind": "gaussian", "noise_multiplier": 1.1}
POISSON: Json = {"kind": "poisson", "sampling_probability": 0.01}
FULL: Json = {"kind": "full"}
TRUNCATED: Json = {
    "kind": "truncated_poisson", "sampling_probability": 0.01, "max_batch_size": 700,
}  # fmt: skip
DRAWS: Json = {"kind": "with_replacement", "batch_size": 600}
BALLS: Json = {"kind": "balls_and_bins", "steps_per_pass": 100}
RANDOM: Json = {"kind": "random_allocation", "steps_per_pass": 100, "participations": 3}
WEIGHTED: Json = {"kind": "non_uniform", "max_weight": 0.001}
BUDGET: Json = {"epsilon": 3.0, "delta": 1e-5}
SAMPLING: Json = {
    "kind": "sampling",
    "branch": "main",
    "from_step": 0,
    "status": "declared",
    "declared": POISSON,
    "recorded": POISSON,
    "seen": {"loader": "torch.utils.data.DataLoader", "batch_size": 600, "drop_last": False},
    "reason": "",
}
RANK: Json = {
    "kind": "rank", "branch": "main", "rank": 0, "world_size": 2, "fingerprint": "a" * 64,
}  # fmt: skip
BATCH_SIZES: Json = {
    "kind": "batch_sizes", "branch": "main", "verdict": "refuted", "level": 1e-6,
}  # fmt: skip
AUDIT: Json = {
    "method": "one_run", "canaries": 1000, "guesses": 100, "delta": 1e-5, "significance": 0.05,
    "out": "absent", "view": "every_step", "canary_unit": "record", "synthetic": True,
}  # fmt: skip


def event(
    first_step: int, steps: int, *, mechanism: Json = GAUSSIAN, sampling: Json = POISSON
) -> Json:
    return {
        "first_step": first_step,
        "steps": steps,
        "mechanism": mechanism,
        "sampling": sampling,
    }


def dataset(name: str = "data", **given: Any) -> Json:
    return {
        "name": name,
        "dataset_size": 60000,
        "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "example",
    } | given


def run(name: str = "run", **given: Any) -> Json:
    return {"name": name, "writer": WRITER, "dataset": "data"} | given


def setup(api: httpx.Client, *, dataset_given: Json | None = None, **run_given: Any) -> None:
    """A dataset and a run in it."""
    answer = api.post("/v1/datasets", json=dataset(**(dataset_given or {})))
    assert answer.status_code == 201, answer.text
    answer = api.post("/v1/runs", json=run(**run_given))
    assert answer.status_code == 201, answer.text


def append(api: httpx.Client, *events: Json, **given: Any) -> httpx.Response:
    name = given.pop("run", "run")
    return api.post(f"/v1/runs/{name}/events", json={"events": list(events)} | given)
