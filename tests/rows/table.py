"""Prints docs/theory/rows.md: every statement of the documents, and the test that shows it."""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

from accounting import THEOREMS
from accounting.literature.documents import ROWS, Row
from service.web.dashboard.statement_formulas import line_markdown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "theory" / "rows.md"
HEAD = """# The founding documents, row by row

What each statement of the five documents became: its verdict, where it lives, and a test that shows
something true of it. Printed by `python tests/rows/table.py`; a test holds this page to it.
[errata.md](errata.md) lists the errors and the evidence for them.

- 000: Berthier and Karimireddy 2019, Amplifying Renyi Differential Privacy via Shuffling
- 001: Sordello, Bu, Dong and Su 2021, Privacy Amplification via Iteration for Shuffled and Online
  PNSGD
- 002: Kong and Ribero, Privacy of the last iterate in cyclically-sampled DP-SGD (arXiv:2407.05237)
- 003: Brown's lecture notes, Privacy Amplification
- 004: Berthier's report of 2019, Differential Privacy for Machine Learning
- X: asked for by the documents and proved here

A word in brackets is the status of a theorem; `dpledger bound ID --params JSON` evaluates it. What
is refuted, retracted or a conjecture is kept by name and used by nothing.

| row | statement | verdict | lives in | test |
|---|---|---|---|---|
"""


def slug(row: str) -> str:
    """The part of a test's name that stands for a row."""
    spelled = row.replace("\u03b3", "gamma").replace("\u221a", "root").lower()
    return re.sub(r"[^a-z0-9]+", "_", spelled).strip("_")


def places_of_tests() -> dict[str, list[str]]:
    """By slug, where its tests are."""
    found = defaultdict(list)
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_row_"):
                name = node.name.removeprefix("test_row_").partition("__")[0]
                found[name].append(f"{path.name}::{node.name}")
    return found


def is_path(place: str) -> bool:
    """Whether a place is a path, not the id of a theorem."""
    return "/" in place


def _line(row: Row, where: dict[str, list[str]]) -> str:
    statuses = {one.id: one.status.value for one in THEOREMS}
    lives = [
        f"`{place}`" if is_path(place) else f"`{place}` ({statuses.get(place, 'unknown')})"
        for place in row.lives
    ]
    shown = ", ".join(f"`{name}`" for name in where[slug(row.id)])
    statement = re.sub(r"(?<!\\)\|", r"\\|", line_markdown(row.statement, ()))
    cells = (row.id, statement, row.verdict, ", ".join(lives), shown)
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The page."""
    where = places_of_tests()
    return HEAD + "\n".join(_line(row, where) for row in ROWS) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
