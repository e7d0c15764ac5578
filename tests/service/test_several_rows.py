"""Datasets in which a record of their parent has several rows."""

from itertools import product
from typing import Any
from uuid import uuid4

import httpx
import numpy as np
import pytest

from accounting.events import (
    BallsAndBins,
    Event,
    FixedSize,
    Full,
    Gaussian,
    Laplace,
    Mechanism,
    NeighboringRelation,
    Poisson,
    PoissonUnit,
    Sampling,
    TruncatedPoisson,
    Unknown,
    Zcdp,
)
from accounting.rounding import Array, rounded_down
from service.ledger.budgets.lineage import UNBOUNDED, RowsPerParent, view_event
from tests.service.samples import append, dataset, event, run
from tests.service.test_dataset_page import page, words
from tests.service.test_lineage_exact import (
    CHECKED,
    Law,
    density,
    divergence,
    fixed_size,
    proved,
)

ADD, ONE, NULL = NeighboringRelation
NOISY = Gaussian(noise_multiplier=8.0)
FIXED = FixedSize(batch_size=3, dataset_size=10)
CAPPED = TruncatedPoisson(sampling_probability=0.1, max_batch_size=2, dataset_size=10)
POISSON = Poisson(sampling_probability=0.01)
WHERE = {"kind": "poisson", "sampling_probability": 0.01}
QUIET = {"kind": "gaussian", "noise_multiplier": 8.0}


@pytest.fixture
def unique() -> str:
    """The end of a name that no other test gives."""
    return uuid4().hex[:8]


def seen(mechanism: Mechanism, sampling: Sampling, relation: NeighboringRelation) -> Event:
    at_most = RowsPerParent(exactly_one=False, most=4)
    return view_event(
        Event(mechanism=mechanism, sampling=sampling), relation=relation, rows=at_most
    )


def full(noise: float) -> Event:
    return Event(mechanism=Gaussian(noise_multiplier=noise), sampling=Full())


@pytest.mark.parametrize("relation", [ADD, ONE, NULL])
def test_full_and_poisson_batches_count_for_a_person(relation: NeighboringRelation) -> None:
    assert seen(NOISY, Full(), relation).sampling == Full()
    assert seen(NOISY, Full(), relation).mechanism.noise_multiplier == pytest.approx(2)  # type: ignore[union-attr]
    assert seen(NOISY, Full(), relation).mechanism.noise_multiplier <= 2  # type: ignore[union-attr]
    assert seen(NOISY, POISSON, relation) == Event(
        mechanism=NOISY, sampling=PoissonUnit(sampling_probability=0.01, rows=4)
    )
    certain = seen(NOISY, Poisson(sampling_probability=1.0), relation)
    assert certain == seen(NOISY, Full(), relation)
    laplace = seen(Laplace(noise_multiplier=8.0), POISSON, relation)
    assert laplace.sampling == Full()
    assert laplace.mechanism.noise_multiplier == pytest.approx(2)  # type: ignore[union-attr]


def test_rows_that_displace_others_count_twice_each_and_only_where_rows_join_or_leave() -> None:
    for sampling, bounds in ((FIXED, 6), (CAPPED, 4)):
        found = seen(NOISY, sampling, ADD)
        assert found.sampling == Full()
        assert found.mechanism.noise_multiplier == pytest.approx(8 / bounds)  # type: ignore[union-attr]
        for relation in (ONE, NULL):
            assert seen(NOISY, sampling, relation) == UNBOUNDED
    tight = FixedSize(batch_size=7, dataset_size=10)
    assert seen(NOISY, tight, ADD) == UNBOUNDED


def of_records(law: Law, sigma: float) -> Array:
    """The largest divergence at each order checked, of a record with one or two rows and none."""
    found = np.zeros(len(CHECKED))
    for others in ((1.0, 1.0, 1.0), (-1.0, -1.0, -1.0), (1.0, -1.0, 0.0)):
        for rows in (*product((-1.0, 0.0, 1.0), repeat=2), (1.0,), (-1.0,)):
            p, q = (density(law(data), sigma, Gaussian) for data in ((*others, *rows), others))
            for pair in ((p, q), (q, p)):
                found = np.maximum(found, [divergence(*pair, order) for order in CHECKED])
    return found


