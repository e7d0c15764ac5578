"""Examples are trainers: what they spool must not end up in the folder of whoever tests them."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
