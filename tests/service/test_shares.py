"""An answer of several guarantees takes the work of one: each of them has its share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from accounting.accountants import best_bound
from tests.service.certifying import certified, signer_of
from tests.service.samples import BUDGET, FULL, append, event, setup
from tests.service.test_reservations import QUIET, reserve

PLAN = [{"mechanism": QUIET, "sampling": FULL, "steps": 10}]
CORRECTION = {
    "first_step": 3, "steps": 4, "reason": "the log says so", "mechanism": QUIET, "sampling": FULL,
}  # fmt: skip


def some(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert append(api, event(0, 10, mechanism=QUIET, sampling=FULL)).status_code == 201


def corrected(api: httpx.Client) -> None:
    some(api)
    assert api.post("/v1/runs/run/corrections", json=CORRECTION).status_code == 201


def ahead(api: httpx.Client) -> None:
    some(api)
    assert reserve(api, "ahead", 5).status_code == 201


def corrected_and_ahead(api: httpx.Client) -> None:
    corrected(api)
    assert reserve(api, "ahead", 5).status_code == 201


def planned(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET}, plan=PLAN, budget={"epsilon": 2.0, "delta": 1e-5})
    assert append(api, event(0, 4, mechanism=QUIET, sampling=FULL)).status_code == 201


def done(api: httpx.Client) -> None:
    planned(api)
    assert append(api, event(4, 6, mechanism=QUIET, sampling=FULL)).status_code == 201


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What every guarantee that is worked out may take."""
    found: list[float] = []
    for name in ("guarantee", "best_bound"):
        whole = getattr(best_bound, name)

        def counted(*args: Any, whole: Any = whole, **given: Any) -> Any:
            if "share" in given:
                found.append(given["share"])
            return whole(*args, **given)

        monkeypatch.setattr(best_bound, name, counted)
    return found


@pytest.mark.parametrize(
    ("world", "kind", "each"),
    [
        (some, "run", [1.0]),
        (corrected, "run", [0.5, 0.5]),
        (planned, "run", [0.5, 0.5]),
        (done, "run", [1.0]),
        (some, "dataset", [1.0]),
        (corrected, "dataset", [0.5, 0.5]),
        (ahead, "dataset", [0.5, 0.5]),
        (corrected_and_ahead, "dataset", [0.25] * 4),
        (planned, "dataset", [0.5, 0.5]),  # what its plan has ahead is reserved
    ],
)
def test_the_shares_of_an_answer_are_one_and_a_certificate_has_the_same(
    api: httpx.Client,
    engine: Engine,
    tmp_path: Path,
    shares: list[float],
    world: Callable[[httpx.Client], None],
    kind: str,
    each: list[float],
) -> None:
    world(api)
    shares.clear()
    name = "run" if kind == "run" else "data"
    assert api.get(f"/v1/{kind}s/{name}/guarantee?delta=1e-5").status_code == 200
    assert shares[: len(each)] == each
    shares.clear()
    certified(engine, signer_of(tmp_path), name, kind=kind, deltas=(1e-5,))
    assert set(shares) == set(each)


@pytest.mark.parametrize("query", ["as_of=1", "branch=main", "as_of=1&branch=main"])
@pytest.mark.parametrize("at", ["delta=1e-5", "epsilon=1"])
def test_all_that_an_answer_has_beside_its_headline_shares_too(
    api: httpx.Client, shares: list[float], query: str, at: str
) -> None:
    corrected(api)
    shares.clear()
    assert api.get(f"/v1/runs/run/guarantee?{at}&{query}").status_code == 200
    assert len(shares) > 2
    assert sum(shares) <= 1 + 1e-9