@pytest.mark.parametrize("sigma", [0.8, 2.0])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_parent_sees_batches_of_a_fixed_size_as_full_batches(batch: int, sigma: float) -> None:
    rows = RowsPerParent(exactly_one=False, most=2)
    mechanism = Gaussian(noise_multiplier=sigma)
    drawn = Event(mechanism=mechanism, sampling=FixedSize(batch_size=batch, dataset_size=4))
    event = view_event(drawn, relation=ADD, rows=rows)
    assert event == full(rounded_down(sigma / (2 * batch)))
    found = of_records(fixed_size(batch), sigma)
    assert np.all(found <= proved(event, ADD) * (1 + 1e-8))
    assert np.all(found > 0)


def test_a_full_batch_at_as_many_norm_bounds_as_rows_would_be_too_little() -> None:
    """Three of three others are drawn, or of three and a record's two rows."""
    found = of_records(fixed_size(3), 0.8)
    assert np.any(found > 1.2 * proved(full(0.8 / 2), ADD))
    assert np.all(found <= proved(full(0.8 / 4), ADD))


def test_what_is_not_proved_has_no_bound() -> None:
    for relation in (ADD, ONE, NULL):
        assert seen(NOISY, BallsAndBins(steps_per_pass=10), relation) == UNBOUNDED
        assert seen(NOISY, Unknown(), relation) == UNBOUNDED
        assert seen(Zcdp(rho=0.1), Full(), relation) == UNBOUNDED
        assert seen(Gaussian(noise_multiplier=1e-100), Full(), relation) == UNBOUNDED


def create(api: httpx.Client, name: str, parent: str | None = None, **given: Any) -> httpx.Response:
    body: dict[str, Any] = {"accept": ["published", "derived"]}
    body["budget"] = {"epsilon": 8.0, "delta": 1e-5}
    if parent:
        body |= {"parents": [parent], "rows_per_parent_record": {"at_most": 4}}
        body["privacy_unit"] = "message"
    return api.post("/v1/datasets", json=dataset(name, **(body | given)))


def test_a_parent_is_charged_for_a_person(api: httpx.Client, unique: str) -> None:
    top, child, below, one = (f"{name}-{unique}" for name in ("top", "child", "below", "one"))
    assert create(api, top).status_code == 201
    made = create(api, child, top)
    assert made.status_code == 201, made.text
    assert made.json()["rows_per_parent_record"] == {"at_most": 4}
    assert create(api, child, top).status_code in (200, 201)  # the same request again
    renamed = {"rows_per_parent_record": "at_most_one"}
    assert create(api, below, child, **renamed).status_code == 201
    assert create(api, one).status_code == 201
    for name in (below, one):
        assert api.post("/v1/runs", json=run(name, dataset=name)).status_code == 201
        told = event(0, 500, mechanism=QUIET, sampling=WHERE)
        assert append(api, told, run=name, mode="charge").status_code == 201

    def spent(name: str) -> float:
        return float(api.get(f"/v1/datasets/{name}").json()["spent"])

    assert spent(below) == spent(child) == spent(one)
    assert spent(top) > spent(one)
    person = api.get(f"/v1/datasets/{top}/guarantee").json()
    assert person["epsilon"] > 3 * api.get(f"/v1/datasets/{one}/guarantee").json()["epsilon"]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"privacy_unit": "person"}, "body.parents[0]"),
        ({"rows_per_parent_record": "at_most_one"}, "body.parents[0]"),
        ({"rows_per_parent_record": {"at_most": 1}}, "at_most"),
        ({"rows_per_parent_record": {"at_most": 10_001}}, "at_most"),
        ({"neighboring_relation": "replace_one"}, "body.parents[0]"),
    ],
)
def test_what_cannot_be_attested_is_refused(
    api: httpx.Client, unique: str, given: dict[str, Any], where: str
) -> None:
    assert create(api, f"top-{unique}", privacy_unit="person").status_code == 201
    refused = create(api, f"child-{unique}", f"top-{unique}", **given)
    assert refused.status_code == 422
    assert where in refused.text


def test_rows_along_a_path_multiply(api: httpx.Client, unique: str) -> None:
    names = [f"{name}-{unique}" for name in ("top", "child", "below")]
    many = {"rows_per_parent_record": {"at_most": 101}}
    assert create(api, names[0]).status_code == 201
    assert create(api, names[1], names[0], **many).status_code == 201
    refused = create(api, names[2], names[1], privacy_unit="word", **many)
    assert refused.status_code == 422
    assert "10000" in refused.text


def test_the_page_says_whom_its_figures_are_about(api: httpx.Client, unique: str) -> None:
    assert create(api, f"people-{unique}").status_code == 201
    assert create(api, f"messages-{unique}", f"people-{unique}").status_code == 201
    told = words(page(api, f"messages-{unique}"))
    assert "at most 4 rows: the figures of this page are about one message" in told
    assert "those of a parent about all rows of a record" in told
