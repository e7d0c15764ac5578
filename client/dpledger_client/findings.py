"""What a trainer tells of itself beside its steps: never anything that depends on the data.

The one exception is the verdict on batch sizes, which leaves only if the trainer opts in.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal

from dpledger_client.loaders import Finding


def of_sampling(finding: Finding, *, from_step: int) -> dict[str, Any]:
    """What the classes and settings of a loader say about the steps from here on."""
    return {
        "kind": "sampling",
        "from_step": from_step,
        "status": finding.status,
        "declared": finding.declared,
        "recorded": finding.sampling,
        "seen": finding.seen,
        "reason": finding.reason,
    }


def of_rank(rank: int, world_size: int, configuration: Mapping[str, Any]) -> dict[str, Any]:
    """How a rank is configured, as a digest: equal on ranks that mean to do the same."""
    text = json.dumps(configuration, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"kind": "rank", "rank": rank, "world_size": world_size, "fingerprint": digest}


def of_batch_sizes(verdict: Literal["refuted", "not_refuted"], level: float) -> dict[str, Any]:
    """Whether the sizes of batches refuted the declaration: private, outside every epsilon."""
    return {"kind": "batch_sizes", "verdict": verdict, "level": level}
