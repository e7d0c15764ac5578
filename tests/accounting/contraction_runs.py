"""Runs of projected noisy gradient steps that tests ask about, and the reference values."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from accounting.literature.contraction.contraction import Lipschitz, ProjectedNoisySgd
from accounting.literature.contraction.kernels import Noise

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden" / "documents_contraction.json").read_text()
)
PLAIN = ProjectedNoisySgd(
    learning_rate=0.5,
    smoothness=0.5,
    convexity=0.0,
    gradient_bound=1.0,
    diameter=1.0,
    dimension=1,
    clip_can_be_active=False,
    noise=Noise.GAUSSIAN,
    noise_scale=2.0,
    batch_size=1,
    lipschitz=Lipschitz.DOCUMENT,
)


def golden_run(row: dict[str, Any]) -> ProjectedNoisySgd:
    """The run of a golden entry; all of them have M = 1."""
    return replace(
        PLAIN,
        noise=Noise(row.get("noise", "gaussian")),
        learning_rate=row["eta"],
        gradient_bound=float(row["L"]),
        diameter=float(row["diam"]),
        noise_scale=float(row.get("scale", 1.0)),
    )


def run_with(shift: float, reach: float, noise: Noise) -> ProjectedNoisySgd:
    """A run with given shifts 2 L / sigma and M D / (eta sigma)."""
    return replace(
        PLAIN, noise=noise, gradient_bound=shift / 2, diameter=reach, learning_rate=1, noise_scale=1
    )
