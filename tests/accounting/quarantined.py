"""Quarantined statements by their names, and the golden values that concern them."""

import json
from pathlib import Path
from typing import Any

from accounting import THEOREMS
from service.cli.calculations import evaluate_theorem

GOLDEN = Path(__file__).parents[1] / "golden" / "documents_conjectures.json"

EXAMPLES: dict[str, dict[str, Any]] = {
    "partial-shuffle-conjecture-step": {
        "noise_multiplier": 2, "dataset_size": 1000, "steps_before": 0, "orders": [2],
    },
    "tv-laplace-as-printed": {"sensitivity": 1, "delta": 0.01},
    "truncated-poisson-special-as-added": {
        "noise_multiplier": 1, "sampling_probability": 0.3, "max_batch_size": 1,
        "dataset_size": 5, "epsilon": 0.3, "direction": "add",
    },
    "noise-feedback-as-printed": {
        "curvatures": [0.8, 0.8], "learning_rate": 0.3, "noise_std": 1.5,
    },
}  # fmt: skip
STATED = {one.id: one for one in THEOREMS}


def said(bound: str, **parameters: object) -> float:
    """The value of a statement; of several, the last."""
    found = evaluate_theorem(bound, parameters)
    return float(found[-1] if isinstance(found, list) else found)


def against(bound: str) -> str:
    """What is known against a statement."""
    return STATED[bound].counterexample


def golden(section: str) -> Any:
    """A section of the golden values."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))[section]
