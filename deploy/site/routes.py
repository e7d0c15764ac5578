"""The page of all routes, from docs/api/openapi.json: parameters, bodies, answers, fields."""

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "api" / "openapi.json"
_METHODS: Final = ("get", "post", "put", "patch", "delete")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _type(schema: dict[str, Any]) -> str:
    """Return in a few words what values a schema takes; named schemas are links."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf", "allOf"):
        if choices := schema.get(key):
            return " or ".join(dict.fromkeys(_type(one) for one in choices))
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"`{json.dumps(one)}`" for one in values)
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("format", kind))


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    needed = schema.get("required", [])
    for name, one in schema.get("properties", {}).items():
        must = "yes" if name in needed else ""
        yield f"| `{name}` | {_type(one)} | {must} | {_cell(one.get('description', ''))} |"


def _bodies(content: dict[str, Any]) -> str:
    found = [f"`{kind}`: {_type(one.get('schema', {}))}" for kind, one in content.items()]
    return _cell("; ".join(found))


def _route(method: str, path: str, call: dict[str, Any]) -> Iterator[str]:
    yield f"### `{method.upper()} {path}` {{ #{call['operationId'].lower()} }}\n"
    yield call.get("description") or call.get("summary", "")
    yield ""
    if parameters := call.get("parameters"):
        yield "| parameter | in | type | required | |\n|---|---|---|---|---|"
        for one in parameters:
            must = "yes" if one.get("required") else ""
            said = _cell(one.get("description", ""))
            yield f"| `{one['name']}` | {one['in']} | {_type(one['schema'])} | {must} | {said} |"
        yield ""
    if body := call.get("requestBody"):
        yield f"Body: {_bodies(body['content'])}\n"
    yield "| answer | |\n|---|---|"
    for status, answer in call["responses"].items():
        said = _cell(answer.get("description", ""))
        yield f"| {status} | {said} {_bodies(answer.get('content', {}))} |"
    yield ""


def page() -> str:
    """Return the page in Markdown: routes by tag, then every schema with its fields."""
    document = json.loads(DOCUMENT.read_text(encoding="utf-8"))
    by_tag: defaultdict[str, list[str]] = defaultdict(list)
    for path, calls in document["paths"].items():
        for method in _METHODS:
            if call := calls.get(method):
                by_tag[call.get("tags", ["other"])[0]] += _route(method, path, call)
    said = {one["name"]: one.get("description", "") for one in document.get("tags", [])}
    lines = ["# Every route", "", "Made from [openapi.json](openapi.json).", ""]
    for tag, found in by_tag.items():
        lines += [f"## {tag}", "", said.get(tag, ""), "", *found]
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name} {{ #{name.lower()} }}", "", schema.get("description", ""), ""]
        if rows := list(_fields(schema)):
            lines += ["| field | type | required | |\n|---|---|---|---|", *rows, ""]
        else:
            lines += [_type(schema), ""]
    return "\n".join(lines)
