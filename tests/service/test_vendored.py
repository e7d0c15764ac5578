"""What others wrote and the pages use: as it was published, named, licensed and used."""

import hashlib
from pathlib import Path

import pytest

import service

STATIC = Path(service.__file__).parent / "web" / "dashboard" / "static"
VENDOR = STATIC / "vendor"


def table() -> dict[str, list[str]]:
    """The rows of VENDORED.md by file."""
    lines = (VENDOR / "VENDORED.md").read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows if len(row) == 5 and row[0].endswith((".js", ".css"))}


def test_every_file_is_named_and_no_other() -> None:
    files = {path.name for path in VENDOR.iterdir() if path.suffix in {".js", ".css"}}
    assert files
    assert files == set(table())


@pytest.mark.parametrize("name", sorted(table()))
def test_a_file_is_the_one_that_was_published_and_its_licence_lies_beside_it(name: str) -> None:
    _, version, licence, digest = table()[name]
    assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest
    assert version in name
    assert (VENDOR / licence.rpartition(" ")[2]).read_text(encoding="utf-8").strip()
