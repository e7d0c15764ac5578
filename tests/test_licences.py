"""Licences and known vulnerabilities of what is installed: what is not known fails."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pip-licenses"]
ALLOWED = {one.strip() for one in RULES["allow-only"].split(";")}


def licences(*given: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "piplicenses", "--with-system", *given]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def recipe(target: str) -> str:
    found = re.search(rf"(?m)^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())
    assert found
    return found[1]


def test_every_installed_package_has_an_allowed_licence() -> None:
    assert "pip-licenses --with-system" in recipe("licences")
    result = licences()
    assert result.returncode == 0, result.stderr
    for name in ("fastapi", "psycopg", "numpy", "dpledger", "pip-licenses"):
        assert re.search(rf"(?m)^ {name} ", result.stdout), name


def test_a_licence_that_is_not_on_the_list_fails() -> None:
    result = licences("--allow-only", "MIT;Apache-2.0", "--packages", "fastapi", "psycopg")
    assert result.returncode == 1
    assert "license LGPL-3.0-only not in allow-only" in result.stderr


def test_an_expression_on_the_list_can_be_satisfied_by_the_list() -> None:
    assert not {"GPL-3.0-only", "GPL-3.0-or-later", "AGPL-3.0-only", "UNKNOWN", ""} & ALLOWED
    for expression in ALLOWED:
        for part in expression.split(" AND "):
            choices = (part[1:-1] if part.startswith("(") else part).split(" OR ")
            assert any(choice in ALLOWED for choice in choices), expression


def test_what_names_no_licence_is_excused_in_one_version_only() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().splitlines()
    for excused in RULES["ignore-packages"]:
        assert excused.replace(":", "==") in [pin.replace("_", "-") for pin in pins], excused


def test_the_audit_asks_about_every_pinned_version_and_fails_when_it_cannot_ask() -> None:
    rule = recipe("audit")
    assert "--requirement constraints.txt" in rule
    assert re.search(r"NOTHING WAS AUDITED.*exit 1", rule)
    pins = (ROOT / "deploy" / "audit.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert any(pin.startswith("pip_audit==") for pin in pins)


def test_a_refused_licence_fails_beside_an_allowed_one() -> None:
    given = ("--fail-on", "Apache Software License", "--packages", "uvloop")
    result = licences(*given)  # which has MIT beside it
    assert result.returncode == 1
    assert "GNU General Public License v3 (GPLv3)" in RULES["fail-on"]
