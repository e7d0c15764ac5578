"""The OpenAPI document: current in docs, complete for a reader, usable by a generator.

If a test here names something that you added:
- a property without a description: add a line to `service/schemas/descriptions.toml`, under
  `[any]` if the name means the same everywhere, otherwise under the name of the message;
- a parameter without a description: add `description=` where it is declared;
- a bare string: use an enumeration or a `Literal` in the model;
- a further member of a problem: add it to `service.web.problems.Problem`;
- the document in docs: `dpledger openapi > docs/api/openapi.json`.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import TypeAdapter

from accounting.accountants.best_first import ACCOUNTANTS, ODOMETER
from accounting.hidden_state import HIDDEN
from service import errors
from service.app import openapi_document
from service.guarantees import fit_suggestions, plan
from service.identity import key_administration
from service.ledger.log.leaves import KINDS, Act, act_row
from service.ledger.log.row_records import FACTS, STATE_CODES
from service.schemas import requests
from service.schemas.descriptions import examples
from service.schemas.responses import AccountantName
from service.schemas.run_states import RunStateName
from service.web.openapi import TAGS
from service.web.problems import MEDIA_TYPE, Problem

ROOT: Final = Path(__file__).parents[2]
DOCUMENT: Final = ROOT / "docs" / "api" / "openapi.json"
FOUND: Final = openapi_document()
SCHEMAS: Final[dict[str, Any]] = FOUND["components"]["schemas"]
OPERATIONS: Final = [
    (method, path, operation)
    for path, item in FOUND["paths"].items()
    for method, operation in item.items()
]
# Properties whose values are words of a closed list, wherever they appear.
CLOSED: Final = {
    "accountant", "direction", "kind", "mode", "neighboring_relation", "parameter", "release",
    "rows_per_parent_record", "sampling_status", "solve_for", "state", "status", "valid_for",
    "verdict",
}  # fmt: skip
LISTS: Final = {"accept", "assumptions", "relations"}  # of such words
OPEN: Final = {("Problem", "status")}  # an HTTP status is a number
# What is hashed or signed is its text: a client that wrote a time anew would break it.
EXACT: Final = {
    "ActAnswer", "ApprovedChange", "BudgetLimit", "Certificate", "Checkpoint", "Log", "Place",
}  # fmt: skip
# Requests whose example a reader copies.
MESSAGES: Final = (requests, plan, fit_suggestions, key_administration)
MAIN: Final = {
    "NewDataset", "DatasetChange", "NewRun", "NewBranch", "EventBatch", "NewReservation",
    "NewCorrection", "Finish", "Plan", "Target",
}  # fmt: skip


def properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for message, schema in SCHEMAS.items():
        for name, property_ in schema.get("properties", {}).items():
            yield message, name, property_


def parts_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema within a schema, itself first."""
    if isinstance(schema, dict):
        yield schema
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            yield from parts_of(part)


def alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a value has one, without null and references."""
    if "$ref" in schema:
        return alternatives(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    parts = schema.get("anyOf") or schema.get("oneOf")
    found = [one for part in parts for one in alternatives(part)] if parts else [schema]
    return [one for one in found if one.get("type") != "null"]


def bare_strings(schema: dict[str, Any]) -> bool:
    return any(
        one.get("type") == "string" and not {"enum", "const"} & set(one)
        for one in alternatives(schema)
    )


def test_the_document_in_docs_is_current() -> None:
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == FOUND


def test_every_property_has_a_description() -> None:
    missing = [
        f"{message}.{name}" for message, name, one in properties() if "description" not in one
    ]
    assert missing == []


def test_every_property_of_a_condition_has_a_description() -> None:
    bare = [
        (message, name)
        for message, schema in SCHEMAS.items()
        for condition in ("if", "then", "else")
        for part in parts_of(schema.get(condition, {}))
        for name, property_ in part.get("properties", {}).items()
        if "description" not in property_
    ]
    assert bare == []


def test_every_answer_says_what_is_answered() -> None:
    for method, path, operation in OPERATIONS:
        for status, answer in operation["responses"].items():
            said = answer["description"]
            assert said, (method, path, status)
            assert said != "Successful Response", (method, path, status)


def test_every_time_is_a_date_time_unless_its_text_is_hashed_or_signed() -> None:
    times = [(owner, one) for owner, _, one in properties() if "ISO 8601" in one["description"]]
    assert len(times) >= 20
    for owner, one in times:
        formats = {part.get("format") for part in alternatives(one)}
        assert formats == ({None} if owner in EXACT else {"date-time"}), owner
    assert {owner for owner, _ in times} >= EXACT


def test_every_description_is_a_sentence() -> None:
    texts = [one["description"] for _, _, one in properties()]
    assert [text for text in texts if not text.endswith(".") or text.startswith(" ")] == []


def test_every_parameter_and_operation_has_a_description() -> None:
    for method, path, operation in OPERATIONS:
        assert operation["description"], (method, path)
        for parameter in operation.get("parameters", []):
            assert parameter["description"], (method, path, parameter["name"])


def test_no_description_is_of_a_property_that_is_gone() -> None:
    tables = tomllib.loads(
        (ROOT / "service" / "schemas" / "descriptions.toml").read_text(encoding="utf-8")
    )
    used = {name for _, name, _ in properties()}
    unused = [name for table in tables.values() for name in table if name not in used]
    assert set(unused) <= {"data_order", "learning_rate"}  # read from assumptions, by hand


def test_words_of_a_closed_list_are_enumerations() -> None:
    bare = [
        f"{message}.{name}"
        for message, name, one in properties()
        if name in CLOSED and (message, name) not in OPEN and bare_strings(one)
    ]
    lists = [
        f"{message}.{name}"
        for message, name, one in properties()
        if name in LISTS
        for part in alternatives(one)
        if part.get("type") == "array" and bare_strings(part["items"])
    ]
    assert bare + lists == []


def test_the_accountants_of_answers_are_those_of_the_core() -> None:
    assert {*ACCOUNTANTS, ODOMETER, HIDDEN, "filter"} == set(AccountantName)


def test_the_kinds_of_an_act_are_all_that_can_be_recorded() -> None:
    assert SCHEMAS["ActAnswer"]["properties"]["kind"]["enum"] == sorted(KINDS)
    assert {*FACTS, *STATE_CODES} <= set(KINDS)
    with pytest.raises(ValueError, match="one of the kinds"):
        act_row(Act("other", {}), dataset=None, position=0, after_sequence=0, acted_at="")


def test_every_operation_has_an_id_of_its_own_in_camel_case() -> None:
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(ids)) == len(ids)
    assert [one for one in ids if not re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", one)] == []
    # Methods of generated clients are named so: a change breaks every user of one.
    kept = {"createDataset", "createRun", "appendEvents", "getRunGuarantee", "getDatasetGuarantee"}
    assert kept < set(ids)


def test_messages_have_names_of_their_own() -> None:
    assert [name for name in SCHEMAS if not re.fullmatch(r"[A-Z][A-Za-z]*", name)] == []


def test_every_refusal_is_the_one_problem_document() -> None:
    for method, path, operation in OPERATIONS:
        for status in ("4XX", "503"):
            content = operation["responses"][status]["content"]
            assert content == {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}, (
                method,
                path,
            )


def test_the_problem_document_has_every_member_that_is_sent() -> None:
    refusals = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, errors.LedgerError)
    }
    sent = set()
    for file in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _raises(node.func, refusals, file.name):
                sent |= {keyword.arg for keyword in node.keywords if keyword.arg}
    assert {"errors", "expected_step", "failing_scopes", "checks"} <= sent  # it does find them
    parameters = {"where"}  # of a constructor, and sent by none
    assert sent - parameters <= set(Problem.__annotations__)


def _raises(called: ast.expr, refusals: set[str], file: str) -> bool:
    if isinstance(called, ast.Name):
        return called.id in refusals
    in_errors = file == "errors.py" and isinstance(called, ast.Attribute)
    return in_errors and isinstance(called, ast.Attribute) and called.attr == "__init__"


def test_the_query_of_an_append_has_no_default_that_a_client_would_send() -> None:
    _, _, operation = next(one for one in OPERATIONS if one[2]["operationId"] == "appendEvents")
    query = [one for one in operation["parameters"] if one["in"] == "query"]
    assert {one["name"] for one in query} == {"branch", "mode", "writer"}
    assert all("default" not in one["schema"] and not one["required"] for one in query)


def test_no_property_is_null_by_default() -> None:
    null_by_default = [
        (name, property_)
        for name, schema in SCHEMAS.items()
        for property_, said in schema.get("properties", {}).items()
        if said.get("default", ...) is None
    ]
    assert null_by_default == []


def test_main_requests_have_an_example_that_is_read() -> None:
    assert set(examples()) >= MAIN
    for name, example in examples().items():
        module = next(one for one in MESSAGES if hasattr(one, name))
        TypeAdapter(getattr(module, name)).validate_python(example)
        assert SCHEMAS[name]["examples"] == [example]


def test_the_document_says_where_the_service_is_and_what_each_tag_means() -> None:
    assert FOUND["servers"]
    assert FOUND["info"]["license"]["identifier"] == "Apache-2.0"
    assert [tag["name"] for tag in FOUND["tags"]] == [tag["name"] for tag in TAGS]
    used = {tag for _, _, operation in OPERATIONS for tag in operation["tags"]}
    assert used == {tag["name"] for tag in TAGS}
    assert all(tag["description"] for tag in FOUND["tags"])


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/problems/{slug}"])
def test_what_needs_no_key_says_so(path: str) -> None:
    assert FOUND["paths"][path]["get"]["security"] == []


def test_states_of_a_run_are_told_alike_everywhere() -> None:
    states = set(get_args(RunStateName))
    told = [
        one for message, name, one in properties() if name == "state" and message == "RunAnswer"
    ]
    assert [set(one["enum"]) for one in told] == [states]


def test_each_number_has_its_width() -> None:
    # A generator that knows none takes 32 bits, which may round an epsilon down.
    def numbers(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict) and node.get("type") in ("number", "integer"):
            yield node
        inner = node.values() if isinstance(node, dict) else node
        for one in inner if isinstance(node, dict | list) else ():
            yield from numbers(one)

    widths = {(one["type"], one["format"]) for one in numbers(FOUND)}
    assert widths == {("number", "double"), ("integer", "int64")}
