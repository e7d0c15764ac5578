"""Services that say what a test wants."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from dpledger_client import Client

from service.transparency.signing import Signer

UNSIGNED = "the signature of the head is not that of the key"
ANOTHER = "does not begin with what this machine saw"
NOT_INSIDE = "is not in what is signed"
UNREADABLE = "cannot be checked"


def answering(status: int, content: Any) -> Client:
    """A client of a service that always says the same."""
    response = httpx.MockTransport(lambda _request: httpx.Response(status, json=content))
    return Client(transport=response, retries=0)


def signed(part: dict[str, Any], signer: Signer, **changed: Any) -> dict[str, Any]:
    """An answer whose checkpoint was changed and signed."""
    checkpoint = {**part["checkpoint"], **changed}
    text = json.dumps(checkpoint, sort_keys=True, separators=(",", ":"))
    by = {"key_id": signer.key_id, "public_key": signer.public_key}
    signature = signer.sign(b"dpledger checkpoint 1\n" + text.encode())
    return {**part, **by, "checkpoint": checkpoint, "signature": signature}


def changes(
    part: dict[str, Any], kept_part: dict[str, Any], signer: Signer, folder: Path
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers that prove nothing, with what is said of them."""
    yield UNREADABLE, {}
    yield UNREADABLE, {**part, "consistency": None}
    yield UNREADABLE, {**part, "signature": None}
    yield UNREADABLE, {**part, "signature": part["signature"] + "=="}
    yield NOT_INSIDE, {**part, "head": {**part["head"], "root": "0" * 64}}
    yield NOT_INSIDE, {**part, "head": {**part["head"], "dataset": "other"}}
    yield NOT_INSIDE, {**part, "index": part["index"] + 1}
    other = Signer.create(folder / "other_key")
    theirs = signed(part, other)
    yield UNSIGNED, {**part, "signature": theirs["signature"]}
    yield UNSIGNED, {**part, "signature": kept_part["signature"]}
    yield UNSIGNED, {**part, "signature": ""}
    yield UNSIGNED, {**part, "public_key": other.public_key}
    yield UNSIGNED, {**part, "checkpoint": {**part["checkpoint"], "ledger_id": "0" * 32}}
    yield UNSIGNED, {**part, "checkpoint": {**part["checkpoint"], "more": "x"}}
    yield ANOTHER, {**part, "consistency": []}
    yield ANOTHER, {**kept_part, "verdict": "extends", "consistency": ["0" * 64]}
    yield ANOTHER, theirs
    yield ANOTHER, signed(part, signer, ledger_id="0" * 32)
    abandoned = {**part, "verdict": "abandoned", "reason": "x"}
    yield ANOTHER, abandoned  # in no later generation
    yield ANOTHER, signed(abandoned, other, generation=1)
    yield ANOTHER, signed(abandoned, signer, generation=1, ledger_id="0" * 32)
