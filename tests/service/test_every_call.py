"""The OpenAPI document lists every call, in a literal list."""

import json

import httpx

from service.ledger.change_requests.decisions import DECISIONS
from service.schemas.requests import EventMessage


def test_the_openapi_document_describes_every_call_and_the_batch(api: httpx.Client) -> None:
    described = api.get("/v1/openapi.json").json()
    paths = described["paths"].items()
    offered = {(method.upper(), path) for path, found in paths for method in found}
    assert {
        ("POST", "/v1/datasets"), ("GET", "/v1/datasets"), ("GET", "/v1/datasets/{dataset}"),
        ("GET", "/v1/datasets/{dataset}/guarantee"), ("GET", "/v1/datasets/{dataset}/reservations"),
        ("POST", "/v1/runs"), ("GET", "/v1/runs"), ("PATCH", "/v1/datasets/{dataset}"),
        ("GET", "/v1/runs/{run}"), ("GET", "/v1/requests"),
        *(("POST", "/v1/runs/{run}/" + noun) for noun in ("branches", "releases")),
        ("GET", "/v1/datasets/{dataset}/settings"), ("GET", "/v1/datasets/{dataset}/incidents"),
        ("GET", "/v1/datasets/{dataset}/explain"), ("POST", "/v1/datasets/{dataset}/explain"),
        ("GET", "/v1/datasets/{dataset}/stream"), ("GET", "/v1/runs/{run}/stream"),
        ("POST", "/v1/runs/{run}/reservations"), ("GET", "/v1/reservations/{reservation}"),
        *(("POST", "/v1/reservations/{reservation}:" + verb) for verb in ("release", "void")),
        ("POST", "/v1/runs/{run}/corrections"), ("GET", "/v1/runs/{run}/corrections"),
        *(("POST", "/v1/requests/{change_request}:" + one) for one in DECISIONS),
        ("POST", "/v1/strategies"), ("GET", "/v1/strategies/{digest}"),
        ("GET", "/v1/strategies/{digest}/sensitivity"), ("GET", "/v1/requests/{change_request}"),
        ("POST", "/v1/runs/{run}/audits"), ("GET", "/v1/runs/{run}/audits"),
        ("GET", "/v1/runs/{run}/audits/{audit}"), ("POST", "/v1/runs/{run}/audits/{audit}:result"),
        ("POST", "/v1/runs/{run}/findings"), ("GET", "/v1/runs/{run}/findings"),
        ("POST", "/v1/runs/{run}/events"), ("POST", "/v1/runs/{run}:finish"),
        ("GET", "/v1/runs/{run}/guarantee"), ("GET", "/v1/runs/{run}/history"),
        ("GET", "/v1/runs/{run}/curve"), ("GET", "/v1/runs/{run}/ledger"),
        ("GET", "/v1/runs/{run}/certificate"), ("GET", "/v1/datasets/{dataset}/certificate"),
        ("GET", "/v1/keys"), ("POST", "/v1/keys"), ("POST", "/v1/keys/{key}:rotate"),
        ("POST", "/v1/keys/{key}:revoke"), ("GET", "/v1/acts"), ("GET", "/v1/checkpoint"),
        ("GET", "/v1/datasets/{dataset}/acts"),
        ("POST", "/v1/datasets/{dataset}/checkpoint:compare"),
        ("GET", "/v1/datasets/{dataset}/checkpoint"),
        ("GET", "/v1/datasets/{dataset}/log"), ("GET", "/v1/datasets/{dataset}/log/inclusion"),
        ("GET", "/v1/datasets/{dataset}/log/consistency"),
        *(("POST", "/v1/log:" + verb) for verb in ("recover", "reconcile")),
        ("POST", "/v1/plan"), ("GET", "/v1/bounds"), ("POST", "/v1/datasets/{dataset}/requests"),
        ("GET", "/v1/bounds/{bound}"), ("GET", "/healthz"), ("GET", "/readyz"),
        ("GET", "/problems/{slug}"), ("GET", "/metrics"), ("GET", "/v1/log"),
        ("GET", "/v1/incidents"), ("POST", "/v1/incidents/{incident}/notes"),
    } == offered  # fmt: skip
    schemas = described["components"]["schemas"]
    body = described["paths"]["/v1/runs/{run}/events"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["$ref"] == "#/components/schemas/EventBatch"
    assert set(EventMessage.model_fields) == set(schemas["EventMessage"]["properties"])
    assert set(schemas["EventBatch"]["properties"]) == {"branch", "mode", "writer", "events"}
    references = set(json.dumps(described).split("#/components/schemas/")[1:])
    assert {reference.partition('"')[0] for reference in references} <= set(schemas)
