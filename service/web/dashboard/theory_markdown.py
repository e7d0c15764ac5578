"""Render theory pages and statements of theorems: Markdown with LaTeX formulas becomes HTML."""

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Final, Literal

from latex2mathml.converter import convert_to_element
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.dollarmath import dollarmath_plugin

from service.web.dashboard.statement_formulas import line_markdown, statement_markdown

PAGES: Final = "/docs/theory/"
_PAGE: Final = re.compile(r"(?:docs/theory/|\./)?([a-z_]+)\.md(?:#.*)?")
# latex2mathml puts no space between a function and its argument, and reads \sim as a plain tilde.
_FUNCTION: Final = re.compile(
    r"\\(log|exp|sinh|cosh|tanh|coth|sin|cos|min|max|sup)(?= +(?:\w|\\(?!left)))"
)
_PRIMES: Final = frozenset({"\N{PRIME}", "\N{DOUBLE PRIME}"})
_PLUS: Final = frozenset({"+", "\N{MINUS SIGN}", "±"})
_BEFORE_SIGN: Final = frozenset("([{=≤≥<>,/")
_TABLE: Final = '<div class="scroll" role="region" tabindex="0" aria-label="Table"><table>'


def theory_links(text: str) -> Markup:
    """A text of a page, in which the path of a theory page leads to it."""

    def linked(found: re.Match[str]) -> str:
        return f'<a href="{PAGES}{found[1]}">{found[0]}</a>'

    return Markup(re.sub(r"docs/theory/([a-z_]+)\.md", linked, html.escape(text)))  # noqa: S704


class TheoryRenderer:
    """Renders Markdown; links the theorems and the theory pages that it knows."""

    def __init__(self, links: Mapping[str, str], pages: frozenset[str]) -> None:
        """Keep what is linked.

        Args:
            links: addresses by name, of a theorem or of its function.
            pages: names of the theory pages.
        """
        self._links = links
        self._pages = pages

    def page(self, text: str) -> Markup:
        """A page without its title, which is its first line."""
        first, _, rest = text.partition("\n")
        return self._html(rest if first.startswith("# ") else text)

    def statement(self, text: str) -> Markup:
        """The statement of a theorem, without what it says of arguments."""
        return self._html(statement_markdown(text, self._links))

    def line(self, text: str) -> Markup:
        """A text of a theorem without blocks."""
        tokens = self._parser.parseInline(line_markdown(text, self._links))
        return self._rendered(tokens)

    def _html(self, text: str) -> Markup:
        return self._rendered(self._parser.parse(text))

    def _rendered(self, tokens: Sequence[Token]) -> Markup:
        for token in tokens:
            self._link(token.children or ())
        made = self._parser.renderer.render(tokens, self._parser.options, {})
        return Markup(made)  # noqa: S704 (HTML in Markdown is off; the parser escapes texts)

    def _link(self, tokens: Sequence[Token]) -> None:
        """Lead links to pages that there are; make links of names that are known."""
        opened: list[Token] = []
        for token in tokens:
            if token.type == "link_open":
                page = _PAGE.fullmatch(str(token.attrs["href"]))
                known = page is not None and page[1] in self._pages
                token.tag = "a" if known else "span"
                token.attrs = {"href": PAGES + page[1]} if page and known else {}
                opened.append(token)
            elif token.type == "link_close":
                token.tag = opened.pop().tag
            elif token.type == "code_inline" and not opened:
                token.meta["address"] = self._links.get(token.content, "")

    @cached_property
    def _parser(self) -> MarkdownIt:
        parser = MarkdownIt("commonmark", {"html": False}).enable("table")
        parser.use(dollarmath_plugin, allow_space=False, allow_labels=False)
        for name, rule in _RULES.items():
            parser.add_render_rule(name, rule)
        return parser


def title_of(text: str) -> str:
    """The title of a page."""
    return text.partition("\n")[0].removeprefix("# ").strip()


def mathml(latex: str, *, display: Literal["inline", "block"]) -> str:
    """A formula as MathML."""
    latex = _FUNCTION.sub(r"\\\1\,", latex).replace(r"\sim", r"\thicksim")
    made = convert_to_element(latex, display=display)
    made.attrib = {"display": "block"} if display == "block" else {}
    for part in made.iter():
        part.text = html.unescape(part.text or "")
    for part in list(made.iter()):
        if len(part) > 1 and all(one.get("mathvariant") == "normal" for one in part):
            word = "".join(one.text or "" for one in part)
            part.clear()
            part.tag, part.text = "mi", word  # one word, upright: not a product of its letters
        elif part.tag in ("msup", "msubsup") and part[-1].text in _PRIMES:
            _lower_prime(part)
    for row in made.iter():
        _space(list(row))
    return ET.tostring(made, encoding="unicode")


def _lower_prime(part: ET.Element) -> None:
    """Put a prime beside its letter: the sign is raised by itself, and small as a power."""
    base, *index, prime = part
    primed = ET.Element("mrow")
    primed.extend((base, prime))
    part.tag = "msub" if index else "mrow"
    part[:] = [primed, *index]


def _space(parts: Sequence[ET.Element]) -> None:
    """Space as in a textbook: none beside bars, slashes, primes, and behind a number's sign."""
    for before, part in zip((None, *parts), parts, strict=False):
        text = part.text or ""
        if text in _PRIMES:
            part.tag = "mo"
        if part.tag != "mo":
            continue
        if text == "\N{INFINITY}":
            part.tag = "mi"
        elif text in _PRIMES | {"|", "/"}:
            part.attrib |= {"lspace": "0", "rspace": "0"}
            part.attrib.setdefault("stretchy", "false")  # \\left| stretches
        elif text.isalpha():  # min and max
            part.attrib |= {"lspace": "0.167em", "rspace": "0"}
        elif text in _PLUS and (before is None or before.text in _BEFORE_SIGN):
            part.set("form", "prefix")


def _code(_: RendererHTML, tokens: Sequence[Token], at: int, *__: object) -> str:
    code = Markup("<code>{}</code>").format(tokens[at].content)
    address = tokens[at].meta.get("address")
    return Markup('<a href="{}">{}</a>').format(address, code) if address else code


def _formula(_: RendererHTML, tokens: Sequence[Token], at: int, *__: object) -> str:
    made = mathml(tokens[at].content, display="block")
    # It scrolls by itself where it is too wide, and so can be reached by keys.
    return f'<div class="formula" role="group" aria-label="Formula" tabindex="0">{made}</div>\n'


_RULES: Final[Mapping[str, Callable[..., str]]] = {
    "math_inline": lambda _, tokens, at, *__: mathml(tokens[at].content, display="inline"),
    "math_block": _formula,
    "code_inline": _code,
    "image": lambda _, tokens, at, *__: Markup('<em class="muted">{}</em>').format(
        tokens[at].content
    ),
    "table_open": lambda *_: _TABLE,
    "table_close": lambda *_: "</table></div>\n",
    "th_open": lambda *_: '<th scope="col">',  # the policy of contents allows no style
    "td_open": lambda *_: "<td>",
}
