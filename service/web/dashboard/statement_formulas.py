"""Turn the plain notation of theorems' docstrings into Markdown with LaTeX formulas.

Docstrings are read in terminals and in the code, so their formulas are plain text, such as
sum_j q^j e^(-epsilon/2). A stretch of text is a formula if it consists of symbols, numbers and
signs only; English words end it.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

_GREEK: Final = frozenset(
    {
        "alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu",
        "pi", "rho", "sigma", "tau", "phi", "psi", "omega", "zeta", "xi",
        "Delta", "Gamma", "Lambda", "Phi", "Sigma", "Theta",
    }
)  # fmt: skip
_LETTERS: Final = {
    "epsilon": r"\varepsilon",
    "eps": r"\varepsilon",
    "lam": r"\lambda",
    "inf": r"\infty",
    "phi": r"\varphi",
}
_LATEX_FUNCTIONS: Final = frozenset(
    {"log", "exp", "sinh", "cosh", "tanh", "sin", "min", "max", "sup", "sum", "int", "prod"}
)
_LARGE: Final = frozenset({"min", "max", "sup", "sum", "int", "prod"})
_UPRIGHT: Final = frozenset(
    {
        "Ber", "Bern", "Bernoulli", "Bin", "Lap", "Poisson", "artanh", "ceil", "dm", "expm1",
        "floor", "log1p", "rdp", "sensitivity", "sqrt",
    }
)  # fmt: skip
_PRODUCTS: Final = frozenset({"dP", "dQ", "dt", "zL"})
# Parts of a formula only where signs are on both sides of them.
_WORDS: Final = frozenset(
    {"begun", "end", "far", "loss", "near", "noise", "passes", "points", "release", "start"}
)
_BEFORE_WORD: Final = re.compile(r"[-+*/=^({] ?$")
_BEHIND_WORD: Final = re.compile(r"[(^]| ?[-+*/=)}\],]")
_ARTICLES: Final = frozenset({"a", "A", "I"})
_SIGNS: Final = {
    "<=": r"\le", ">=": r"\ge", "!=": r"\ne", "~=": r"\approx", "~": r"\sim", "||": r"\parallel",
    "*": r"\cdot", "..": r"\ldots", "...": r"\ldots", "{": r"\{", "}": r"\}", "<": r"\lt",
    ">": r"\gt", "⟨": r"\langle", "⟩": r"\rangle",
}  # fmt: skip
_RELATIONS: Final = frozenset({"=", "<=", ">=", "<", ">", "!=", "~=", "~", "||"})
_OPERATORS: Final = _RELATIONS | {"^", "_", "+", "*"}
_BRACKETS: Final = {"(": ")", "[": "]", "{": "}", "⟨": "⟩"}
_ENDS: Final = frozenset({")", "]", "}", "⟩", "|", "...", "+"})
_FENCES: Final = {"sqrt": r"\sqrt{%s}", "floor": r"\lfloor %s\rfloor", "ceil": r"\lceil %s\rceil"}
_TOKEN: Final = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![A-Za-z_]*\d*\.\d))"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*(?:'+(?![A-Za-z]))?(?:\+(?=\s+=)|\*(?![\w*]))?)"
    r"|(?P<sign>\.\.\.|\.\.|<=|>=|!=|~=|\|\||[-+*/=<>~^_()\[\]{}⟨⟩,|])"
    r"|(?P<other>\S)"
)
_SPAN: Final = re.compile(
    r"`[^`]+`|docs/theory/(?P<page>[a-z_]+)\.md"
    r"|(?<![\w-])(?P<name>[a-z]+(?:-[a-z]+)+|[a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w-]|\.[a-z])"
)
_OVER: Final = re.compile(r"\b(sum|min|max|sup) over (?!the\b)((?:[^.;]|\.\.)+?) of ")
_SUM_OF: Final = re.compile(r"(?<!the )\bsum of (?=\(|\w+[_(])")
_PRODUCT: Final = re.compile(r"<(\w+), (\w+)>")  # of two vectors
_WORD_BEFORE: Final = re.compile(r"(\w+)(['.-])$")
_WORD_GOES_ON: Final = re.compile(r"[.'][A-Za-z]")
_WORD_MAX: Final = 24  # letters looked at before a token
_NEEDLESS_SPACE: Final = re.compile(r" (?=[\^_),\]])|(?<=[(\[]) ")
_DEPTH_MAX: Final = 40  # of brackets in brackets


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # number, name, sign or other
    text: str
    start: int
    end: int
    spaced: bool  # whether space, or the beginning, is before it


def statement_markdown(statement: str, names: Collection[str]) -> str:
    """Markdown of a statement, without what it says of arguments; `names` become code."""
    told = re.split(r"\n(?:Args|Returns|Raises):\n", statement)[0]
    blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", told))
    return "\n\n".join(_block(block, names) for block in blocks if block)


def line_markdown(text: str, names: Collection[str]) -> str:
    """Markdown of a text without blocks."""
    parts, at = [], 0
    for span in _SPAN.finditer(text):
        if span["name"] and span["name"] not in names:
            continue
        parts.append(_prose(text[at : span.start()]))
        if span["page"]:
            parts.append(f"[{span[0]}]({span['page']}.md)")
        else:
            parts.append(f"`{span['name']}`" if span["name"] else span[0])
        at = span.end()
    return "".join((*parts, _prose(text[at:])))


def _block(text: str, names: Collection[str]) -> str:
    formula = _with_signs(text.rstrip(".,;"))
    tokens = _tokens(formula)
    related = any(token.text in _RELATIONS for token in tokens)
    if related and all(_may_belong(token, formula) for token in tokens) and _whole(tokens):
        return f"$$\n{_latex(tokens)}\n$$"
    return line_markdown(text, names)


def _prose(text: str) -> str:
    """Words, with each formula between dollar signs."""
    text = _with_signs(text)
    parts, at = [], 0
    for formula in _formulas(_tokens(text), text):
        parts += [_escape(text[at : formula[0].start]), f"${_latex(formula)}$"]
        at = formula[-1].end
    return "".join((*parts, _escape(text[at:])))


def _with_signs(text: str) -> str:
    """The text with signs where words stand for them."""
    text = _SUM_OF.sub("sum ", _OVER.sub(r"\1_{\2} ", text))
    return _PRODUCT.sub(r"⟨\1, \2⟩", text)


def _escape(text: str) -> str:
    """Words as Markdown that shows them as they are; names of arguments as code."""
    parts = re.split(r"(?<![\w-])([a-z][a-z0-9]*(?:_[a-z0-9]+)+)(?![\w-])", text)
    words = (re.sub(r"([\\`*_\[\]<>$|#~])", r"\\\1", part) for part in parts[::2])
    names = [f"`{name}`" for name in parts[1::2]]
    return "".join(word + name for word, name in zip(words, [*names, ""], strict=True))


def _tokens(text: str) -> list[_Token]:
    found = []
    for match in _TOKEN.finditer(text):
        spaced = match.start() == 0 or text[match.start() - 1].isspace()
        kind = match.lastgroup or "other"
        found.append(_Token(kind, match[0], match.start(), match.end(), spaced))
    return found


def _formulas(tokens: Sequence[_Token], text: str) -> Iterator[Sequence[_Token]]:
    """The formulas among the tokens of a text."""
    run: list[_Token] = []
    for token in tokens:
        if _may_belong(token, text):
            run.append(token)
            continue
        yield from _parts(run)
        run = []
    yield from _parts(run)


def _parts(run: Sequence[_Token]) -> Iterator[Sequence[_Token]]:
    """The formulas of a run of tokens between words: as long as brackets match."""
    place = 0
    while place < len(run):
        size = _longest(run[place:])
        if size:
            yield run[place : place + size]
        place += max(size, 1)


def _longest(run: Sequence[_Token]) -> int:
    """How many tokens the longest formula has that begins the run; 0 if none begins there."""
    first = run[0]
    if first.kind == "sign" and first.text not in ("(", "[", "|", "-", "{"):
        return 0
    after = run[1] if len(run) > 1 else None
    if first.text in _ARTICLES and (
        after is None or (after.spaced and after.text not in _OPERATORS | {"/", "-"})
    ):
        return 0
    for size in range(_before_comma(run), 0, -1):
        if _whole(run[:size]) and _says_something(run[:size]):
            return size
    return 0


def _before_comma(run: Sequence[_Token]) -> int:
    depth = 0
    for place, token in enumerate(run):
        depth += (token.text in _BRACKETS) - (token.text in _BRACKETS.values())
        if token.text == "," and depth <= 0:
            return place
    return len(run)


def _whole(tokens: Sequence[_Token]) -> bool:
    """Whether brackets match and the last token is no sign that needs another behind it."""
    if not tokens or (tokens[-1].kind == "sign" and tokens[-1].text not in _ENDS):
        return False
    if tokens[-1].text == "+" and not _is_positive_part(tokens, len(tokens) - 1):
        return False
    if tokens[-1].text in _LARGE:
        return False
    closing: list[str] = []
    bars = 0  # outside brackets; within them one may stand for "given"
    for token in tokens:
        bars += token.text == "|" and not closing
        if token.text in _BRACKETS:
            closing.append(_BRACKETS[token.text])
        elif token.text in _BRACKETS.values() and (not closing or closing.pop() != token.text):
            return False
        if len(closing) > _DEPTH_MAX:
            return False
    return not closing and bars % 2 == 0


def _says_something(tokens: Sequence[_Token]) -> bool:
    """Whether it is more than a number or a word."""
    if any(token.kind == "name" and _is_symbol(token.text) for token in tokens):
        return True
    signs = any(token.text in _OPERATORS | {"/"} for token in tokens)
    return signs and (len(tokens) > 2 or any(token.kind == "name" for token in tokens))


def _may_belong(token: _Token, text: str) -> bool:
    if token.kind != "name":
        return token.kind != "other"
    if token.text in _WORDS:
        between = _BEFORE_WORD.search(text[: token.start]) and _BEHIND_WORD.match(text, token.end)
        return bool(between) or text.startswith(("^", "("), token.end)
    if token.text == "Delta" or not _is_known(token.text):  # which begins many statements
        return False
    before = _WORD_BEFORE.search(text, max(0, token.start - _WORD_MAX), token.start)
    cut = before is not None and (
        before[2] in "'." or not (before[1].isdigit() or _is_known(before[1]))
    )
    return not (cut or _WORD_GOES_ON.match(text, token.end))


def _is_known(name: str) -> bool:
    base = name.rstrip("'+*")
    stem = base.partition("_")[0]
    known = stem in _LATEX_FUNCTIONS or base in _UPRIGHT | _PRODUCTS | _WORDS
    return known or _is_symbol(name) or _is_identifier(base)


def _is_symbol(name: str) -> bool:
    """Whether a name is a letter, perhaps with an index and primes."""
    stem, _, index = name.rstrip("'+*").partition("_")
    letters = stem.rstrip("0123456789")
    return (len(letters) == 1 or letters in _GREEK or letters in _LETTERS) and "_" not in index


def _is_identifier(name: str) -> bool:
    """Whether it is the name of an argument, such as batch_size."""
    function = name.partition("_")[0] in _LATEX_FUNCTIONS
    return "_" in name and name.islower() and not function and not _is_symbol(name)


def _latex(tokens: Sequence[_Token]) -> str:
    """LaTeX of tokens; words and numbers get room beside what they multiply."""
    parts: list[str] = []
    place = 0
    while place < len(tokens):
        before, token = tokens[place - 1] if place else None, tokens[place]
        if before is not None and before.kind == token.kind == "number":
            parts.append(r"\cdot")
        elif before is not None and _would_run_together(before, token):
            parts.append(r"\,")
        part, place = _piece(tokens, place)
        parts.append(part)
    return _NEEDLESS_SPACE.sub("", " ".join(parts))


def _would_run_together(before: _Token, token: _Token) -> bool:
    """Whether two factors would be read as one word: n 1000, sensitivity s."""
    if "sign" in (before.kind, token.kind):
        return False
    return token.kind == "number" or not (_is_symbol(before.text) or before.kind == "number")


def _piece(tokens: Sequence[_Token], place: int) -> tuple[str, int]:
    """(LaTeX of what begins at a place, the place behind it)."""
    token = tokens[place]
    if token.text in ("^", "_"):
        script, behind = _script(tokens, place + 1)
        if place and tokens[place - 1].text == "e" and _takes_argument(tokens, behind):
            end = _closing(tokens, behind)  # e^r(2) is e to the value of r at 2
            script, behind = f"{script} {_latex(tokens[behind : end + 1])}", end + 1
        return f"{token.text}{{{script}}}", behind
    opens = place + 1 < len(tokens) and tokens[place + 1].text == "("
    if token.text in _FENCES and opens:
        end = _closing(tokens, place + 1)
        return _FENCES[token.text] % _latex(tokens[place + 2 : end]), end + 1
    if token.text == "sqrt" and place + 1 < len(tokens):
        root, behind = _piece(tokens, place + 1)
        return _FENCES["sqrt"] % root, behind
    if token.kind == "number":
        return _number(token.text), place + 1
    if token.kind == "name":
        return _name(token.text), place + 1
    if _is_positive_part(tokens, place):
        return "+" if tokens[place - 1].text == "_" else "_{+}", place + 1
    return _SIGNS.get(token.text, token.text), place + 1


def _script(tokens: Sequence[_Token], place: int) -> tuple[str, int]:
    """An index or a power: brackets around it are left out."""
    if place >= len(tokens):
        return "", place
    if tokens[place].text in ("(", "{"):
        end = _closing(tokens, place)
        return _latex(tokens[place + 1 : end]), end + 1
    if tokens[place].text == "-" and place + 1 < len(tokens):
        script, behind = _script(tokens, place + 1)
        bracket = tokens[place + 1].text == "("
        return (f"-({script})" if bracket else f"-{script}"), behind
    return _piece(tokens, place)


def _takes_argument(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a name before a place has its argument there."""
    named = tokens[place - 1].kind == "name" and place < len(tokens)
    return named and tokens[place].text == "(" and not tokens[place].spaced


