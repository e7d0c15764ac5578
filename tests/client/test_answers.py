"""Answers are frozen objects with attributes, and the dicts that came."""

import copy
import json
import pickle
from typing import Any

import pytest
from dpledger_client import answers
from dpledger_client.answers import (
    Answer,
    BudgetState,
    DatasetState,
    Guarantee,
    History,
    HistoryPoint,
)

BUDGET = {"epsilon": 2.0, "delta": 1e-5, "share": 0.5, "filter": {"kind": "envelope"}}
DOCUMENT: dict[str, Any] = {
    "name": "letters", "dataset_size": 10, "budget": BUDGET | {"items": [{"name": "a"}]},
    "parents": ["all"], "from_tomorrow": {"deep": [{"er": 1}]},
}  # fmt: skip
POINTS = [
    {"steps": 10, "epsilon": 0.5, "epsilon_lower": 0.4, "sequence": 1},
    {"steps": 20, "epsilon": 0.75001, "epsilon_lower": 0.6, "sequence": 2},
]
HISTORY = {"run": "a", "delta": 1e-5, "points": POINTS}


@pytest.fixture
def dataset() -> DatasetState:
    return DatasetState(DOCUMENT)


def test_a_member_is_an_attribute_and_a_key(dataset: DatasetState) -> None:
    assert dataset.name == dataset["name"] == "letters"
    assert dataset.budget is dataset["budget"]
    assert isinstance(dataset.budget, BudgetState)
    assert dataset.budget.epsilon == 2.0
    assert dataset.budget.filter.kind == "envelope"  # type: ignore[attr-defined]
    assert dataset.budget.envelope is not None
    assert dataset.budget.envelope[0].name == "a"


def test_an_answer_is_the_document_that_came(dataset: DatasetState) -> None:
    assert dataset == DOCUMENT
    assert json.loads(json.dumps(dataset)) == DOCUMENT
    assert {**dataset, "name": "b"}["name"] == "b"


def test_members_that_are_not_known_yet_are_kept(dataset: DatasetState) -> None:
    later: Any = dataset
    assert later.from_tomorrow.deep[0].er == later["from_tomorrow"]["deep"][0]["er"] == 1
    assert "from_tomorrow" in dir(dataset)


def test_a_member_that_may_be_absent_is_none_and_another_one_an_error(
    dataset: DatasetState,
) -> None:
    assert dataset.warnings is None
    with pytest.raises(AttributeError, match="DatasetState has no 'runs'; it has budget, "):
        _ = dataset.runs


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: answer.__setitem__("name", 1),
        lambda answer: answer.__delitem__("name"),
        lambda answer: setattr(answer, "name", 1),
        lambda answer: delattr(answer, "name"),
        lambda answer: answer.update(name=1),
        lambda answer: answer.pop("name"),
        lambda answer: answer.clear(),
        lambda answer: answer.setdefault("other", 1),
        lambda answer: answer.__ior__({"name": 1}),
        lambda answer: answer.popitem(),
        lambda answer: answer.budget.update(epsilon=1),
    ],
)
def test_an_answer_is_frozen(dataset: DatasetState, change: Any) -> None:
    with pytest.raises(TypeError, match="frozen"):
        change(dataset)
    assert dataset == DOCUMENT


def test_a_copy_that_can_be_changed_is_a_dict(dataset: DatasetState) -> None:
    changed = dict(dataset)
    changed["name"] = "b"
    assert (changed["name"], dataset.name) == ("b", "letters")
    assert type(dataset | {"name": "b"}) is dict


def test_answers_travel_between_processes(dataset: DatasetState) -> None:
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - made in the line itself
    assert (type(again), again) == (DatasetState, DOCUMENT)
    assert copy.deepcopy(dataset) == dataset


def test_a_repr_shows_what_matters_first() -> None:
    guarantee = Guarantee({"accountant": "pld", "epsilon": 1.5, "delta": 1e-5, "steps": 3})
    assert repr(guarantee) == "Guarantee(epsilon=1.5, delta=1e-05, steps=3, ...)"


def test_each_class_documents_its_members() -> None:
    for name in answers.__all__:
        kind = getattr(answers, name)
        for member in kind.__annotations__:
            if not member.startswith("_"):
                assert f"        {member}: " in str(kind.__doc__), (name, member)


def test_each_class_is_an_answer_that_no_attribute_can_be_set_on() -> None:
    for name in answers.__all__:
        kind = getattr(answers, name)
        assert issubclass(kind, Answer)
        assert not hasattr(kind({}), "__dict__"), name


def test_a_history_draws_its_band() -> None:
    drawn = History(HISTORY)._repr_html_()
    assert drawn.count("<polyline") == 2
    assert "epsilon at most 0.7501 (at least 0.6000) after 20 steps, delta 1e-05" in drawn
    assert isinstance(History(HISTORY).points[0], HistoryPoint)


def test_what_a_notebook_shows_is_escaped() -> None:
    evil = "<script>alert(1)</script>"
    for shown in (
        History(HISTORY | {"run": evil})._repr_html_(),
        History({"run": evil, "delta": 1e-5, "points": []})._repr_html_(),
        Guarantee({"epsilon": None, "reason": evil})._repr_html_(),
    ):
        assert "<script" not in shown
        assert "&lt;script&gt;" in shown


def test_a_guarantee_that_is_not_finite_says_why() -> None:
    shown = Guarantee({"epsilon": None, "reason": "no noise"})._repr_html_()
    assert "no noise" in shown
    assert "None" not in shown
