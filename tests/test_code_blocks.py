"""Every block of code in README.md, the guides and the client's page is parsed.

Python, JSON, YAML and TOML by what reads them; a shell command by bash, and `dpledger` in it by the
command line itself: each command and option exists. tests/packages runs README.md's session.
"""

import ast
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.main import get_command

from deploy.release.session import blocks
from service.cli.main import app

ROOT: Final = Path(__file__).parents[1]
PLACES: Final = (
    "README.md", "client/README.md", "docs/api/README.md", "docs/guide/*.md", "docs/problems/*.md",
    "examples/**/README.md",
)  # fmt: skip
PAGES: Final = sorted(page for place in PLACES for page in ROOT.glob(place))
TYPED: Final = ("$ ", "dpledger ", "dpledger-client ", "docker ", "curl ", "pip ", "make ", "helm ")
BY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda one: str(one.relative_to(ROOT)))


def of(page: Path, *languages: str) -> list[str]:
    found = blocks(page.read_text(encoding="utf-8"))
    return [textwrap.dedent(code) for language, code in found if language in languages]


def typed(page: Path) -> Iterator[str]:
    """The shell commands of a page, continued lines joined; what they print is left out."""
    for code in of(page, "", "sh", "bash", "console"):
        for line in code.replace("\\\n", " ").splitlines():
            if line.startswith(TYPED) or re.match(r"[A-Z]+=|export |mkdir |umask |openssl ", line):
                yield line.removeprefix("$ ")


def parsed(code: str) -> None:
    """Parse Python; a block may end where its body would begin."""
    try:
        ast.parse(code)
    except SyntaxError:
        last = code.rstrip().splitlines()[-1]
        indent = " " * (len(last) - len(last.lstrip()) + 4)
        ast.parse(f"{code.rstrip()}\n{indent}pass\n")


@BY_PAGE
def test_python_is_python(page: Path) -> None:
    for code in of(page, "python", "py"):
        parsed(code)


@BY_PAGE
def test_documents_are_what_they_are_called(page: Path) -> None:
    for code in of(page, "json"):
        json.loads(code)
    for code in of(page, "jsonl"):
        assert all(json.loads(line) for line in code.splitlines())
    for code in of(page, "http"):
        first, _, body = code.partition("\n")
        assert re.fullmatch(r"(GET|POST|PATCH) /v1/\S+", first)
        json.loads(body)
    for code in of(page, "yaml", "yml"):
        list(yaml.safe_load_all(code))
    for code in of(page, "toml"):
        tomllib.loads(code)


@BY_PAGE
def test_shell_commands_are_complete(page: Path) -> None:
    for line in typed(page):
        done = subprocess.run(["/bin/bash", "-n", "-c", line], capture_output=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"


def calls(line: str) -> Iterator[list[str]]:
    """The words of each call of `dpledger` in a line of the shell."""
    for part in re.split(r"\||&&|;|\$\(|\)|>", line):
        words = shlex.split(part.strip(), comments=True) if part.count('"') % 2 == 0 else []
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if words[:2] == ["docker", "run"] and "dpledger" in words:
            words = words[len(words) - words[::-1].index("dpledger") - 1 :]
            words = words if len(words) > 1 else []
        if words and words[0] in ("dpledger", ".venv/bin/dpledger"):
            yield words[1:]


def unknown(words: list[str]) -> str | None:
    """The first word that the command line does not know, or None."""
    command: Any = get_command(app)
    while words and hasattr(command, "get_command") and not words[0].startswith("-"):
        name, words = words[0], words[1:]
        command = command.get_command(None, name)
        if command is None:
            return name
    given = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    options = [one.partition("=")[0] for one in words if one.startswith("--")]
    return next((one for one in options if one not in given | {"--help", "--version"}), None)


@BY_PAGE
def test_the_command_line_knows_every_command_and_option(page: Path) -> None:
    for line in typed(page):
        for words in calls(line):
            assert unknown(words) is None, line


def test_these_tests_find_what_they_look_for() -> None:
    assert sum(len(of(page, "python")) for page in PAGES) > 20
    assert sum(len(of(page, "json", "jsonl", "http", "yaml")) for page in PAGES) > 10
    lines = [line for page in PAGES for line in typed(page)]
    assert sum(1 for line in lines for _ in calls(line)) > 50
    assert unknown(["doctor", "--backup", "x"]) == "--backup"
    assert unknown(["keys", "make"]) == "make"
    assert unknown(["keys", "create", "--scope", "admin", "--name", "a"]) is None
    (words,) = calls("docker run --rm -v dpledger:/data dpledger keys creat --name admin")
    assert unknown(words) == "creat"
    with pytest.raises(SyntaxError):
        parsed("run.step(\nother)(")
