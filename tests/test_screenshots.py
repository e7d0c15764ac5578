"""The pictures of the pages: one of each, all of pages that are there, and small."""

import re
from pathlib import Path

import pytest

from service.web.dashboard.rendering import PageRoute
from service.web.dashboard.routes import page_modules
from tests.browser.screenshots import BYTES_MAX, FOLDER, PICTURES, TOTAL_MAX, files

ROOT = FOLDER.parents[1]
# What a browser is sent that nobody looks at by itself.
PARTS = {
    "/compare/curves",  # a part of the page of runs side by side
    "/overview/chart",  # a part of the overview
    "/incidents/{incident}/notes",  # leads back to the inbox
    "/datasets/{dataset}/proved",  # a part of the dataset's page
    "/datasets/{dataset}/limit",  # leads back to the dataset's page
    "/datasets/{dataset}/admission",  # the same
    "/datasets/{dataset}/ask",  # the same
    "/datasets/{dataset}/accept",  # the same
    "/requests/{change_request}",  # whose name is random
    "/requests/{change_request}/{verb}",  # leads back to it
    "/datasets/{dataset}/certificate",  # a download
    "/docs/messages/{name}",
    "/runs/{run}/certificate",
    "/runs/{run}/guarantee",  # a part of the run's page
    "/runs/{run}/stream",
    "/keys/{key}/rotate",  # leads back to the key's page
    "/keys/{key}/revoke",  # the same
    "/planner/budget",  # leads back to the planner
    "/planner",  # asks for what /planner/answer shows
}
GUIDES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/guide/*.md")))


def pages() -> set[str]:
    """The path of every page."""
    return {
        route.path
        for module in page_modules()
        for route in module.router.routes
        if isinstance(route, PageRoute) and "GET" in (route.methods or ())
        if not route.path.endswith((".json", ".csv"))
    }


def pictured(page: str) -> bool:
    """Whether a picture shows it."""
    shape = re.compile(re.sub(r"{[^}]*}", "[^/]+", page))
    return any(shape.fullmatch(one.path.split("?")[0]) for one in PICTURES.values())


def test_every_page_has_a_picture() -> None:
    found = pages()
    assert len(found) > 10
    assert {page for page in found if not pictured(page)} == PARTS


def test_no_picture_is_missing_and_none_is_of_a_page_that_is_gone() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(files())


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    assert {name: size for name, size in sizes.items() if size > BYTES_MAX} == {}
    assert sum(sizes.values()) <= TOTAL_MAX


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.name))
def test_every_picture_that_a_guide_shows_is_there(guide: Path) -> None:
    for shown in re.findall(r"!\[[^]]*\]\(([^)]+)\)", guide.read_text(encoding="utf-8")):
        assert (guide.parent / shown).is_file(), shown
