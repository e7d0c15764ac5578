"""What a trainer tells of itself beside its steps: never anything that depends on the data.

The one exception is the verdict on batch sizes, which leaves only if the trainer opts in.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final, Literal

from dpledger_client.loaders import Finding

# What the service takes; a longer text is cut, because a finding must not be lost for its length.
TEXT_MAX: Final = 500
VALUE_MAX: Final = 200


def of_sampling(finding: Finding, *, from_step: int) -> dict[str, Any]:
    """What the classes and settings of a loader say about the steps from here on."""
    return {
        "kind": "sampling",
        "from_step": from_step,
        "status": finding.status,
        "declared": finding.declared,
        "recorded": finding.sampling,
        "seen": {name: _cut(value) for name, value in finding.seen.items()},
        "reason": _printable(finding.reason)[:TEXT_MAX],
    }


def _cut(value: str | float | bool) -> str | float | bool:
    return _printable(value)[-VALUE_MAX:] if isinstance(value, str) else value


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def of_rank(rank: int, world_size: int, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """How a rank is configured, as a digest: equal on ranks that mean to do the same."""
    text = json.dumps(configuration, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"kind": "rank", "rank": rank, "world_size": world_size, "fingerprint": digest}


def of_batch_sizes(verdict: Literal["refuted", "not_refuted"], level: float) -> dict[str, Any]:
    """Whether the sizes of batches refuted the declaration: private, outside every epsilon."""
    return {"kind": "batch_sizes", "verdict": verdict, "level": level}
