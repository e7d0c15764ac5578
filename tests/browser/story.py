"""Something of everything that happens, told in a few runs of a large ledger."""

from typing import Any, Final

import httpx

from benchmarks.months import RUNS, name_of
from tests.service.samples import (
    BUDGET,
    POISSON,
    SAMPLING,
    Json,
    append,
    dataset,
    event,
    run,
)

KEYS: Final = {
    scope: f"dpl_{scope}-of-the-browser-tests-0123456789abcdef"
    for scope in ("admin", "trainer", "viewer")
}
LARGEST: Final = name_of(0)  # the dataset of most entries
LONGEST: Final = f"{LARGEST}-run-{RUNS - 1:02}"  # the run of most steps
SHUFFLE: Final[Json] = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
CONTRADICTED: Final = SAMPLING | {"status": "contradicted", "recorded": SHUFFLE}

LOOKED_AT: Final[Json] = {"action": "comment", "text": "The loader shuffles; ask its owner."}


def noisy(noise: float) -> Json:
    """Gaussian noise."""
    return {"kind": "gaussian", "noise_multiplier": noise}


def post(api: httpx.Client, path: str, body: Json) -> None:
    """Post, and be taken."""
    answer = api.post(path, json=body)
    assert answer.is_success, answer.text


def trained(api: httpx.Client, name: str, of: str, *events: Json, **given: Any) -> None:
    """A run, and what it recorded."""
    post(api, "/v1/runs", run(name, dataset=of, **given))
    for one in events:
        answer = append(api, one, run=name)
        assert answer.is_success, answer.text


def told(api: httpx.Client) -> None:
    """Tell it."""
    post(api, "/v1/datasets", dataset("scans", budget=BUDGET))
    post(api, "/v1/datasets", dataset("visits", budget=BUDGET | {"epsilon": 0.5}))
    post(api, "/v1/datasets", dataset("empty"))
    noises = enumerate((1.4, 1.1, 1.1, 0.9, 1.0))
    steady = [event(100 * i, 100, mechanism=noisy(noise)) for i, noise in noises]
    trained(api, "steady", "scans", *steady, labels={"model": "resnet"})
    trained(api, "shuffled", "scans", event(0, 200, mechanism=noisy(4.0), sampling=SHUFFLE))
    trained(api, "overdrawn", "visits", event(0, 3000, mechanism=noisy(0.7)))
    trained(api, "contradicted", "scans", event(0, 10, sampling=POISSON))
    post(api, "/v1/runs/contradicted/findings", CONTRADICTED)
    trained(api, "untouched", "scans")
    incidents = api.get("/v1/incidents", params={"kind": "sampling_contradicted"}).json()
    (happened,) = incidents["incidents"]
    for note in ({"action": "assign", "assignee": None}, LOOKED_AT):
        api.post(f"/v1/incidents/{happened['id']}/notes", json=note)
    post(api, "/v1/runs/shuffled:finish", {"state": "finished"})
