"""What readers are told: no false sentence, and no variable that nothing reads."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from service.settings import Settings

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = ("accounting", "client", "deploy", "docs", "examples", "service")
FILES: Final = ("README.md", "docker-compose.yml", "Dockerfile", "Makefile")
KINDS: Final = {".py", ".md", ".html", ".js", ".yml", ".yaml", ".toml", ".json", ""}
# Beside the service's settings: of the client, of tests with frameworks, of the test database.
OTHERS: Final = {
    "DPLEDGER_API_KEY", "DPLEDGER_API_KEY_FILE", "DPLEDGER_COMMAND", "DPLEDGER_PARTITIONS",
    "DPLEDGER_RETRY_SECONDS", "DPLEDGER_RUN", "DPLEDGER_SLURM", "DPLEDGER_SPOOL",
    "DPLEDGER_TEST_ALL", "DPLEDGER_TEST_POSTGRES", "DPLEDGER_URL",
}  # fmt: skip


def texts() -> Iterator[tuple[Path, str]]:
    files = [ROOT / name for name in FILES]
    for place in PLACES:
        files += [one for one in (ROOT / place).rglob("*") if one.is_file()]
    for file in files:
        if file.suffix in KINDS and "__pycache__" not in file.parts:
            yield file, file.read_text(encoding="utf-8")


def test_no_variable_is_named_that_nothing_reads() -> None:
    known = OTHERS | {f"DPLEDGER_{name.upper()}" for name in Settings.model_fields}
    named = {
        (name, str(file.relative_to(ROOT)))
        for file, text in texts()
        for name in re.findall(r"\bDPLEDGER_[A-Z0-9_]*[A-Z0-9]\b", text)
    }
    assert len(named) > 50  # it does find them
    assert sorted(one for one in named if one[0] not in known) == []


def test_no_relation_is_said_to_hide_more_than_epsilon_allows() -> None:
    # A finite epsilon bounds how well membership can be told; it never makes that impossible.
    found = [
        str(file)
        for file, text in texts()
        if re.search(r"(nobody|no one) can tell (whether|a record)", text, re.IGNORECASE)
    ]
    assert found == []
