"""Theory pages as HTML: the Markdown that docs/theory uses, and no more of it."""

import re
from collections.abc import Iterator

from markupsafe import Markup

from service.web.dashboard.theory_markdown import FORMULA, Setter
from service.web.dashboard.typesetting import element

_HEADING = re.compile(r"(#{1,4}) +(.*)")
_ITEM = re.compile(r"(?:-|\d+\.) +")
_INDENT = "    "


def theory_html(text: str, setter: Setter) -> Markup:
    """A page without its title, which is its first line."""
    lines = text.splitlines()
    if lines and lines[0].startswith("# "):
        lines = lines[1:]
    return Markup("\n").join(_block(block, setter) for block in _blocks(lines))


def title_of(text: str) -> str:
    """The title of a page."""
    return text.splitlines()[0].removeprefix("# ").strip() if text else ""


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Lines that belong together: parted by empty lines, headings, and a change of kind."""
    block: list[str] = []
    for line in lines:
        begins = block and (_kind(line) != _kind(block[-1])) and not _continues(line, block)
        if block and (not line.strip() or _HEADING.match(line) or begins):
            yield block
            block = []
        if line.strip():
            block.append(line)
    if block:
        yield block


def _kind(line: str) -> str:
    if line.startswith("|"):
        return "table"
    if _ITEM.match(line):
        return "list"
    return "formula" if line.startswith(_INDENT) else "text"


def _continues(line: str, block: list[str]) -> bool:
    """Whether a line goes on with a list's item, or with a paragraph."""
    return _kind(block[0]) == "list" and line.startswith("  ")


def _block(block: list[str], setter: Setter) -> Markup:
    heading = _HEADING.match(block[0])
    if heading is not None:
        level = min(len(heading[1]), 4)
        title = element(f"h{level}", setter.line(heading[2]))
        rest = block[1:]
        return title + (_block(rest, setter) if rest else Markup(""))
    kind = _kind(block[0])
    if kind == "table":
        return _table(block, setter)
    if kind == "list":
        return _list(block, setter)
    if kind == "formula":
        made = Markup("").join(setter.formula(line) for line in block)
        return FORMULA.format(made)
    return element("p", setter.line(" ".join(line.strip() for line in block)))


def _list(block: list[str], setter: Setter) -> Markup:
    items: list[str] = []
    for line in block:
        if _ITEM.match(line):
            items.append(_ITEM.sub("", line, count=1))
        else:
            items[-1] += " " + line.strip()
    name = "ul" if block[0].startswith("-") else "ol"
    inside = Markup("").join(element("li", setter.line(item)) for item in items)
    return element(name, inside)


def _table(block: list[str], setter: Setter) -> Markup:
    rows = [[cell.strip() for cell in _cells(line)] for line in block]
    body = rows[2:] if len(rows) > 1 and set("".join(rows[1])) <= set("-: ") else rows[1:]
    head = Markup("").join(
        Markup('<th scope="col">{}</th>').format(setter.line(cell)) for cell in rows[0]
    )
    told = Markup("").join(
        element("tr", Markup("").join(element("td", setter.line(cell)) for cell in row))
        for row in body
    )
    return Markup(
        '<div class="scroll" role="region" tabindex="0" aria-label="Table">'
        "<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
    ).format(head, told)


def _cells(line: str) -> list[str]:
    """A row's cells; bars behind a backslash or in code belong to a cell."""
    bare = line.strip().removeprefix("|")
    bare = bare[:-1] if bare.endswith("|") and not bare.endswith("\\|") else bare
    cells = re.split(r"(?<!\\)\|(?=(?:[^`]*`[^`]*`)*[^`]*$)", bare)
    return [cell.replace("\\|", "|") for cell in cells]
