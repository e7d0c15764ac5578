"""The sources of the documentation site. `make docs` builds it and follows every link."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import dpledger_client
import pytest

from deploy.site import hooks, routes, sources

ROOT: Final = Path(__file__).parents[1]
SETTINGS: Final = (ROOT / "deploy" / "site" / "mkdocs.yml").read_text(encoding="utf-8")
DOCUMENT: Final = json.loads(routes.DOCUMENT.read_text(encoding="utf-8"))
MADE: Final = {"docs/problems/README.md", "docs/api/routes.md", "client/reference.md"}
PAGES: Final = {"docs/guide/a.md", "docs/guide/b.md", "docs/problems/README.md"}


def written(markdown: str) -> str:
    """A page docs/guide/a.md of a site with PAGES, as the site writes it."""
    page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/guide/a.md"))
    files = SimpleNamespace(get_file_from_path=lambda name: name in PAGES)
    return hooks.on_page_markdown(markdown, page, None, files)


def test_the_menu_names_every_guide_and_only_pages_that_exist() -> None:
    named = set(re.findall(r"[\w/-]+\.md\b", SETTINGS.partition("\nnav:")[2]))
    assert [one for one in named - MADE if not (ROOT / one).is_file()] == []
    guides = {f"docs/guide/{one.name}" for one in (ROOT / "docs" / "guide").glob("*.md")}
    assert guides - named == {"docs/guide/README.md"}


def test_the_site_asks_no_other_site_and_fails_at_a_broken_link() -> None:
    build = re.search(r"mkdocs build (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert build
    assert "--strict" in build[1]
    assert "--quiet" not in build[1]  # then no warning would be counted, and none would fail
    assert "font: false" in SETTINGS
    assert "strict: true" in SETTINGS
    assert "links: {not_found: warn, anchors: warn," in SETTINGS
    assert not re.search(r"https?://", SETTINGS)


def test_the_sources_stand_as_in_the_repository(tmp_path: Path) -> None:
    sources.lay(tmp_path / "source")
    files = {
        str(one.relative_to(tmp_path / "source")): one
        for one in (tmp_path / "source").rglob("*")
        if one.is_file()
    }
    expected = {*MADE, "README.md", "CHANGELOG.md", "docs/theory/doubts.md", "docs/demo.svg"}
    assert expected <= set(files)
    for name, file in files.items():
        assert (name in MADE) or file.resolve() == (ROOT / name).resolve()
    assert not any(name.endswith(".py") for name in files)


def test_every_public_name_of_the_client_is_in_its_reference() -> None:
    named = re.findall(r"^::: dpledger_client\.(\w+)$", sources.reference(), re.MULTILINE)
    assert named == dpledger_client.__all__


def test_every_error_is_listed() -> None:
    pages = {one.name for one in (ROOT / "docs" / "problems").glob("*.md")}
    assert set(re.findall(r"\]\(([\w-]+\.md)\)", sources.problems())) == pages


def test_every_route_and_schema_is_on_the_page_of_routes() -> None:
    page = routes.page()
    for path, calls in DOCUMENT["paths"].items():
        for method in calls:
            assert f"### `{method.upper()} {path}` {{ #" in page
    anchors = set(re.findall(r"\{ #([\w-]+) \}$", page, re.MULTILINE))
    assert {name.lower() for name in DOCUMENT["components"]["schemas"]} <= anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) <= anchors
    assert len(anchors) == len(re.findall(r"\{ #[\w-]+ \}$", page, re.MULTILINE))


def test_a_link_to_a_page_stays_and_one_to_code_becomes_its_name() -> None:
    assert written("[b](b.md#part)") == "[b](b.md#part)"
    assert written("[errors](../problems)") == "[errors](../problems/README.md)"
    assert written("the [chart](../../deploy/chart)") == "the chart (`deploy/chart`)"
    assert written("[`release`](../../deploy/release)") == "`release`"
    assert written("[x](https://example.org/y)") == "[x](https://example.org/y)"
    block = "```\n[chart](../../deploy/chart)\n```\n"
    assert written(block) == block


def test_a_link_to_nothing_ends_the_build() -> None:
    with pytest.raises(hooks.BrokenLinkError, match=r"docs/guide/a\.md: c\.md leads to nothing"):
        written("see [c](c.md)")


def test_a_formula_is_written_as_mathml() -> None:
    inline = hooks.on_page_content('<span class="arithmatex">\\(a &lt; b\\)</span>')
    assert inline.startswith("<math")
    assert 'display="inline"' in inline
    assert "<mi>a</mi><mo>&#x0003C;</mo><mi>b</mi>" in inline
    block = hooks.on_page_content('<div class="arithmatex">\\[\\mu^2\\]</div>')
    assert 'display="block"' in block
    assert hooks.on_page_content("<p>x</p>") == "<p>x</p>"
