"""The HTTP interface to read: every call and every message, from the OpenAPI document."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request, Response
from markupsafe import Markup

from service.errors import NotFoundError
from service.web.dashboard.rendering import PageRoute, render, templates

_REFERENCE: Final = "#/components/schemas/"
_Json = dict[str, Any]

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter, or a property of a message."""

    name: str
    where: str  # path, query or header; of a property nothing
    type: str
    messages: tuple[str, ...]  # that its type names
    required: bool
    limits: str
    description: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation."""

    id: str
    method: str
    path: str
    description: str
    scope: str  # of the key that it needs; empty where it needs none
    parameters: tuple[Field, ...]
    body: tuple[str, ...]  # names of the messages that it takes
    answers: tuple[tuple[str, str, tuple[str, ...]], ...]  # status, meaning, messages
    example: str  # a request for a shell


@router.get("/docs")
def api_browser(request: Request) -> Response:
    """Every call, by tag; it needs no key, as the document itself does not."""
    app = request.app
    return render(
        request, "api_browser.html", viewer=None, groups=_groups(app), told=_told_calls(app)
    )


@lru_cache(maxsize=1)
def _told_calls(app: FastAPI) -> Markup:
    """Every call and the names of all messages, as the page tells them; made once."""
    messages = sorted(app.openapi()["components"]["schemas"])
    template = templates().get_template("api_calls.html")
    return Markup(template.render(groups=_groups(app), messages=messages))  # noqa: S704 (escaped)


@router.get("/docs/messages/{name}")
def message_page(request: Request, name: str) -> Response:
    """One message: its properties, its values or its kinds, and an example."""
    document = request.app.openapi()
    schema = document["components"]["schemas"].get(name)
    if schema is None:
        raise NotFoundError("There is no such message.")
    users = [
        call
        for _, calls in _groups(request.app)
        for call in calls
        if name in call.body or any(name in messages for _, _, messages in call.answers)
    ]
    return render(
        request,
        "api_message.html",
        viewer=None,
        message=name,
        description=schema.get("description", ""),
        values=schema.get("enum", []),
        fields=_fields(schema),
        examples=[json.dumps(one, indent=2) for one in schema.get("examples", [])],
        users=users,
    )


@lru_cache(maxsize=1)
def _groups(app: FastAPI) -> tuple[tuple[_Json, list[Call]], ...]:
    """The calls of each tag; what an application has never changes."""
    document = app.openapi()
    schemas = document["components"]["schemas"]
    calls = [
        (operation["tags"], _call(method, path, operation, schemas))
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    return tuple(
        (tag, [call for tags, call in calls if tag["name"] in tags]) for tag in document["tags"]
    )


def _call(method: str, path: str, operation: _Json, schemas: _Json) -> Call:
    scopes = [scope for one in operation["security"] for scope in one.get("key", [])]
    content = operation.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {}).get("schema", {})
    taken = _messages(body)
    return Call(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        description=operation["description"],
        scope=" or ".join(scopes),
        parameters=tuple(_parameter(one) for one in operation.get("parameters", [])),
        body=taken,
        answers=tuple(
            (status, one["description"], _messages(one.get("content", {})))
            for status, one in operation["responses"].items()
        ),
        example=_example(method, path, taken, schemas, keyed=bool(scopes)),
    )


def _example(method: str, path: str, body: tuple[str, ...], schemas: _Json, *, keyed: bool) -> str:
    lines = [f'curl "$DPLEDGER_URL{path}"' if method == "get" else
             f'curl -X {method.upper()} "$DPLEDGER_URL{path}"']  # fmt: skip
    if keyed:
        lines.append('  -H "Authorization: Bearer $DPLEDGER_API_KEY"')
    examples = [one for name in body for one in schemas[name].get("examples", [])]
    if body:
        lines.append('  -H "Content-Type: application/json"')
        lines.append(f"  -d '{json.dumps(examples[0] if examples else {})}'")
    return " \\\n".join(lines)


def _parameter(given: _Json) -> Field:
    schema = given["schema"] | {"description": given["description"]}
    return _field(given["name"], schema, given.get("required", False), given["in"])


def _fields(schema: _Json) -> list[Field]:
    required = schema.get("required", [])
    return [
        _field(name, one, name in required) for name, one in schema.get("properties", {}).items()
    ]


def _field(name: str, schema: _Json, required: bool, where: str = "") -> Field:
    return Field(
        name=name,
        where=where,
        type=_type(schema),
        messages=_messages(schema),
        required=required,
        limits=_limits(schema),
        description=schema.get("description", ""),
    )


def _type(schema: _Json) -> str:
    """The type in words: messages are named, closed lists are spelt out."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REFERENCE)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(_type(one) for one in schema[several])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join(json.dumps(one) for one in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return str(schema.get("type", "any value"))


_LIMITS: Final = {
    "minimum": "at least {}", "exclusiveMinimum": "above {}", "maximum": "at most {}",
    "exclusiveMaximum": "below {}", "minLength": "{} characters or more",
    "maxLength": "{} characters or fewer", "minItems": "{} items or more",
    "maxItems": "{} items or fewer", "pattern": "matches {}", "default": "default {}",
}  # fmt: skip


def _limits(schema: _Json) -> str:
    """The range that is allowed, of whichever alternative has one."""
    parts = [schema, *schema.get("anyOf", ())]
    return ", ".join(
        text.format(_value(part[key]) if key != "default" else json.dumps(part[key]))
        for part in parts
        for key, text in _LIMITS.items()
        if key in part and part[key] is not None
    )


def _value(given: Any) -> str:
    """A limit as it is written: a whole one without a point."""
    return f"{given:,.0f}" if isinstance(given, float) and given.is_integer() else str(given)


def _messages(schema: Any) -> tuple[str, ...]:
    """The messages that a schema names, in order, each once."""
    found: dict[str, None] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, dict):
            if isinstance(one.get("$ref"), str):
                found[one["$ref"].removeprefix(_REFERENCE)] = None
            waiting += [value for key, value in one.items() if key not in ("mapping", "examples")]
        elif isinstance(one, list):
            waiting += one
    return tuple(found)
