"""Licences: read from what packages say, and refused unless they are on the list."""

import json
import re
from email.message import Message
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from typer.testing import CliRunner

from service.cli import licences
from service.cli.main import app
from service.operations.diagnostics.host import versions_tested

ROOT = Path(__file__).parents[2]


def metadata(licence: str = "", expression: str = "", classifiers: tuple[str, ...] = ()) -> Message:
    found = Message()
    if licence:
        found["License"] = licence
    if expression:
        found["License-Expression"] = expression
    for one in classifiers:
        found["Classifier"] = f"License :: OSI Approved :: {one}"
    return found


@pytest.mark.parametrize(
    ("given", "licence"),
    [
        (metadata(expression="MIT AND (ISC OR GPL-3.0-only)"), "MIT AND (ISC OR GPL-3.0-only)"),
        (metadata("MIT License"), "MIT"),
        (metadata("BSD 3-Clause License"), "BSD-3-Clause"),
        (metadata("Apache License, Version 2.0"), "Apache-2.0"),
        (metadata("a text\nof lines", classifiers=("BSD License",)), "BSD-3-Clause"),
        (metadata(classifiers=("Mozilla Public License 2.0 (MPL 2.0)",)), "MPL-2.0"),
        (metadata(classifiers=("MIT License", "Other")), "MIT AND Other"),
        (metadata("Proprietary"), "Proprietary"),
        (metadata(), "unknown"),
    ],
)
def test_a_licence_is_read_from_the_most_exact_that_is_said(given: Message, licence: str) -> None:
    assert licences.licence_of(given) == licence


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("MIT AND (GPL-3.0-only OR ISC)", True),
        ("MIT OR (GPL-3.0-only AND ISC)", True),
        ("(GPL-3.0-only AND MIT) OR AGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-or-later WITH GCC-exception-3.1", False),
        ("GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("MIT AND Other", False),
        ("unknown", False),
        ("", False),
    ],
)
def test_a_licence_is_allowed_if_allowed_ones_satisfy_it(expression: str, allowed: bool) -> None:
    assert licences.is_allowed(expression) is allowed


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("The MIT License (MIT)\n\nPermission is hereby granted, free of charge, to any", "MIT"),
        ("The MIT License (MIT)\n\nAll rights reserved.", "unknown"),
        ("GNU GENERAL PUBLIC LICENSE", "unknown"),
    ],
)
def test_a_licence_that_is_only_a_file_is_read_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, licence: str
) -> None:
    folder = tmp_path / "filed-1.dist-info"
    (folder / "licenses").mkdir(parents=True)
    said = "Metadata-Version: 2.4\nName: filed\nVersion: 1\nLicense-File: LICENSE\n"
    (folder / "METADATA").write_text(said, encoding="utf-8")
    (folder / "licenses" / "LICENSE").write_text(text, encoding="utf-8")
    monkeypatch.setattr(licences, "distributions", lambda: [PathDistribution(folder)])
    assert [one.licence for one in licences.installed()] == [licence]


def test_every_package_that_the_project_pins_has_an_allowed_licence() -> None:
    pinned = set(versions_tested())
    found = {one.name.lower(): one for one in licences.installed()}
    assert {"fastapi", "psycopg", "numpy", "dpledger"} <= set(found)
    assert [one for name, one in found.items() if name in pinned and not one.allowed] == []


def test_the_command_lists_all_and_fails_for_one_that_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = []
    for name, licence in (("good", "MIT"), ("bad", "GPL-3.0-only")):
        folder = tmp_path / f"{name}-1.dist-info"
        folder.mkdir()
        text = f"Metadata-Version: 2.4\nName: {name}\nVersion: 1\nLicense-Expression: {licence}\n"
        (folder / "METADATA").write_text(text, encoding="utf-8")
        here.append(PathDistribution(folder))
    monkeypatch.setattr(licences, "distributions", lambda: here[:1])
    result = CliRunner().invoke(app, ["licences"])
    assert (result.exit_code, result.stdout.splitlines()[1:]) == (0, ["good\t1\tMIT\tyes"])
    monkeypatch.setattr(licences, "distributions", lambda: here)
    result = CliRunner().invoke(app, ["licences"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:] == ["bad\t1\tGPL-3.0-only\tNO", "good\t1\tMIT\tyes"]
    listed = json.loads(CliRunner().invoke(app, ["licences", "--json"]).stdout)
    assert [one["allowed"] for one in listed] == [False, True]


def test_the_audit_asks_about_every_pinned_version_and_fails_when_it_cannot_ask() -> None:
    rule = re.search(r"(?m)^audit:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text())
    assert rule
    assert "--requirement constraints.txt" in rule[1]
    assert re.search(r"NOTHING WAS AUDITED.*exit 1", rule[1])
    pins = (ROOT / "deploy" / "audit.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert any(pin.startswith("pip_audit==") for pin in pins)