def _closing(tokens: Sequence[_Token], place: int) -> int:
    """The place of the bracket that closes the one at a place."""
    depth = 0
    for at in range(place, len(tokens)):
        depth += (tokens[at].text in _BRACKETS) - (tokens[at].text in _BRACKETS.values())
        if depth == 0:
            return at
    return len(tokens)


def _is_positive_part(tokens: Sequence[_Token], place: int) -> bool:
    """Whether a plus behind a bracket takes its positive part: (1 - x)+ <= y."""
    if tokens[place].text != "+" or tokens[place].spaced or place == 0:
        return False
    if tokens[place - 1].text == "_":
        return True
    after = tokens[place + 1].text if place + 1 < len(tokens) else ")"
    return tokens[place - 1].text in (")", "]") and after in _RELATIONS | {")", "]", ","}


def _number(text: str) -> str:
    digits, _, power = text.partition("e")
    if not power:
        return digits
    tower = f"10^{{{int(power)}}}"
    return tower if digits == "1" else rf"{digits} \cdot {tower}"


def _name(name: str) -> str:
    """A letter with its index and primes, or an upright word."""
    if name.endswith(("+", "*")):  # the next value, in a recursion; an optimum
        return f"{_name(name[:-1])}^{{{name[-1]}}}"
    base = name.rstrip("'")
    primes = name[len(base) :]
    if _is_identifier(base):
        return rf"\text{{{base}}}{primes}"
    stem, _, index = base.partition("_")
    letters = stem.rstrip("0123456789")
    index = index or (stem[len(letters) :] if _is_symbol(stem) else "")
    if not index:
        return _letter(stem) + primes
    return f"{_letter(letters if _is_symbol(stem) else stem)}_{{{_index(index)}{primes}}}"


def _letter(name: str) -> str:
    if name in _LETTERS:
        return _LETTERS[name]
    if name in _GREEK or name in _LATEX_FUNCTIONS:
        return f"\\{name}"
    return name if len(name) == 1 or name in _PRODUCTS else rf"\mathrm{{{name}}}"


def _index(text: str) -> str:
    digits = re.match(r"\d*", text)
    rest = text[digits.end() :] if digits else text
    if not rest:
        return text
    if _is_symbol(rest) or _is_known(rest):
        return f"{text[: len(text) - len(rest)]}{_name(rest)}"
    return rf"\text{{{text}}}"
