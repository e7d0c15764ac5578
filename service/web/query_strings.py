"""Query strings, read as strictly as bodies: each parameter once, numbers as JSON writes them.

A framework would take the last of two values, and read `1_0` and ` 1` as numbers: whatever filters
requests in front may read another value than the service does.
"""

import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Union, get_args, get_origin
from urllib.parse import parse_qsl

from fastapi.dependencies.models import Dependant
from pydantic import BaseModel

from service.errors import InvalidRequestError

_INTEGER: Final = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS: Final = {_INTEGER: "must be an integer, in digits", _NUMBER: "must be a number as in JSON"}


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one parameter may be."""

    many: bool
    form: re.Pattern[str] | None  # of a number


class QueryRules:
    """What the query of a route may have."""

    def __init__(self, annotations: Mapping[str, Any]) -> None:
        """Of parameters by name."""
        self._rules = {name: _rule_of(kind) for name, kind in annotations.items()}

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> "QueryRules":
        """Of a query that is one model."""
        fields = model.model_fields.items()
        return cls({field.alias or name: field.annotation for name, field in fields})

    @classmethod
    def of_route(cls, dependant: Dependant) -> "QueryRules":
        """Of a route with all that it depends on."""
        annotations: dict[str, Any] = {}
        for field in _fields(dependant):
            kind = field.field_info.annotation
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                fields = kind.model_fields.items()
                annotations |= {one.alias or name: one.annotation for name, one in fields}
            else:
                annotations[field.alias] = kind
        return cls(annotations)

    def fault(self, query: bytes) -> InvalidRequestError | None:
        """What is wrong with a query string; the name of an unknown parameter is not repeated."""
        seen = set()
        for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
            rule = self._rules.get(name)
            place = "query" if rule is None else f"query.{name}"
            if name in seen and (rule is None or not rule.many):
                return InvalidRequestError(place, "a parameter is there twice; send it once")
            seen.add(name)
            if rule is not None and rule.form is not None and not rule.form.fullmatch(value):
                return InvalidRequestError(place, _WORDS[rule.form])
        return None


def _fields(dependant: Dependant) -> Iterator[Any]:
    yield from dependant.query_params
    for one in dependant.dependencies:
        yield from _fields(one)


def _rule_of(annotation: Any) -> _Rule:
    kinds, many = {annotation}, False
    while composed := {kind for kind in kinds if get_args(kind) and _is_composed(kind)}:
        for kind in composed:
            kinds.remove(kind)
            many = many or get_origin(kind) in (list, tuple, set, frozenset)
            parts = get_args(kind)
            kinds |= {parts[0]} if get_origin(kind) is Annotated else set(parts)
    if str in kinds:
        return _Rule(many, None)
    return _Rule(many, _NUMBER if float in kinds else _INTEGER if int in kinds else None)


def _is_composed(kind: Any) -> bool:
    return get_origin(kind) in (
        Annotated, Union, types.UnionType, list, tuple, set, frozenset,
    )  # fmt: skip
