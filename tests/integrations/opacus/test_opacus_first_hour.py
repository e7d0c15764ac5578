"""The guide's hours of a researcher and of an auditor, who reads what the researcher trained."""

import os
import sys
from pathlib import Path

import pytest

from deploy.release.session import free_port
from tests.packages.following import GUIDE, follow, typed

ROOT = Path(__file__).parents[3]
COMMAND = Path(os.environ.get("DPLEDGER_COMMAND", str(ROOT / ".venv" / "bin" / "dpledger")))


def test_the_hours_of_a_researcher_and_an_auditor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DPLEDGER_API_KEY", raising=False)
    pages = [(GUIDE / f"first-hour-{who}.md").read_text() for who in ("researcher", "auditor")]
    assert [len(list(typed(page))) > 10 for page in pages] == [True, True]
    path = f"{Path(sys.executable).parent}:{COMMAND.parent}:/usr/bin:/bin"
    folder = tmp_path / "hour"
    folder.mkdir()
    assert follow(pages, folder, {"HOME": str(folder), "PATH": path}, free_port()) == []
