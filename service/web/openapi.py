"""The OpenAPI document: what it says beside the routes and the messages."""

import asyncio
import json
from functools import lru_cache
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import TypeAdapter

from service.identity.keys import Role
from service.schemas.requests import NAME_PATTERN, EventBatch
from service.schemas.responses import AppendAnswer
from service.web import problems
from service.web.api.append_events import EVENTS_PATH
from service.web.parameters import AppendQuery
from service.web.strict_requests import JSON, NDJSON

TITLE: Final = "dpledger"
DESCRIPTION: Final = (
    "A ledger and meter for the differential privacy that training spends. Every epsilon is in "
    "nats and is an upper bound unless its name says otherwise."
)
LICENCE: Final = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
SERVERS: Final[list[dict[str, str | Any]]] = [
    {"url": "/", "description": "The service that serves this document"}
]
# In the order in which a reader needs them.
TAGS: Final[list[dict[str, Any]]] = [
    {"name": "datasets", "description": "What is protected, its budget and what was spent on it."},
    {"name": "runs", "description": "Training jobs, their branches, corrections and findings."},
    {"name": "events", "description": "The steps of a run: recorded, or charged to a budget."},
    {"name": "reservations", "description": "Steps that are admitted before they run."},
    {"name": "plan", "description": "What steps would cost; nothing is recorded."},
    {"name": "strategies", "description": "How noise is correlated over the steps of a pass."},
    {"name": "bounds", "description": "The theorems that a bound may rest on."},
    {"name": "requests", "description": "Changes that one person asks for and another approves."},
    {"name": "certificates", "description": "Signed statements of what was spent."},
    {"name": "streams", "description": "Server-sent events, and the list of incidents."},
    {"name": "keys", "description": "API keys: created, rotated and revoked by an admin."},
    {"name": "acts", "description": "What administrators and trainers did."},
    {"name": "log", "description": "The tamper-evident log: checkpoints, proofs, recovery."},
    {"name": "health", "description": "Whether the service works, and what a problem means."},
    {"name": "metrics", "description": "Numbers for Prometheus."},
]
# Messages that endpoints read or send by hand, so that no route declares them.
_BY_HAND: Final = {
    "EventBatch": EventBatch,
    "AppendAnswer": AppendAnswer,
    "Problem": problems.Problem,
}
_WIDTHS: Final = {"number": "double", "integer": "int64"}
_UNSAID: Final = "Successful Response"  # what FastAPI says of an answer that nothing describes
_REFERENCE: Final = "#/components/schemas/{model}"


def _append_operation() -> dict[str, Any]:
    """Describe the append, whose plain route describes nothing."""
    answer = {"content": {JSON: {"schema": {"$ref": _REFERENCE.format(model="AppendAnswer")}}}}
    batch = {"schema": {"$ref": _REFERENCE.format(model="EventBatch")}}
    lines = {"type": "string", "description": "one event a line, 10,000 at most"}
    run = {"type": "string", "pattern": NAME_PATTERN, "title": "Run"}
    query = AppendQuery.model_json_schema()["properties"]
    for schema in query.values():
        del schema["default"]  # which a generated client would send
    run_parameter = _parameter("run", "path", run | {"description": "Name of the run."})
    return {
        "tags": ["events"],
        "summary": "Append Events",
        "description": (
            "Record or charge a batch of events, all or none; 200 when all were recorded before."
        ),
        "operationId": "appendEvents",
        "security": [{"key": [Role.TRAINER.value]}],
        "parameters": [
            run_parameter,
            *(_parameter(name, "query", schema) for name, schema in query.items()),
        ],
        "requestBody": {"required": True, "content": {JSON: batch, NDJSON: {"schema": lines}}},
        "responses": {
            "201": {**answer, "description": _UNSAID},
            "200": {**answer, "description": "The same request did this before"},
            "4XX": problems.PROBLEM_DESCRIPTION,
            "503": problems.PROBLEM_DESCRIPTION,
        },
    }


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path",
        "description": schema["description"],
        "schema": schema,
    }


def complete(app: FastAPI) -> None:
    """Make the application's document contain what its routes do not declare."""
    original = app.openapi

    @lru_cache(maxsize=1)
    def document() -> dict[str, Any]:
        found = original()
        found["paths"][EVENTS_PATH] = {"post": _append_operation()}
        schemas = found["components"]["schemas"]
        for name, message in _BY_HAND.items():
            schema = TypeAdapter(message).json_schema(ref_template=_REFERENCE)
            for inner, definition in (schema.pop("$defs", {}) | {name: schema}).items():
                _drop_null_defaults(definition)
                schemas.setdefault(inner, definition)
        for path in found["paths"].values():
            for operation in path.values():
                _say_which_scopes(operation)
                for answer in operation["responses"].values():
                    _say_what_is_answered(answer, schemas)
        _say_how_wide(found)
        return found

    app.openapi = document  # type: ignore[method-assign]
    _serve_once_made(app)


def _say_which_scopes(operation: dict[str, Any]) -> None:
    """Name each scope that suffices as an alternative; none where no key is needed."""
    needed = [scope for one in operation.get("security", []) for scope in one["key"]]
    operation["security"] = [{"key": [scope]} for scope in needed]


def _say_what_is_answered(answer: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Describe an answer by its message, where its route says nothing."""
    named = answer.get("content", {}).get(JSON, {}).get("schema", {}).get("$ref", "")
    if answer["description"] == _UNSAID and named:
        message: str = schemas[named.rpartition("/")[2]]["description"]
        answer["description"] = message.partition("\n\n")[0].replace("\n", " ")


def _say_how_wide(node: object) -> None:
    """Give each number its width: without it, generated Go has 32 bits, which may round down."""
    if isinstance(node, dict):
        width = _WIDTHS.get(node["type"]) if isinstance(node.get("type"), str) else None
        if width is not None:
            node.setdefault("format", width)
    if isinstance(node, dict | list):
        for one in node.values() if isinstance(node, dict) else node:
            _say_how_wide(one)


def _drop_null_defaults(schema: dict[str, Any]) -> None:
    """Drop them as FastAPI does: generated types require a property that has a default."""
    for property_ in schema.get("properties", {}).values():
        if property_.get("default", ...) is None:
            del property_["default"]


def _serve_once_made(app: FastAPI) -> None:
    """Answer with the same bytes: to make half a megabyte anew holds up every append."""
    making = asyncio.Lock()

    @lru_cache(maxsize=1)
    def text() -> bytes:
        return json.dumps(app.openapi(), separators=(",", ":"), ensure_ascii=False).encode()

    async def described(_request: Request) -> Response:
        async with making:  # or each of those that ask first would make it
            body = await run_in_threadpool(text)
        return Response(body, media_type=JSON)

    routes = app.router.routes
    routes[:] = [one for one in routes if getattr(one, "path", None) != app.openapi_url]
    app.add_route(app.openapi_url or "", described, include_in_schema=False)
