"""Strategies of correlated noise over HTTP: kept by content, and how far they reach."""

import hashlib
import json

import httpx
import pytest

from tests.service.correlated import (
    NOT_KEPT,
    keep,
    refused,
    square_root,
)
from tests.service.samples import Json


def test_a_strategy_is_kept_once_and_named_by_its_content(api: httpx.Client) -> None:
    body = {"strategy": {"kind": "toeplitz", "coefficients": [1, 0.5]}}
    first = api.post("/v1/strategies", json=body)
    again = api.post("/v1/strategies", json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    content = json.dumps(first.json()["strategy"], sort_keys=True, separators=(",", ":"))
    assert first.json()["digest"] == f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"
    found = api.get(f"/v1/strategies/{first.json()['digest']}")
    assert found.json() == first.json()
    refused(api.get(f"/v1/strategies/{NOT_KEPT}"), 404, "not-found")


GOLDEN: list[tuple[Json, int, int, int | None, float]] = [
    ({"kind": "toeplitz", "coefficients": square_root(64)}, 64, 8, None, 50.15585143397344),
    ({"kind": "toeplitz", "coefficients": square_root(64)}, 64, 8, 3, 12.936953309984117),
    ({"kind": "toeplitz", "coefficients": square_root(1000)}, 1000, 100, 10, 83.79650325012167),
    ({"kind": "toeplitz", "coefficients": square_root(2048)}, 2048, 128, 16, 196.78954352464535),
    ({"kind": "toeplitz", "coefficients": square_root(2048)}, 2048, 2048, 1, 3.4932286006780044),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 4, 4, 5.953125),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 4, 2, 2.9765625),
    ({"kind": "toeplitz", "coefficients": [1, 0.5, 0.375, 0.3125]}, 16, 3, 6, 11.56640625),
    ({"kind": "toeplitz", "coefficients": [1, 0.2, 0.9]}, 8, 3, 3, 4.74),
    ({"kind": "toeplitz", "coefficients": [1, -0.9]}, 8, 1, 8, 26.27),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     1000, 100, 10, 62.006273891423334),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     64, 8, 8, 77.56469498130525),
    ({"kind": "blt", "buffer_decay": [0.99, 0.8], "output_scale": [0.2, 0.3]},
     2052, 342, 6, 23.844792065706354),
    ({"kind": "tree"}, 16, 4, 4, 36.0),
    ({"kind": "tree"}, 15, 4, 4, 15.0),
    ({"kind": "tree"}, 15, 4, 2, 10.0),
    ({"kind": "identity"}, 64, 8, 5, 5.0),
    ({"kind": "toeplitz", "coefficients": square_root(8), "column_normalized": True},
     64, 8, 8, 8.0),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "n", "b", "k", "squared"), GOLDEN)
def test_sensitivities_are_those_of_others(
    api: httpx.Client, strategy: Json, n: int, b: int, k: int | None, squared: float
) -> None:
    digest = keep(api, **strategy)
    query: Json = {"steps_per_pass": n, "min_separation": b}
    query |= {} if k is None else {"participations": k}
    found = api.get(f"/v1/strategies/{digest}/sensitivity", params=query).json()
    assert found["sensitivity_squared"] == pytest.approx(squared, rel=1e-12)


@pytest.mark.parametrize(
    ("strategy", "query", "words"),
    [
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5]}, (8, 9, 1), "min_separation"),
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5]}, (8, 4, 3), "participations"),
        ({"kind": "toeplitz", "coefficients": [1.0, 0.5], "column_normalized": True}, (8, 1, 2),
         "min_separation of at least 2"),
        ({"kind": "blt", "buffer_decay": [0.5], "output_scale": [0.5], "column_normalized": True},
         (8, 4, 2), "column-normalized"),
        ({"kind": "tree"}, (4096, 4, 4), "at most 2048 steps"),
        ({"kind": "banded", "rows": [[1.0], [0.5, 1.0]]}, (8, 4, 2), "the 2 rows given"),
    ],
)  # fmt: skip
def test_what_no_rule_serves_is_refused_by_name(
    api: httpx.Client, strategy: Json, query: tuple[int, int, int], words: str
) -> None:
    digest = keep(api, **strategy)
    names = ("steps_per_pass", "min_separation", "participations")
    asked = dict(zip(names, query, strict=True))
    refused(
        api.get(f"/v1/strategies/{digest}/sensitivity", params=asked), 422, "invalid-request", words
    )


def test_work_is_bounded_before_it_is_begun(api: httpx.Client) -> None:
    digest = keep(api, kind="toeplitz", coefficients=[1.0, -0.9])
    asked = {"steps_per_pass": 2048, "min_separation": 1}
    answer = api.get(f"/v1/strategies/{digest}/sensitivity", params=asked)
    refused(answer, 422, "too-expensive", "processor time")


@pytest.mark.parametrize(
    ("strategy", "where"),
    [
        ({"kind": "toeplitz", "coefficients": []}, "coefficients"),
        ({"kind": "toeplitz", "coefficients": [0.0, 1.0]}, "coefficients"),
        ({"kind": "toeplitz", "coefficients": [1.0, 1e-70]}, "coefficients[1]"),
        ({"kind": "blt", "buffer_decay": [1.5], "output_scale": [1.0]}, "buffer_decay[0]"),
        ({"kind": "blt", "buffer_decay": [0.5], "output_scale": [1.0, 2.0]}, "same length"),
        ({"kind": "banded", "rows": [[1.0, 1.0]]}, "row i, from 0"),
        ({"kind": "banded", "rows": [[1.0], [1.0, 0.0]]}, "row i, from 0"),
        ({"kind": "tree", "arity": 3}, "arity"),
        ({"kind": "circulant"}, "kind must be one of"),
    ],
)
def test_a_faulty_strategy_is_refused_where_it_is_wrong(
    api: httpx.Client, strategy: Json, where: str
) -> None:
    refused(api.post("/v1/strategies", json={"strategy": strategy}), 422, "request", where)
