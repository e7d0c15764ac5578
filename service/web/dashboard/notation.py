"""The notation of docstrings: which pieces a formula has, and which names may stand in one."""

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

_SMALL: Final = (
    "alpha", "beta", "gamma", "delta", "epsilon", "eta", "theta", "kappa", "lambda", "mu", "nu",
    "pi", "rho", "sigma", "tau", "phi", "psi", "omega",
)  # fmt: skip
_CAPITAL: Final = ("Delta", "Gamma", "Lambda", "Phi", "Sigma", "Theta")


def _greek(name: str) -> str:
    size = "CAPITAL" if name[0].isupper() else "SMALL"
    letter = name.upper().replace("LAMBDA", "LAMDA")  # as Unicode spells it
    return unicodedata.lookup(f"GREEK {size} LETTER {letter}")


GREEK: Final = {name: _greek(name) for name in (*_SMALL, *_CAPITAL)} | {
    "eps": _greek("epsilon"),
    "inf": "\N{INFINITY}",
}
LARGE: Final = {"sum": "∑", "int": "∫", "min": "min", "max": "max", "sup": "sup"}
BEFORE_LARGE: Final = frozenset({"=", "<=", ">=", "(", "[", "min", "max", "sup"})
# Upright words of formulas: functions, laws, and quantities that have no letter.
_UPRIGHT: Final = frozenset(
    {
        "Ber", "Bernoulli", "Bin", "Lap", "Poisson", "as", "ceil", "dm", "end", "exp", "expm1",
        "far", "floor", "log", "log1p", "near", "rdp", "sensitivity", "sinh", "cosh", "sqrt",
        "start",
    }
)  # fmt: skip
RELATIONS: Final = {
    "=": "=", "<=": "≤", ">=": "≥", "<": "<", ">": ">", "~": "\N{TILDE OPERATOR}", "||": "∥",
    "!=": "≠", "~=": "≈",
}  # fmt: skip
_TOKEN: Final = re.compile(
    r"(?P<number>\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![A-Za-z_]*\d*\.\d))"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*(?:_[A-Za-z0-9]+)*'*(?:\+(?=\s+=))?)"
    r"|(?P<sign>\.\.\.|\.\.|<=|>=|!=|~=|\|\||[-+*/=<>~^_()\[\]{},|;.!])"
    r"|(?P<other>\S)"
)


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of a formula."""

    kind: str  # number, name, sign or other
    text: str
    start: int
    end: int
    spaced: bool  # whether there is space before it


def tokens_of(text: str) -> list[Token]:
    """The pieces of a text, with their places."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        before = text[match.start() - 1 : match.start()]
        spaced = match.start() == 0 or before.isspace()
        kind = match.lastgroup or "other"
        found.append(Token(kind, match.group(), match.start(), match.end(), spaced))
    return found


def is_symbol(name: str) -> bool:
    """Whether a name is a letter, or that of a Greek one; it may have an index and primes."""
    base = name.rstrip("'+")
    stem, _, index = base.partition("_")
    return _is_letter(stem) and "_" not in index


def known(name: str) -> bool:
    """Whether a name may be part of a formula."""
    base = name.rstrip("'+")
    stem = base.partition("_")[0]
    return is_symbol(name) or stem in LARGE or base in _UPRIGHT or is_identifier(base)


def is_identifier(name: str) -> bool:
    """Whether it is the name of an argument, such as batch_size."""
    large = name.partition("_")[0] in LARGE
    return "_" in name and name.islower() and not large and not is_symbol(name)


def _is_letter(stem: str) -> bool:
    letters = stem.rstrip("0123456789")
    return len(letters) == 1 or letters in GREEK
