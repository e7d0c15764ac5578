"""Labels say which libraries for private training a process had loaded, and which versions."""

import sys
from importlib.metadata import version
from types import ModuleType

import pytest
from dpledger_client import Client
from dpledger_client.training import library_versions

from tests.client.fake_service import FakeService


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in library_versions.DISTRIBUTIONS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "opacus", ModuleType("opacus"))
    monkeypatch.setattr(library_versions, "version", lambda name: {"opacus": "1.6.0"}[name])


def test_nothing_is_said_where_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in library_versions.DISTRIBUTIONS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert library_versions.labelled(None) is None
    assert library_versions.labelled({"team": "a"}) == {"team": "a"}


@pytest.mark.usefixtures("loaded")
def test_a_loaded_library_is_named_with_its_version() -> None:
    assert library_versions.labelled({"team": "a"}) == {"team": "a", "library.opacus": "1.6.0"}


@pytest.mark.usefixtures("loaded")
def test_what_the_trainer_says_itself_stands() -> None:
    own = {"library.opacus": "1.5.4+ours"}
    assert library_versions.labelled(own) == own


@pytest.mark.usefixtures("loaded")
def test_labels_that_are_full_stay_as_they_are() -> None:
    full = {f"label-{i}": "x" for i in range(library_versions.LABELS_MAX)}
    assert library_versions.labelled(full) == full


def test_a_library_without_a_distribution_is_of_an_unknown_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(library_versions.DISTRIBUTIONS, "opacus", "no-such-distribution")
    monkeypatch.setitem(sys.modules, "opacus", ModuleType("opacus"))
    assert (library_versions.labelled(None) or {})["library.opacus"] == library_versions.UNKNOWN


@pytest.mark.usefixtures("loaded")
def test_a_run_is_registered_with_them(service: FakeService, client: Client) -> None:
    client.start_run("run", "letters", labels={"team": "a"}).finish()
    (body,) = service.bodies("/v1/runs")
    assert body["labels"] == {"team": "a", "library.opacus": "1.6.0"}


def test_versions_are_those_of_the_installed_distributions() -> None:
    assert library_versions._version("pytest") == version("pytest")
