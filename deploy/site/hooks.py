"""What the site does with a page: links to code become names, formulas become MathML."""

import html
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from latex2mathml.converter import convert

ROOT: Final = Path(__file__).parents[2]
_LINK: Final = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_BLOCK: Final = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_FORMULA: Final = re.compile(
    r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL
)


class BrokenLinkError(Exception):
    """A page names a file that the repository does not have."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Keep links to pages; write what links to code as its name, if that file exists.

    Raises:
        BrokenLinkError: if a link leads to nothing.
    """
    here = posixpath.dirname(page.file.src_uri)

    def target(found: re.Match[str]) -> str:
        words, path, anchor = found[1], found[2], found[3] or ""
        name = posixpath.normpath(posixpath.join(here, path))
        if files.get_file_from_path(name):
            return found[0]
        if files.get_file_from_path(f"{name}/README.md"):
            return f"[{words}]({path.rstrip('/')}/README.md{anchor})"
        if not (ROOT / name).exists():
            raise BrokenLinkError(f"{page.file.src_uri}: {path} leads to nothing")
        return words if "`" in words or name in words else f"{words} (`{name}`)"

    return _outside_blocks(markdown, target)


def _outside_blocks(markdown: str, target: Any) -> str:
    """Replace links, but not in blocks of code."""
    pieces = _BLOCK.split(markdown)
    return "".join(
        piece if number % 2 else _LINK.sub(target, piece) for number, piece in enumerate(pieces)
    )


def on_page_content(content: str, **_: Any) -> str:
    """Write each formula as MathML, which browsers draw without a script."""

    def drawn(found: re.Match[str]) -> str:
        display = "block" if found[1] == "div" else "inline"
        return convert(html.unescape(found[2]), display=display)

    return _FORMULA.sub(drawn, content)
