"""The OpenAPI document in docs is the one the service has."""

import json
from pathlib import Path

from service.app import openapi_document

DOCUMENT = Path(__file__).parents[2] / "docs" / "api" / "openapi.json"


def test_the_document_in_docs_is_current() -> None:
    # To renew it: dpledger openapi > docs/api/openapi.json
    assert json.loads(DOCUMENT.read_text(encoding="utf-8")) == openapi_document()


def test_every_refusal_is_described_as_a_problem_document() -> None:
    for path, item in openapi_document()["paths"].items():
        for method, operation in item.items():
            content = operation["responses"]["4XX"]["content"]
            assert list(content) == ["application/problem+json"], (method, path)
