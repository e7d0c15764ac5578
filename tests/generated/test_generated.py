"""Generate a client in Python and one in TypeScript, and charge a step with each.

`make test-generated` installs the generators, in the versions that are pinned beside this file.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.servers import START_TOKEN
from service.app import openapi_document
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.conftest import running

HERE: Final = Path(__file__).parent
INSTALLED: Final = HERE.parents[1] / ".generated"  # what make installs
GENERATOR: Final = INSTALLED / "python" / "bin" / "openapi-python-client"
MODULES: Final = INSTALLED / "typescript" / "node_modules"


def done(*words: str | Path, folder: Path, **variables: str) -> str:
    """What a command prints; it must succeed."""
    result = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(openapi_document()), encoding="utf-8")
    return file


def charged(*command: str | Path, folder: Path, **variables: str) -> dict[str, Any]:
    """What a program prints that charges a step of a service that has just begun."""
    url = f"sqlite:///{folder / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    with running(Settings(database_url=url)) as address:
        given = {"DPLEDGER_URL": address, "DPLEDGER_API_KEY": START_TOKEN, **variables}
        printed: dict[str, Any] = json.loads(done(*command, folder=folder, **given))
    return printed


def require_charge(told: dict[str, Any]) -> None:
    assert told["accepted"] == 1
    assert told["verdict"] == "within"
    assert told["expected_step"] == 1  # of the problem document
    assert 0 < told["epsilon"] < 3
    assert told["status"] == "published"


def test_a_generated_python_client_charges_a_step(document: Path, tmp_path: Path) -> None:
    package = tmp_path / "dpledger_generated"
    warned = done(
        GENERATOR, "generate", "--path", document, "--config", HERE / "python" / "config.yml",
        "--meta", "none", "--output-path", package, folder=tmp_path,
    )  # fmt: skip
    # A body of lines is the one thing that this generator does not know.
    unknown = [line for line in warned.splitlines() if "Unsupported" in line or "Fail" in line]
    assert set(unknown) <= {"Unsupported content type application/x-ndjson"}
    python = INSTALLED / "python" / "bin" / "python"
    program = HERE / "python" / "charge_step.py"
    require_charge(charged(python, program, folder=tmp_path, PYTHONPATH=str(tmp_path)))


def test_a_generated_typescript_client_charges_a_step(document: Path, tmp_path: Path) -> None:
    for name in ("package.json", "tsconfig.json", "charge_step.ts"):
        shutil.copy(HERE / "typescript" / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(MODULES)
    done(MODULES / ".bin" / "openapi-typescript", document, "-o", "schema.d.ts", folder=tmp_path)
    done(MODULES / ".bin" / "tsc", "--strict", "--project", ".", folder=tmp_path)
    require_charge(charged("node", tmp_path / "built" / "charge_step.js", folder=tmp_path))


def test_the_lock_file_names_no_registry() -> None:
    lock = (HERE / "typescript" / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r'"resolved"\s*:', lock)
    assert "registry" not in lock
