"""Generate clients in Python, TypeScript, Go and R, and charge a step with each.

`make test-generated` installs the generators, in the versions that are pinned beside this file.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.servers import START_TOKEN
from examples.other_languages.r.generate import client
from service.app import openapi_document
from service.settings import Settings
from service.storage import migrations
from service.storage.engine import connect
from tests.conftest import running

HERE: Final = Path(__file__).parent
INSTALLED: Final = HERE.parents[1] / ".generated"  # what make installs
GENERATOR: Final = INSTALLED / "python" / "bin" / "openapi-python-client"
GO_GENERATOR: Final = INSTALLED / "go" / "bin" / "openapi-generator-cli"
EXAMPLES: Final = HERE.parents[1] / "examples" / "other_languages"
DEBIAN_GO: Final = "/usr/share/gocode"  # where Debian has modules
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


@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_a_generated_go_client_charges_a_step(document: Path, tmp_path: Path) -> None:
    package = tmp_path / "src" / "dpledger"
    # Its launcher finds the Java of its environment by the module's name.
    done(
        GO_GENERATOR, "generate", "--config", EXAMPLES / "go" / "generator.yaml",
        "--input-spec", document, "--output", package, folder=tmp_path,
    )  # fmt: skip
    written = [one.read_text(encoding="utf-8") for one in package.glob("model_*.go")]
    assert written
    # 32 bits would round an epsilon, and perhaps down.
    assert not any(re.search(r"\b(float32|int32)\b", text) for text in written)
    paths = {"GO111MODULE": "off", "GOPATH": f"{tmp_path}:{DEBIAN_GO}", "GOFLAGS": ""}
    paths["GOCACHE"] = str(INSTALLED / "go" / "cache")
    program = tmp_path / "charge_step"
    done("go", "build", "-o", program, EXAMPLES / "go" / "charge_step.go", folder=tmp_path, **paths)
    require_charge(charged(program, folder=tmp_path))


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_a_generated_r_client_charges_a_step(document: Path, tmp_path: Path) -> None:
    done(sys.executable, EXAMPLES / "r" / "generate.py", document, "dpledger.R", folder=tmp_path)
    program = EXAMPLES / "r" / "charge_step.R"
    require_charge(charged("Rscript", program, "dpledger.R", folder=tmp_path))
    exact = 'source("dpledger.R"); cat(dpledger_json(list(a = 0.1 + 0.2, b = c(1, 2), c = "x")))'
    written = json.loads(done("Rscript", "-e", exact, folder=tmp_path))
    assert written == {"a": 0.1 + 0.2, "b": [1, 2], "c": "x"}


def test_the_r_client_has_a_function_for_each_operation(document: Path, tmp_path: Path) -> None:
    text = client(json.loads(document.read_text(encoding="utf-8")))
    for name in ("append_events", "create_dataset", "get_run_guarantee", "change_dataset"):
        assert f"\n{name} <- function(client, " in text
    assert "`if-match` = if_match" in text


def test_the_lock_file_names_no_registry() -> None:
    lock = (HERE / "typescript" / "package-lock.json").read_text(encoding="utf-8")
    assert not re.search(r'"resolved"\s*:', lock)
    assert "registry" not in lock
