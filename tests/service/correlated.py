"""Requests about correlated noise that tests share."""

from typing import Any

import httpx
from sqlalchemy import Engine

from service.storage.engine import snapshot
from service.transparency.verification.ledger import verify
from tests.service.samples import Json, event, setup

NOISE = 4.0
ACCEPT = ["published", "derived", "declared"]


# Steps as the service fills them in: of the identity, two steps of a record.
CORRELATED: Json = {
    "kind": "matrix_gaussian", "noise_multiplier": 20.0, "sensitivity_squared": 2.0,
    "strategy": "sha256:8776298d43a8892e24d796801a7a68cc0071ad6938f3457b3518b1fe00f58bd8",
}  # fmt: skip
ROWS: Json = {
    "kind": "min_separation", "steps_per_pass": 5, "min_separation": 3, "placement": "by_slot",
}  # fmt: skip


def square_root(steps: int) -> list[float]:
    """The coefficients 1, 1/2, 3/8, ... of the square root of the prefix sums."""
    found = [1.0]
    for i in range(1, steps):
        found.append(found[-1] * (2 * i - 1) / (2 * i))
    return found


def keep(api: httpx.Client, **strategy: Any) -> str:
    """Keep a strategy; its digest."""
    answer = api.post("/v1/strategies", json={"strategy": strategy})
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["digest"])


def toeplitz(api: httpx.Client, steps: int = 64) -> str:
    """Keep the square root."""
    return keep(api, kind="toeplitz", coefficients=square_root(steps))


def noisy(digest: str, noise: float = NOISE, **given: Any) -> Json:
    """The mechanism."""
    return {"kind": "matrix_gaussian", "noise_multiplier": noise, "strategy": digest} | given


def separated(n: int = 64, b: int = 8, k: int | None = None, **given: Any) -> Json:
    """The sampling."""
    found: Json = {
        "kind": "min_separation", "steps_per_pass": n, "min_separation": b,
        "placement": "by_record",
    }  # fmt: skip
    return found | ({} if k is None else {"participations": k}) | given


def rows(first: int, steps: int, digest: str, *, noise: float = NOISE, **given: Any) -> Json:
    """Some rows of a pass."""
    return event(first, steps, mechanism=noisy(digest, noise), sampling=separated(**given))


def begin(api: httpx.Client, **given: Any) -> None:
    """A dataset that accepts what is derived, and a run."""
    setup(api, dataset_given={"accept": ACCEPT} | given, delta=1e-6)


def guaranteed(api: httpx.Client, path: str = "runs/run", delta: float = 1e-6) -> Json:
    """What is certified."""
    answer = api.get(f"/v1/{path}/guarantee", params={"delta": delta})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


NOT_KEPT = "sha256:" + 64 * "0"  # a digest that no strategy has


def refused(answer: httpx.Response, status: int, kind: str, words: str = "") -> None:
    assert answer.status_code == status, answer.text
    assert answer.json()["type"].endswith(kind), answer.text
    assert words in answer.text, answer.text


def sound(engine: Engine) -> list[str]:
    with snapshot(engine) as connection:
        return [one.text for one in verify(connection).broken]
