"""The code about the code."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import accounting
from accounting import THEOREMS, Status
from tests import lanes

ROOT = Path(__file__).parents[1]
FOLDERS = ("accounting", "service", "client", "migrations", "tests", "benchmarks", "examples")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TEXTS = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in FILES}
LONGEST = 400
MODULES = 17  # of a package, at most
VAGUE = {"utils", "helpers", "common", "base", "managers", "factory"}


def test_every_file_and_folder_that_has_a_lane_of_its_own_exists() -> None:
    named = (lanes.NUMERICS, *lanes.READ_SERVICE, *lanes.SYSTEM, *lanes.SQLITE_ALONE)
    assert [one for one in named if not (lanes.TESTS / one).exists()] == []


def missing_pages(text: str) -> list[str]:
    """The pages of the theory that a text cites and that do not exist."""
    return [
        page for page in re.findall(r"docs/theory/\w+\.md", text) if not (ROOT / page).is_file()
    ]


def test_every_folder_has_files() -> None:
    assert [folder for folder in FOLDERS if not any(one.startswith(folder) for one in TEXTS)] == []


def test_no_file_is_too_long() -> None:
    lengths = {name: len(text.splitlines()) for name, text in TEXTS.items()}
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_package_has_too_many_modules() -> None:
    packages = Counter(
        str(Path(name).parent)
        for name in TEXTS
        if name.startswith(("accounting/", "service/", "client/dpledger_client/"))
        and not name.endswith("__init__.py")
    )
    assert {name: count for name, count in packages.items() if count > MODULES} == {}


def public_names(text: str) -> set[str]:
    """The names that a module defines for others.

    An endpoint has the name of the function of the domain that it calls: decorated functions do not
    count. Nor does the `router` of each module of endpoints.
    """
    names = {"router"}
    found: set[str] = set()
    for one in ast.parse(text).body:
        match one:
            case ast.ClassDef(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                (names if one.decorator_list else found).add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return {name for name in found - names if not name.startswith("_")}


def test_a_public_name_of_the_service_means_one_thing() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for file, text in TEXTS.items():
        if file.startswith("service/") and not file.startswith("service/cli/"):  # of commands
            for name in public_names(text):
                places[name].append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_nothing_is_left_to_do_in_a_comment() -> None:
    marker = "TO" + "DO"  # spelled apart, so that this file passes too
    assert [name for name, text in TEXTS.items() if marker in text] == []


def test_no_file_has_a_vague_name() -> None:
    assert [name for name in TEXTS if Path(name).stem in VAGUE] == []


def test_the_contents_page_is_short() -> None:
    page = ROOT / "accounting" / "__init__.py"
    assert len(page.read_text(encoding="utf-8").splitlines()) < 60


def test_the_contents_page_lists_constants_then_classes_then_functions_by_name() -> None:
    names = accounting.__all__

    def place(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert names == sorted(set(names), key=place)
    assert all(hasattr(accounting, name) for name in names)


def test_every_page_that_a_theorem_cites_exists() -> None:
    missing = {one.id: missing_pages(f"{one.source}\n{one.statement}") for one in THEOREMS}
    assert {name: pages for name, pages in missing.items() if pages} == {}


def test_every_page_that_a_comment_cites_exists() -> None:
    missing = {
        name: missing_pages(text) for name, text in TEXTS.items() if name.startswith("accounting/")
    }
    assert {name: pages for name, pages in missing.items() if pages} == {}


DOUBTS = (ROOT / "docs" / "theory" / "doubts.md").read_text(encoding="utf-8")


def test_every_proof_of_our_own_says_where_it_is_most_likely_wrong() -> None:
    derived = [one.id for one in THEOREMS if one.status is Status.DERIVED]
    assert derived
    rows = {name: [line for line in DOUBTS.splitlines() if f"`{name}`" in line] for name in derived}
    assert {name: found for name, found in rows.items() if len(found) != 1} == {}
    assert [name for name, (row,) in rows.items() if not re.search(r"`test_\w+`", row)] == []


def test_every_experiment_that_would_expose_a_proof_runs() -> None:
    tests = {
        name
        for path, text in TEXTS.items()
        if path.startswith("tests/") and Path(path).name.startswith("test_")
        for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    }
    assert set(re.findall(r"`(test_\w+)`", DOUBTS)) <= tests
