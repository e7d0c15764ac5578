"""A machine whose mathematical library is off serves nothing and certifies nothing."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from accounting import math_library
from service.app import create_app
from service.cli.main import app
from service.errors import StartupError
from service.operations.diagnostics.host import mathematics
from service.operations.diagnostics.result import Level
from service.settings import Settings
from tests.service.test_cli import DOCUMENT


@pytest.fixture(autouse=True)
def off(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    math_library.require_accurate_library.cache_clear()
    monkeypatch.setitem(math_library.FUNCTIONS, "np.expm1", lambda x: np.expm1(x) * (1 + 2.0**-40))
    yield
    math_library.require_accurate_library.cache_clear()


def test_the_service_does_not_start(database_url: str) -> None:
    with pytest.raises(StartupError, match=r"np\.expm1\(0\.001\) is off by"):
        create_app(Settings(database_url=database_url))


def test_the_doctor_names_the_function() -> None:
    found = mathematics()
    assert found.level is Level.FAIL
    assert "np.expm1" in found.found


@pytest.mark.parametrize(
    "words", [("epsilon",), ("calibrate", "--epsilon", "1.0", "--for", "steps")]
)
def test_the_command_line_calculates_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    ledger.write_text(json.dumps(DOCUMENT), encoding="utf-8")
    command, *options = words
    result = CliRunner().invoke(app, [command, str(ledger), "--delta", "1e-5", *options])
    assert result.exit_code == 2
    assert "np.expm1" in result.output
    assert "cannot be relied on" in result.output
