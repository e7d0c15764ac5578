"""What is allowed in a field is said in plain words, whatever is sent to whichever endpoint."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, get_args

import pytest
from fastapi._compat import ModelField
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core.core_schema import ErrorType

from service.app import wire
from service.identity.authentication import KeyRing
from service.schemas import findings, ledger_document, mechanisms, requests, samplings
from service.schemas.correlated import steps, strategies
from service.schemas.field_errors import ALLOWED, allowed
from service.settings import Settings
from service.storage.engine import connect
from service.web.parameters import AppendQuery

LISTED = set(get_args(ErrorType))  # the kinds that pydantic knows
MODULES = (findings, ledger_document, mechanisms, requests, samplings, steps, strategies)
WRONG: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 10**400, -1e300, float("nan"), float("inf"), "", "x", "A B",
    "\0", "\ud800", "x" * 70_000, [], [1], ["x", "x"], [None] * 2000, {}, {"a": 1}, {"\ud800": 1},
    {"kind": "none such"}, {"kind": 1}, {"a": [1]}, {"a": "x" * 300}, [{"kind": "gaussian"}],
    {f"l{i}": "x" for i in range(200)}, "2027-01-31", "published", "gaussian",
]  # fmt: skip
Validate = Callable[[Any], Iterable[Any]]
# How pydantic words what it refuses.
OWN_WORDS = ("Input ", "String ", "List ", "Dictionary ", "Field ", "Value error", "Keys ", "Extra")


def by_endpoints() -> Iterator[tuple[Any, Validate]]:
    """Of each endpoint: the types of its body, its query and the names in its path."""
    engine = connect("sqlite:///never-opened.db")
    for route in wire(engine, KeyRing(engine), Settings()).routes:
        if isinstance(route, APIRoute):
            found = route.dependant
            for field in (*found.body_params, *found.query_params, *found.path_params):
                yield field.field_info.annotation, partial(faults_of_field, field)


def by_parts() -> Iterator[tuple[Any, Validate]]:
    """Of what no framework reads, and of each part of a message."""
    parts = [
        model
        for module in MODULES
        for _, model in inspect.getmembers(module, inspect.isclass)
        if issubclass(model, BaseModel)
    ]
    whole: list[Any] = [AppendQuery, requests.EventBatch, requests.EventMessage, *parts]
    for model in whole:
        yield model, partial(faults, TypeAdapter(model))


def faults_of_field(field: ModelField, value: Any) -> Iterable[Any]:
    return field.validate(value, {}, loc=("body",))[1] or ()


def faults(reader: TypeAdapter[Any], value: Any) -> Iterable[Any]:
    try:
        reader.validate_python(value)
    except ValidationError as error:
        return error.errors()
    return ()


def refused(model: Any, validate: Validate) -> Iterator[Any]:
    given = list(WRONG)
    if inspect.isclass(model) and issubclass(model, BaseModel):
        named = [field.alias or name for name, field in model.model_fields.items()]
        given += [{name: value} for name in named for value in WRONG]
    for value in given:
        yield from validate(value)


def test_every_kind_of_fault_of_a_request_is_said_in_our_words() -> None:
    kinds, raw = set(), {}
    for model, validate in (*by_endpoints(), *by_parts()):
        for error in refused(model, validate):
            kinds.add(error["type"])
            words = allowed(error)
            if words.startswith(OWN_WORDS) or (error["type"] in LISTED and words == error["msg"]):
                raw[error["type"]] = (repr(model), error["loc"], words)
    assert raw == {}
    assert len(kinds & set(ALLOWED)) > 15


@pytest.mark.parametrize(
    ("kind", "context", "words"),
    [
        ("string_too_short", {"min_length": 1}, "must not be empty"),
        ("string_too_short", {"min_length": 16}, "must have at least 16 characters"),
        ("string_too_long", {"max_length": 1}, "must have at most 1 character"),
        ("too_short", {"min_length": 1}, "must not be empty"),
        ("too_long", {"max_length": 1000}, "must have at most 1,000 items"),
        ("greater_than_equal", {"ge": 2}, "must be at least 2"),
        ("string_pattern_mismatch", {"pattern": "^[0-9]{4}$"}, "must match [0-9]{4}"),
        ("literal_error", {"expected": "'a' or 'b'"}, "must be 'a' or 'b'"),
        ("enum", {"expected": "'a' or 'b'"}, "must be 'a' or 'b'"),
        ("union_tag_invalid", {"expected_tags": "'a', 'b'"}, "kind must be one of 'a', 'b'"),
        ("missing", {}, "must be given"),
        ("model_type", {"class_name": "NewRun"}, "must be an object"),
    ],
)
def test_what_is_allowed_is_said_in_plain_words(
    kind: str, context: dict[str, Any], words: str
) -> None:
    error = {"type": kind, "ctx": context, "loc": ("body", "field"), "msg": "pydantic's"}
    assert allowed(error) == words


def test_what_no_schema_raises_keeps_its_words() -> None:
    error: dict[str, Any] = {"type": "our_own", "loc": ("body",), "msg": "must be one of ours"}
    assert allowed(error) == "must be one of ours"
    error = {"type": "value_error", "loc": ("body",), "msg": "Value error, must be x", "ctx": {}}
    assert allowed(error) == "must be x"
