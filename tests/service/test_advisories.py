"""Advisories: runs whose library had a known defect are marked; no guarantee changes by it."""

import httpx
import pytest

from service.ledger.advisories import ADVISORIES, advisories_of, libraries_of
from tests.service.samples import append, event, run, setup

ADACLIP, GHOST_NORM, GHOST_BIAS = (one.id for one in ADVISORIES)
ALL = [ADACLIP, GHOST_NORM, GHOST_BIAS]


@pytest.mark.parametrize(
    ("version", "concerned"),
    [
        ("1.1.2", []),  # before adaptive clipping
        ("1.1.3", [ADACLIP]),
        ("1.4.1", [ADACLIP]),
        ("1.5", ALL),
        ("1.5.0", ALL),
        ("1.5.2", ALL),
        ("1.5.2+cu121", ALL),
        ("1.5.3", [ADACLIP, GHOST_BIAS]),
        ("1.5.4", [ADACLIP]),
        ("1.5.4.post1", [ADACLIP]),
        ("1.6", []),
        ("1.6.0", []),
        ("1.10.0", []),
        ("2.0", []),
        ("1.6.0rc1", ALL),  # of what cannot be ordered for certain, anything may be true
        ("main", ALL),
        ("", ALL),
    ],
)
def test_versions_with_a_defect_are_marked(version: str, concerned: list[str]) -> None:
    assert [one.id for one in advisories_of({"library.opacus": version})] == concerned


def test_other_libraries_and_free_labels_are_not_marked() -> None:
    labels = {"library.jax_privacy": "1.5.2", "team": "opacus", "library": "opacus"}
    assert advisories_of(labels) == []


def test_what_was_imported_from_a_checkpoint_may_be_of_any_version() -> None:
    labels = {"imported-from": "opacus, on the word of the file"}
    assert libraries_of(labels) == {"opacus": None}
    found = advisories_of(labels)
    assert [one.id for one in found] == ALL
    assert {one.library_version for one in found} == {None}
    assert advisories_of(labels | {"library.opacus": "1.6.0"}) == []


@pytest.mark.parametrize("advisory", ADVISORIES, ids=lambda one: one.id)
def test_every_advisory_says_what_is_wrong_and_where_that_is_written(advisory: object) -> None:
    (one,) = [each for each in ADVISORIES if each is advisory]
    assert one.concerns(one.first)
    assert not one.concerns(one.fixed)
    assert one.source.startswith("https://")
    assert one.defect.endswith(".")
    assert one.consequence.endswith(".")


def test_a_marked_run_says_so_and_its_guarantee_is_that_of_any_other(api: httpx.Client) -> None:
    setup(api, labels={"library.opacus": "1.5.4"}, delta=1e-5)
    assert api.post("/v1/runs", json=run("plain", delta=1e-5)).status_code == 201
    append(api, event(0, 100))
    append(api, event(0, 100), run="plain")
    (advisory,) = api.get("/v1/runs/run").json()["advisories"]
    assert advisory["id"] == ADACLIP
    assert (advisory["library"], advisory["library_version"]) == ("opacus", "1.5.4")
    assert advisory["affected"] == ">=1.1.3, <1.6.0"
    assert "epsilon is too low" in advisory["consequence"]
    assert api.get("/v1/runs/plain").json()["advisories"] == []
    marked = api.get("/v1/runs/run/guarantee").json()
    plain = api.get("/v1/runs/plain/guarantee").json()
    assert marked == plain
    listed = {one["name"]: one["advisories"] for one in api.get("/v1/runs").json()["runs"]}
    assert listed == {"run": [advisory], "plain": []}
