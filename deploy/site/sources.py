"""Lay the sources of the documentation site: links to the pages of the repository, and three lists.

Usage: python -m deploy.site.sources FOLDER, which is made anew.
"""

import ast
import shutil
import sys
from pathlib import Path
from typing import Final

from deploy.site import routes

ROOT: Final = Path(__file__).parents[2]
KINDS: Final = {".md", ".svg", ".webp", ".png", ".csv", ".json"}
PLACES: Final = ("README.md", "CHANGELOG.md", "client/README.md", "docs", "examples")
CLIENT: Final = ROOT / "client" / "dpledger_client" / "__init__.py"


def pages(place: Path) -> list[Path]:
    """Return the files of a folder, or the one file, that the site shows or loads."""
    found = sorted(place.rglob("*")) if place.is_dir() else [place]
    return [one for one in found if one.is_file() and one.suffix in KINDS]


def problems() -> str:
    """Return the list of all errors, each with the first line of its page."""
    lines = ["# Errors", "", "Each error of the service has a page, which its `type` names.", ""]
    for page in sorted((ROOT / "docs" / "problems").glob("*.md")):
        title = page.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"- [{page.stem}]({page.name}): {title}")
    return "\n".join(lines) + "\n"


def reference() -> str:
    """Return the page of the client's public names, which mkdocstrings fills from docstrings."""
    tree = ast.parse(CLIENT.read_text(encoding="utf-8"))
    (names,) = [
        ast.literal_eval(one.value)
        for one in tree.body
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__all__"
    ]
    lines = ["# The Python client, name by name", ""]
    lines += [f"::: dpledger_client.{name}\n" for name in names]
    return "\n".join(lines)


def lay(folder: Path) -> None:
    """Fill a folder with what the site is built from."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in PLACES:
        for page in pages(ROOT / name):
            place = folder / page.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(page)
    made = {
        "docs/problems/README.md": problems(),
        "docs/api/routes.md": routes.page(),
        "client/reference.md": reference(),
    }
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    lay(Path(sys.argv[1]).absolute())
