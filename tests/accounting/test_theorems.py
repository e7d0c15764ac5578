import pkgutil
import re
from importlib import import_module
from inspect import signature

import pytest

import accounting
from accounting import THEOREMS, Status, Theorem
from accounting.events import NeighboringRelation
from accounting.guarantees import DEFAULT_ACCEPT, Assumption, theorem, weakest

EACH = pytest.mark.parametrize("one", THEOREMS, ids=lambda one: one.id)


def test_ids_are_unique() -> None:
    ids = [one.id for one in THEOREMS]
    assert len(ids) == len(set(ids))


def test_the_catalog_has_every_theorem_of_every_module() -> None:
    names = [one.name for one in pkgutil.walk_packages(accounting.__path__, "accounting.")]
    modules = [import_module(name) for name in names]
    stated = {
        one.id for module in modules for one in vars(module).values() if isinstance(one, Theorem)
    }
    assert stated == {one.id for one in THEOREMS}
    assert accounting.THEOREMS is THEOREMS


def test_the_package_has_no_other_name() -> None:
    with pytest.raises(AttributeError, match="'accounting' has no attribute 'THEOREM'"):
        accounting.THEOREM  # type: ignore[attr-defined]  # noqa: B018


@EACH
def test_a_theorem_names_its_source_and_the_number_in_it(one: Theorem[..., object]) -> None:
    numbered = r"(Theorem|Proposition|Lemma|Corollary|Algorithm|Section) \d"
    for source in re.split(r"; (?:from|moments)", one.source):
        assert re.search(numbered, source), source
    # Or one of the documents of docs/theory/rows.md.
    assert re.search(r"arXiv:\d{4}\.\d{4,5}v\d|docs/theory/|[Dd]ocument 00[0-4]", one.source)


@EACH
def test_a_theorem_states_what_it_returns_and_on_which_side(one: Theorem[..., object]) -> None:
    _, _, returns = one.statement.partition("Returns:")
    assert re.search(r"Upper|Lower|[Ee]xact", returns)


@EACH
def test_a_theorem_explains_each_parameter(one: Theorem[..., object]) -> None:
    arguments = one.statement.partition("Args:")[2].partition("Returns:")[0]
    assert one.parameters == tuple(signature(one.function).parameters)
    assert all(f"{parameter}:" in arguments for parameter in one.parameters)


@EACH
def test_a_theorem_holds_for_some_relation(one: Theorem[..., object]) -> None:
    assert set(one.relations) <= set(NeighboringRelation)
    assert one.relations
    assert set(one.assumptions) <= set(Assumption)


@EACH
def test_a_theorem_proved_here_is_not_called_published(one: Theorem[..., object]) -> None:
    ours = one.source.startswith("docs/theory")
    assert not ours or one.status in (Status.DERIVED, Status.CONDITIONAL)
    assert ours or one.status is not Status.DERIVED
    assert Status.DERIVED not in DEFAULT_ACCEPT


@EACH
def test_what_is_not_proved_says_what_is_known_against_it(one: Theorem[..., object]) -> None:
    unproved = {Status.CONJECTURE, Status.RETRACTED, Status.REFUTED}
    assert bool(one.counterexample) == (one.status in unproved)


def test_a_guarantee_is_as_well_established_as_its_weakest_theorem() -> None:
    assert weakest([]) is Status.PUBLISHED
    assert weakest([Status.PUBLISHED, Status.DERIVED]) is Status.DERIVED
    assert weakest([Status.ESTIMATE, Status.DECLARED]) is Status.ESTIMATE


def test_a_function_without_a_docstring_states_nothing() -> None:
    silent = theorem(id="x", source="y", status=Status.CONJECTURE, relations=())(lambda a: a)
    assert silent.statement == ""
    assert silent(3) == 3
