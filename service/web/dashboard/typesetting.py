"""Formulas as docstrings write them, typeset as MathML.

A converter that knows little and says so: what it cannot read for certain it refuses, and whoever
asked shows the source. A slash binds tighter than a product when it has no spaces and looser when
it has some; where that would still leave two readings, there is none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup, escape

from service.web.dashboard.notation import (
    BEFORE_LARGE,
    GREEK,
    LARGE,
    RELATIONS,
    Token,
    is_identifier,
    is_symbol,
    known,
    tokens_of,
)

_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_DEPTH_MAX: Final = 40  # of brackets in brackets


class NotAFormulaError(ValueError):
    """The text is none, or one that could be read in two ways."""


def typeset(text: str, *, built: bool = False, alone: bool = False) -> Markup | None:
    """A formula as MathML; None where it is none, or not read for certain.

    Args:
        text: the formula, with nothing around it.
        built: with fractions built up, as there is room for.
        alone: on a line of its own, built up.
    """
    try:
        inside = _Reader(tokens_of(text), built or alone).whole()
    except NotAFormulaError:
        return None
    if alone:
        return Markup('<math display="block">{}</math>').format(inside)
    if built:
        return Markup('<math displaystyle="true">{}</math>').format(inside)
    return element("math", inside)


@dataclass(frozen=True, slots=True)
class _Part:
    """What was read: as it stands, and without the brackets around it where it has some."""

    markup: Markup
    bare: Markup
    wordy: bool = False  # it needs room beside other factors


def _part(markup: Markup, *, wordy: bool = False) -> _Part:
    return _Part(markup, markup, wordy)


def element(name: str, *parts: Markup | str) -> Markup:
    """An element around its parts; plain text is escaped."""
    inside = "".join(part if isinstance(part, Markup) else escape(part) for part in parts)
    return Markup(f"<{name}>{inside}</{name}>")  # noqa: S704 (all parts are escaped)


def _sign(text: str) -> Markup:
    return _SLASH if text == "/" else element("mo", text)


def _row(parts: Sequence[Markup]) -> Markup:
    return parts[0] if len(parts) == 1 else element("mrow", *parts)


_SLASH: Final = Markup('<mo lspace="0" rspace="0">/</mo>')
_TIMES: Final = Markup("<mo>&#x2062;</mo>")
_SPACE: Final = Markup('<mspace width="0.2em"></mspace>')
_APPLIED: Final = Markup("<mo>&#x2061;</mo>")


class _Reader:
    """Reads one formula, from left to right."""

    def __init__(self, tokens: Sequence[Token], built: bool) -> None:
        self._tokens = tokens
        self._built = built
        self._at = 0
        self._depth = 0
        self._bars = 0  # open |, in which a | closes

    def whole(self) -> Markup:
        """All of it."""
        if not self._tokens:
            raise NotAFormulaError
        found = self._list()
        if self._at < len(self._tokens):
            raise NotAFormulaError
        return found

    def _next(self, offset: int = 0) -> Token | None:
        place = self._at + offset
        return self._tokens[place] if place < len(self._tokens) else None

    def _is(self, *texts: str, offset: int = 0) -> bool:
        token = self._next(offset)
        return token is not None and token.kind != "number" and token.text in texts

    def _take(self) -> Token:
        token = self._next()
        if token is None:
            raise NotAFormulaError
        self._at += 1
        return token

    def _expect(self, text: str) -> None:
        if not self._is(text):
            raise NotAFormulaError
        self._at += 1

    def _list(self) -> Markup:
        parts = [self._relation()]
        while self._is(",", ";") or self._given():
            parts += [_sign(self._take().text), self._relation()]
        return _row(parts)

    def _given(self) -> bool:
        """Whether here is the bar of what is given, as in R(y|x)."""
        token, after = self._next(), self._next(1)
        within = self._depth > 0 and not self._bars and self._is("|")
        return within and token is not None and not token.spaced and not (after and after.spaced)

    def _relation(self) -> Markup:
        parts = [self._sum()]
        while self._is(*RELATIONS, ".."):
            text = self._take().text
            parts += [_sign(RELATIONS.get(text, "…")), self._sum()]
        return _row(parts)

    def _sum(self) -> Markup:
        parts: list[Markup] = []
        if self._is("-", "+"):
            parts.append(self._plus())
        parts.append(self._quotient())
        while self._is("-", "+"):
            parts += [self._plus(), self._quotient()]
        return _row(parts)

    def _plus(self) -> Markup:
        return _sign({"-": "\N{MINUS SIGN}", "+": "+"}[self._take().text])

    def _quotient(self) -> Markup:
        above = self._product()
        if not self._is("/"):
            return above.markup
        self._at += 1
        below = self._tight()
        if self._begins() or self._is("/"):  # a / b c could be two things
            raise NotAFormulaError
        return self._divided(above, below)

    def _divided(self, above: _Part, below: _Part) -> Markup:
        if self._built:
            return element("mfrac", above.bare, below.bare)
        return _row([above.markup, _sign("/"), below.markup])

    def _product(self) -> _Part:
        parts = [self._tight()]
        while self._is("*") or self._begins():
            if self._is("*"):
                self._at += 1
            parts.append(self._tight())
        if len(parts) == 1:
            return parts[0]
        markup = [parts[0].markup]
        for before, part in pairwise(parts):
            markup += [_SPACE if before.wordy or part.wordy else _TIMES, part.markup]
        return _part(_row(markup))

    def _tight(self) -> _Part:
        above = self._factor()
        token, after = self._next(), self._next(1)
        if not self._is("/") or token is None or token.spaced or after is None or after.spaced:
            return above
        self._at += 1
        below = self._factor()
        if self._is("/"):
            raise NotAFormulaError
        return _part(self._divided(above, below))

    def _begins(self) -> bool:
        """Whether a factor begins here."""
        token = self._next()
        if token is None:
            return False
        if token.kind in ("number", "name"):
            return token.text not in ("over", "of")  # which belong to a large sign
        opens = token.text == "|" and not self._bars and not self._given()
        return opens or token.text in ("(", "[", "...")

    def _factor(self) -> _Part:
        token = self._next()
        if token is None or not (self._begins() or token.text in ("|", "{")):
            raise NotAFormulaError
        if token.kind == "number":
            return self._scripted(_number(self._take().text))
        if token.kind == "name":
            return self._named()
        if token.text == "...":
            self._at += 1
            return _part(_sign("…"), wordy=True)
        return self._scripted(self._bracketed())

    def _bracketed(self) -> _Part:
        opening = self._take().text
        closing = "|" if opening == "|" else _CLOSING[opening]
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise NotAFormulaError
        bars, self._bars = self._bars, int(opening == "|")
        inside = self._list()
        self._expect(closing)
        self._bars = bars
        self._depth -= 1
        if opening == "{":
            return _part(inside)
        return _Part(element("mrow", _sign(opening), inside, _sign(closing)), inside)

    def _named(self) -> _Part:
        name = self._take().text
        stem = name.rstrip("'").partition("_")[0]
        if stem in LARGE and not is_identifier(name):
            return self._large(name)
        if not known(name):
            raise NotAFormulaError
        if name == "sqrt" and self._is("("):
            return self._scripted(_part(element("msqrt", self._bracketed().bare)))
        if name in ("floor", "ceil") and self._is("("):
            left, right = "⌊⌋" if name == "floor" else "⌈⌉"
            inside = self._bracketed().bare
            return _part(element("mrow", _sign(left), inside, _sign(right)))
        found = self._scripted(_part(_symbol(name), wordy=not is_symbol(name)))
        token = self._next()
        if token is not None and not token.spaced and token.text in ("(", "["):
            arguments = self._scripted(self._bracketed())
            return _part(element("mrow", found.markup, _APPLIED, arguments.markup))
        return found

    def _large(self, name: str) -> _Part:
        stem, _, index = name.partition("_")
        sign = _sign(LARGE[stem])
        token = self._next()
        if token is not None and not token.spaced and token.text == "(":  # of some numbers
            if index:
                raise NotAFormulaError
            return _part(element("mrow", sign, _APPLIED, self._bracketed().markup))
        low = _symbol(index) if index else None
        high = None
        if self._is("over"):
            self._at += 1
            low = self._relation()
            self._expect("of")
        elif self._is("_"):
            self._at += 1
            low = self._script()
        if low is not None and self._is("^"):
            self._at += 1
            high = self._script()
        if low is None:
            before = self._tokens[self._at - 2].text if self._at > 1 else ""
            if before not in BEFORE_LARGE:  # else it may be English
                raise NotAFormulaError
            return _part(sign, wordy=True)
        return _part(_limits(sign, low, high, apart=self._built and stem != "int"), wordy=True)

    def _scripted(self, base: _Part) -> _Part:
        found = base
        if self._is("_"):
            self._at += 1
            if self._is("+"):
                self._at += 1
                low = _sign("+")
            else:
                low = self._script()
            found = _part(element("msub", base.markup, low))
        elif base.markup is not base.bare and self._positive():
            self._at += 1
            found = _part(element("msub", base.markup, _sign("+")))
        token = self._next()
        if self._is("^") and token is not None:
            self._at += 1
            found = _part(element("msup", found.markup, self._script()), wordy=found.wordy)
        if self._is("^", "_"):  # a tower could be two things
            raise NotAFormulaError
        return found

    def _positive(self) -> bool:
        """Whether a plus behind a bracket takes its positive part: (1 - x)+ <= y."""
        token, after = self._next(), self._next(1)
        ends = after is None or after.text in RELATIONS or after.text in (")", "]", ",")
        return self._is("+") and token is not None and not token.spaced and ends

    def _script(self) -> Markup:
        built, self._built = self._built, False  # a fraction is too small up there
        made = self._raised()
        self._built = built
        return made

    def _raised(self) -> Markup:
        if self._is("(", "{"):
            return self._bracketed().bare
        parts = []
        if self._is("-"):
            parts.append(self._plus())
            if self._is("("):
                return _row([*parts, self._bracketed().markup])
        token = self._take()
        if token.kind == "number":
            parts.append(_number(token.text).markup)
        elif token.kind == "name" and known(token.text):
            parts.append(_symbol(token.text))
        else:
            raise NotAFormulaError
        return _row(parts)


def _limits(sign: Markup, low: Markup, high: Markup | None, *, apart: bool) -> Markup:
    if high is None:
        return element("munder" if apart else "msub", sign, low)
    return element("munderover" if apart else "msubsup", sign, low, high)


def _number(text: str) -> _Part:
    digits, _, power = text.partition("e")
    if not power:
        return _part(element("mn", digits))
    raised = str(int(power)).replace("-", "\N{MINUS SIGN}")
    tower = element("msup", element("mn", "10"), element("mn", raised))
    if digits == "1":
        return _part(tower)
    return _part(element("mrow", element("mn", digits), _sign("·"), tower))


def _symbol(name: str) -> Markup:
    """A letter with its index and primes, or an upright word.

    A prime behind an index is the index's: H_a' is H at a'.
    """
    if name.endswith("+"):  # what comes next, of a recursion
        return element("msup", _symbol(name[:-1]), _sign("+"))
    base = name.rstrip("'")
    primes = "\N{PRIME}" * (len(name) - len(base))
    if not is_symbol(name):
        return element("mi", base + primes)
    stem, _, index = base.partition("_")
    letters = stem.rstrip("0123456789")
    if stem != letters and not index:
        index = stem[len(letters) :]
    letter = element("mi", GREEK.get(letters, letters))
    if primes and not index:
        letter = element("msup", letter, _sign(primes))
    return element("msub", letter, _index(index, primes)) if index else letter


def _index(text: str, primes: str = "") -> Markup:
    if primes:
        return element("mrow", _index(text), _sign(primes))
    if text.isdigit():
        return element("mn", text)
    if known(text):
        return _symbol(text)
    digits = text[: len(text) - len(text.lstrip("0123456789"))]
    rest = text[len(digits) :]
    if digits and is_symbol(rest):
        return element("mrow", element("mn", digits), _symbol(rest))
    return element("mtext", text)
