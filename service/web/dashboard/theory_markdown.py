"""Statements and theory pages as HTML: paragraphs in which formulas are found and typeset.

What stands between words as a formula does is read by typesetting.py; where that refuses it, the
source is shown as code. Words are never taken for formulas: a letter that is an article stays one.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup, escape

from service.web.dashboard.notation import Token, is_identifier, is_symbol, known, tokens_of
from service.web.dashboard.typesetting import element, typeset

# Known in formulas, and English between words.
_WORDS: Final = frozenset({"Delta", "Poisson", "as", "ceil", "end", "far", "near", "start"})
_ARTICLES: Final = frozenset({"a", "A", "I"})
_LARGE: Final = frozenset({"sum", "min", "max", "sup"})
# Signs that make a formula of what is around them: none of them may be left as mere text.
_BINDING: Final = frozenset({"=", "<=", ">=", "<", ">", "^", "_", "||", "~", "+", "*", "!="})
_LEAST: Final = 3  # pieces of a formula without a name: 1/2
SIGNS: Final = frozenset({"=", "<=", ">=", "<", ">", "~"})
_BREAKING: Final = frozenset({".", ";", "!"})
_SPANS: Final = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|!\[(?P<picture>[^\]]*)\]\([^)]*\)"
    r"|\[(?P<label>[^\]]+)\]\((?P<target>[^)\s]+)\)"
    r"|\*\*(?P<strong>[^*]+)\*\*"
    r"|(?<![\w)])\*(?P<emphasis>[A-Za-z][^*]*)\*(?![\w(])"
    r"|docs/theory/(?P<page>[a-z_]+)\.md"
    r"|(?<![\w-])(?P<name>[a-z]+(?:-[a-z]+)+|[a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w-]|\.[a-z])"
)
_PAGE: Final = re.compile(r"(?:docs/theory/|\./)?([a-z_]+)\.md(?:#.*)?")
_WORD_GOES_ON: Final = re.compile(r"[.'][A-Za-z]")
_WORD_BEFORE: Final = re.compile(r"([A-Za-z]+)(['.-])$")
_WORD_MAX: Final = 24
# It scrolls by itself where it is too wide, and so can be reached by keys.
FORMULA: Final = Markup(
    '<div class="formula" role="group" aria-label="Formula" tabindex="0">{}</div>'
)
PAGES: Final = "/docs/theory/"


@dataclass(slots=True)
class Share:
    """How many formulas were found, and how many of them were typeset."""

    found: int = 0
    typeset: int = 0
    refused: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Setter:
    """Turns text into HTML, and counts."""

    links: Mapping[str, str] = field(default_factory=dict)  # addresses of names
    pages: frozenset[str] = frozenset()  # theory pages there are
    share: Share = field(default_factory=Share)

    def line(self, text: str, *, built: bool = False) -> Markup:
        """A text without blocks."""
        parts: list[Markup] = []
        at = 0
        for match in _SPANS.finditer(text):
            made = self._span(match)
            if made is None:
                continue
            parts += [self._plain(text[at : match.start()], built), made]
            at = match.end()
        parts.append(self._plain(text[at:], built))
        return Markup("").join(parts)

    def formula(self, text: str) -> Markup:
        """A line of its own: typeset as a whole, else its formulas, else its source."""
        whole = text.strip().rstrip(".,;")
        made = typeset(whole, alone=True)
        if made is not None:
            self._count(whole, True)
            return made
        return Markup('<p class="formula">{}</p>').format(self.line(text.strip(), built=True))

    def _span(self, match: re.Match[str]) -> Markup | None:
        found = {name: text for name, text in match.groupdict().items() if text is not None}
        made: Mapping[str, Callable[[str], Markup | None]] = {
            "code": lambda text: self._named(text) or element("code", text),
            "picture": lambda text: Markup('<em class="muted">{}</em>').format(text),
            "label": lambda text: self._linked(text, found["target"]),
            "strong": lambda text: element("strong", self.line(text)),
            "emphasis": lambda text: element("em", self.line(text)),
            "page": lambda text: self._linked(match.group(), f"{text}.md"),
            "name": self._named,
        }
        kind, text = next((kind, text) for kind, text in found.items() if kind in made)
        return made[kind](text)

    def _named(self, text: str) -> Markup | None:
        address = self.links.get(text)
        if address is None:
            return None
        return Markup('<a href="{}"><code>{}</code></a>').format(address, text)

    def _linked(self, label: str, target: str) -> Markup:
        page = _PAGE.fullmatch(target)
        if page is None or page[1] not in self.pages:
            return element("span", label)
        return Markup('<a href="{}{}">{}</a>').format(PAGES, page[1], label)

    def _plain(self, text: str, built: bool) -> Markup:
        return Markup("").join(self._pieces(text, built))

    def _pieces(self, text: str, built: bool) -> Iterator[Markup]:
        at = 0
        for run in _runs(tokens_of(text), text):
            first, last = run[0].start, run[-1].end
            yield escape(text[at:first])
            yield self._run(run, text, built)
            at = last
        yield escape(text[at:])

    def _run(self, run: Sequence[Token], text: str, built: bool) -> Markup:
        """Tokens that may be formulas: as many of them as can be read at a time."""
        parts: list[Markup] = []
        place, at, bound = 0, run[0].start, True
        found = 0
        while place < len(run):
            size, made = _longest(run[place:], text, built)
            token = run[place]
            if made is not None:
                found += 1
            elif token.kind == "name" and is_identifier(token.text):
                size, made = 1, element("code", token.text)
            else:
                # A relation may have words on one of its sides.
                beside = place in (0, len(run) - 1) and token.text in SIGNS
                bound = bound and (token.text not in _BINDING or beside)
                size = 1
            if made is not None:
                parts += [escape(text[at : token.start]), made]
                at = run[place + size - 1].end
            place += size
        parts.append(escape(text[at : run[-1].end]))
        source = text[run[0].start : run[-1].end]
        if not bound:
            self._count(source, False)
            if source.count("(") != source.count(")") or source.count("[") != source.count("]"):
                return escape(source)  # the rest of it is words
            return element("code", " ".join(source.split()))
        self.share.found += found
        self.share.typeset += found
        return Markup("").join(parts)

    def _count(self, source: str, made: bool) -> None:
        self.share.found += 1
        self.share.typeset += made
        if not made:
            self.share.refused.append(source)


def _runs(tokens: Sequence[Token], text: str) -> Iterator[Sequence[Token]]:
    """The stretches of tokens between words and full stops."""
    run: list[Token] = []
    over = False  # inside "sum over ... of"
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else None
        if token.text == "over" and before is not None and before.text in _LARGE:
            over, belongs = True, True
        elif token.text == "of" and over:
            over, belongs = False, True
        else:
            belongs = _may_be_formula(token, text)
        if belongs:
            run.append(token)
            continue
        over = False
        if run:
            yield run
        run = []
    if run:
        yield run


def _may_be_formula(token: Token, text: str) -> bool:
    if token.kind == "other" or token.text in _BREAKING:
        return False
    if token.kind != "name":
        return True
    if token.text in _WORDS or not known(token.text):
        return False
    # Not a part of a word: "mu-GDP" begins with a symbol; "e.g.", "D's" and "sub-q" have none.
    before = _WORD_BEFORE.search(text, max(0, token.start - _WORD_MAX), token.start)
    cut = before is not None and (before[2] in "'." or not known(before[1]))
    return not (cut or _WORD_GOES_ON.match(text, token.end))


def _longest(run: Sequence[Token], text: str, built: bool) -> tuple[int, Markup | None]:
    """(how many tokens, the formula) of the longest one that begins the run."""
    first = run[0]
    if first.kind == "sign" and first.text not in ("(", "[", "|", "-", "{"):
        return 1, None
    article = first.text in _ARTICLES and not built
    if article and (len(run) == 1 or (run[1].spaced and run[1].text not in _BINDING | {"/", "-"})):
        return 1, None
    for size in range(_reach(run), 0, -1):
        part = run[:size]
        if not _says_something(part):
            return 1, None
        made = typeset(text[first.start : part[-1].end], built=built)
        if made is not None:
            return size, made
    return 1, None


def _reach(run: Sequence[Token]) -> int:
    """How many tokens there are before a comma that stands in no bracket."""
    depth = 0
    for place, token in enumerate(run):
        depth += (token.text in ("(", "[", "{")) - (token.text in (")", "]", "}"))
        if token.text == "," and depth <= 0:
            return place
    return len(run)


def _says_something(part: Sequence[Token]) -> bool:
    """Whether it is more than a number or a word."""
    if any(token.kind == "name" and is_symbol(token.text) for token in part):
        return True
    names = any(token.kind == "name" for token in part)
    signs = any(token.kind == "sign" and token.text in _BINDING | {"/"} for token in part)
    return signs and (names or len(part) >= _LEAST)


def statement_html(statement: str, setter: Setter) -> Markup:
    """A docstring's statement: its paragraphs, without what is said of arguments."""
    told = re.split(r"\n(?:Args|Returns|Raises):\n", statement)[0]
    blocks = [block_html(block, setter) for block in re.split(r"\n\s*\n", told) if block.strip()]
    return Markup("\n").join(blocks)


def block_html(block: str, setter: Setter) -> Markup:
    """A paragraph, or a formula where it is nothing else."""
    text = " ".join(block.split())
    relates = any(sign in text for sign in ("=", "<", ">"))
    whole = relates and typeset(text.rstrip(".,;"), alone=True) is not None
    if whole or block.startswith((" ", "\t")):
        return FORMULA.format(setter.formula(text))
    return element("p", setter.line(text))
