"""Offline commands load what they use: no web framework, no database driver, no key library."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner

from service.cli.main import ELSEWHERE, app
from tests.service.test_cli import DOCUMENT

# What an answer needs none of: no service, no database, no list of all theorems.
HEAVY: Final = {
    "accounting.catalog", "alembic", "cryptography", "fastapi", "jinja2", "matplotlib",
    "opentelemetry", "prometheus_client", "psycopg", "pydantic_settings", "rich",
    "scipy.integrate", "scipy.optimize", "scipy.sparse", "sqlalchemy", "starlette", "uvicorn",
}  # fmt: skip


def loaded(*words: str) -> set[str]:
    """The modules that a command loads in a process of its own."""
    command = [sys.executable, "-X", "importtime", "-m", "service.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return set(re.findall(r"(?m)^import time:.*\| +(\S+)$", done.stderr))


def heavy(modules: set[str]) -> set[str]:
    return {one for one in modules for name in HEAVY if one == name or one.startswith(f"{name}.")}


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "ledger.json"
    file.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    return file


def test_an_offline_epsilon_loads_no_service(document: Path) -> None:
    modules = loaded("epsilon", str(document), "--delta", "1e-5")
    assert {
        "numpy",
        "accounting",
        "service.schemas.ledger_document",
    } <= modules  # it does find them
    assert heavy(modules) == set()


def test_an_offline_calibration_loads_no_service(document: Path) -> None:
    words = ("--epsilon", "2", "--delta", "1e-5", "--for", "noise_multiplier")
    assert heavy(loaded("calibrate", str(document), *words)) == set()


def test_help_and_what_asks_a_service_load_no_numbers() -> None:
    for words in (("--help",), ("runs", "--help")):
        modules = loaded(*words)
        assert "service.errors" in modules
        assert {"accounting", "numpy"} & modules == set()


def test_the_list_of_theorems_loads_no_service() -> None:
    assert heavy(loaded("bounds", "shuffle")) == {"accounting.catalog"}


def test_the_version_loads_no_accounting() -> None:
    assert "accounting" not in loaded("--version")


def test_every_command_is_where_it_is_said_to_be() -> None:
    for name in ELSEWHERE:
        done = CliRunner().invoke(app, [name, "--help"])
        assert done.exit_code == 0, done.output
        assert "Usage:" in done.output


def test_a_command_that_is_not_there_is_refused() -> None:
    done = CliRunner().invoke(app, ["epsilom"])
    assert done.exit_code == 2
    assert "epsilom" in done.output


def test_the_version_is_printed() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"dpledger {version('dpledger')}\n")


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_theorems_fit_a_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = CliRunner().invoke(app, ["bounds"]).output.splitlines()
    known = json.loads(CliRunner().invoke(app, ["bounds", "--json"]).output)
    assert len(lines) == 2 * len(known)
    sources = lines[1::2]
    assert max(len(line) for line in sources) <= columns
    if columns >= 80:
        assert max(len(line) for line in lines) <= columns


def test_a_wide_terminal_has_a_theorem_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = CliRunner().invoke(app, ["bounds", "gaussian", "published"]).output.splitlines()
    assert all("gaussian" in line.lower() and " published " in line for line in lines)
    assert any(line.startswith("gaussian-dp ") for line in lines)


def test_a_pipe_gets_the_whole_source_of_a_theorem() -> None:
    command = [str(Path(sys.executable).with_name("dpledger")), "bounds", "withdrawn"]
    given = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    piped = subprocess.run(command, capture_output=True, text=True, check=True, env=given).stdout
    known = json.loads(CliRunner().invoke(app, ["bounds", "--json", "withdrawn"]).output)
    assert known
    sources = zip(piped.splitlines(), known, strict=True)
    assert all(line.endswith(one["source"]) for line, one in sources)


def test_theorems_are_found_by_words() -> None:
    found = json.loads(CliRunner().invoke(app, ["bounds", "--json", "balle"]).output)
    assert found
    assert all("balle" in f"{one['id']} {one['source']}".lower() for one in found)
    none = CliRunner().invoke(app, ["bounds", "no-such-theorem"])
    assert none.exit_code == 1
    assert "No theorem" in none.output


def test_an_interrupt_while_the_command_line_is_loaded_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", "from service.cli import start; start()"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
