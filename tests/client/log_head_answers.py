"""Services that say what a test wants."""

from collections.abc import Iterator
from typing import Any

import httpx
from dpledger_client import Client


def answering(status: int, content: Any) -> Client:
    """A client of a service that always says the same."""
    response = httpx.MockTransport(lambda _request: httpx.Response(status, json=content))
    return Client(transport=response, retries=0)


def changes(
    part: dict[str, Any], kept_part: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers that prove nothing."""
    yield "no answer", {}
    yield "no path", {**part, "consistency": None}
    yield "another root", {**part, "head": {**part["head"], "root": "0" * 64}}
    yield "another dataset", {**part, "head": {**part["head"], "dataset": "other"}}
    yield "not in the checkpoint", {**part, "index": part["index"] + 1}
    yield "no log continues it", {**part, "consistency": []}
    yield "an older one", {**kept_part, "verdict": "extends", "consistency": ["0" * 64]}
    ledger = {**part["checkpoint"], "ledger_id": "0" * 32}
    yield "another ledger", {**part, "checkpoint": ledger}
    yield "another key", {**part, "public_key": "x" * 43}
    abandoned = {**part, "verdict": "abandoned", "reason": "x"}
    yield "abandoned in no later epoch", abandoned
    later = {**part["checkpoint"], "epoch": 1}
    yield "abandoned by another key", {**abandoned, "public_key": "x" * 43, "checkpoint": later}
    yield "abandoned by another ledger", {**abandoned, "checkpoint": {**later, **ledger}}
