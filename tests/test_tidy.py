"""The code about the code."""

import re
from pathlib import Path

import pytest

import accounting
from accounting import THEOREMS, Status

ROOT = Path(__file__).parents[1]
FOLDERS = ("accounting", "service", "client", "migrations", "tests", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
LONGEST = 400


@EACH_FILE
def test_no_file_is_too_long(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST


@EACH_FILE
def test_nothing_is_left_to_do_in_a_comment(path: Path) -> None:
    marker = "TO" + "DO"  # spelled apart, so that this file passes too
    assert marker not in path.read_text(encoding="utf-8")


@EACH_FILE
def test_no_file_is_a_drawer(path: Path) -> None:
    assert path.stem not in {"utils", "helpers", "common", "base", "managers", "factory"}


def test_the_contents_page_is_short() -> None:
    page = ROOT / "accounting" / "__init__.py"
    assert len(page.read_text(encoding="utf-8").splitlines()) < 60


def test_the_contents_page_lists_constants_then_classes_then_functions_by_name() -> None:
    names = accounting.__all__

    def place(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert names == sorted(set(names), key=place)
    assert all(hasattr(accounting, name) for name in names)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.id)
def test_every_page_that_a_theorem_cites_exists(theorem: accounting.Theorem[..., object]) -> None:
    for text in (theorem.source, theorem.statement):
        for page in re.findall(r"docs/theory/\w+\.md", text):
            assert (ROOT / page).is_file(), page


@pytest.mark.parametrize(
    "path", sorted((ROOT / "accounting").rglob("*.py")), ids=lambda path: path.name
)
def test_every_page_that_a_comment_cites_exists(path: Path) -> None:
    for page in re.findall(r"docs/theory/\w+\.md", path.read_text(encoding="utf-8")):
        assert (ROOT / page).is_file(), page


DOUBTS = (ROOT / "docs" / "theory" / "doubts.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "theorem", [one for one in THEOREMS if one.status is Status.DERIVED], ids=lambda one: one.id
)
def test_every_proof_of_our_own_says_where_it_is_most_likely_wrong(
    theorem: accounting.Theorem[..., object],
) -> None:
    (row,) = [line for line in DOUBTS.splitlines() if f"`{theorem.id}`" in line]
    assert re.search(r"`test_\w+`", row)


def test_every_experiment_that_would_expose_a_proof_runs() -> None:
    tests = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(re.findall(r"`(test_\w+)`", DOUBTS)) <= tests
