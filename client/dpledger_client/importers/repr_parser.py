"""What Python prints of nested values, read back without evaluating anything.

`Name(field=value, ...)`, lists, tuples, numbers, text without escapes, and the numbers and arrays
that NumPy prints. Anything else is refused.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dpledger_client.importers.bounded_reader import BadFile, refuse

DEPTH_MAX: Final = 200  # of brackets
DIGITS_MAX: Final = 400  # of one number
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|inf\b|nan\b))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_.]*)"
    r"|(?P<text>'[^'\\\n]*'|\"[^\"\\\n]*\")"
    r"|(?P<mark>[()\[\],=]))"
)
# NumPy's numbers and arrays print as a call with one value inside.
_WRAPPERS: Final = ("float64", "float32", "int64", "int32", "array")


class Call(NamedTuple):
    """A name with named fields in round brackets."""

    name: str
    fields: Mapping[str, Any]


class _Words:
    """The words of a text, one ahead."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0
        self.kind = self.word = ""
        self.take()

    def take(self) -> str:
        """The word that is ahead; the next is then ahead, of kind "" at the end."""
        taken = self.word
        if self._at == len(self._text):
            self.kind = self.word = ""
            return taken
        found = _TOKEN.match(self._text, self._at)
        if found is None:
            raise self.fault()
        self._at = found.end()
        self.kind = found.lastgroup or ""
        self.word = found[self.kind]
        return taken

    def expect(self, mark: str) -> None:
        """Take a mark that has to be there."""
        if self.take() != mark:
            raise self.fault()

    def fault(self) -> BadFile:
        """What to raise here."""
        return BadFile(f"character {self._at}: is not what Python prints of an event")


def parse(text: str) -> Any:
    """The value that a text shows.

    Raises:
        BadFile: the text is anything else; names the place.
    """
    words = _Words(text)
    value = _value(words, 0)
    if words.kind:
        raise words.fault()
    return value


def _value(words: _Words, depth: int) -> Any:
    if depth > DEPTH_MAX:
        refuse("", "the file is nested too deep")
    kind, word = words.kind, words.take()
    match kind:
        case "number":
            return _number(word)
        case "text":
            return word[1:-1]
        case "name":
            return _named(words, word, depth)
        case "mark" if word in "[(":
            return _items(words, "]" if word == "[" else ")", depth)
        case _:
            raise words.fault()


def _number(word: str) -> int | float:
    if len(word) > DIGITS_MAX:
        refuse("", "the file has a number of too many digits")
    return int(word) if word.lstrip("-").isdigit() else float(word)


def _items(words: _Words, end: str, depth: int) -> list[Any]:
    items: list[Any] = []
    while words.word != end:
        items.append(_value(words, depth + 1))
        if words.word != end:
            words.expect(",")
    words.take()
    return items


def _named(words: _Words, name: str, depth: int) -> Any:
    words.expect("(")
    if name.rpartition(".")[2] in _WRAPPERS:
        value = _value(words, depth + 1)
        words.expect(")")
        return value
    fields: dict[str, Any] = {}
    while words.word != ")":
        if words.kind != "name" or words.word in fields:
            raise words.fault()
        field = words.take()
        words.expect("=")
        fields[field] = _value(words, depth + 1)
        if words.word != ")":
            words.expect(",")
    words.take()
    return Call(name, fields)
