"""Examples are trainers: what they spool must not end up in the folder of whoever tests them."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))


@pytest.fixture
def own_environment() -> dict[str, str]:
    """The environment of a command that begins a service of its own, and finds its start token."""
    left_out = ("DPLEDGER_API_KEY", "DPLEDGER_START_TOKEN_FILE")
    return {name: value for name, value in os.environ.items() if name not in left_out}
