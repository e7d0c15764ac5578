"""Examples are trainers: what they spool must not end up in the folder of whoever tests them."""

import os
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coins and noise are the same each time: by chance a training may be worse than most."""
    seeds, draw = count(1), np.random.default_rng

    def default_rng(seed: Any = None) -> np.random.Generator:
        return draw(next(seeds) if seed is None else seed)

    monkeypatch.setattr(np.random, "default_rng", default_rng)


@pytest.fixture
def own_environment() -> dict[str, str]:
    """The environment of a command that begins a service of its own, and finds its start token."""
    left_out = ("DPLEDGER_API_KEY", "DPLEDGER_START_TOKEN_FILE")
    return {name: value for name, value in os.environ.items() if name not in left_out}
