"""Inputs that a parser did not expect, from inputs that it did: bytes, and values inside JSON."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any, Final

FIRST: Final = 16
SIZE_MAX: Final = 16_384  # bytes of an input; larger ones are tests of their own
# What parsers have stumbled over: numbers, brackets, encodings, keys.
TOKENS: Final = (
    b"1e999999", b"-1e999999", b"1e-400", b"5e-324", b"-0.0", b"9007199254740993", b"NaN",
    b"Infinity", b"-Infinity", b"1" + b"0" * 400, b"1" * 5000, b"0x10", b"01", b"1.", b".5", b"1_0",
    b"1E+308", b"18446744073709551616", b"-1", b"0", b"true", b"null", b'""', b"[]", b"{}",
    b"[" * 200, b"]" * 200, b"[" * 2000, b'{"a":' * 200, b"}" * 200, b"(" * 300, b",", b":", b'"',
    b"\\", b"\\u0000", b"\\ud800", b"\\udc00\\ud800", b"\xef\xbb\xbf", b"\xff\xfe", b"\x00",
    b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\n", b"\r", b"\r\n",
    b"\x85", b"\xe2\x80\xa8", b"/*", b"//", b"#", b"a" * 1000, b"\xd9\xa3", b"\xc2\xb2",
)  # fmt: skip
# Put into the place of a value once the rest is JSON; the first is replaced as text.
VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**12, 10**13, 10**30, 10**400,
    -(2**63), 0.0, -0.0, 0.5, 1.0, 1e-12, 1e-13, 5e-324, 1e308, 1.5, "", "main", "a" * 64,
    "\x00", "\ud800", "gaussian", "poisson", "none", "full", "é", [], [[]], {}, {"kind": "none"},
    [None] * 70,
)  # fmt: skip
Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


def mutated(chance: random.Random, seeds: Sequence[bytes]) -> bytes:
    """An input made from one of the seeds by a few changes."""
    # The first few are what the parser expects; the others led to something new.
    found = chance.choice(seeds if chance.random() < 0.5 else seeds[:FIRST])
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        found = chance.choice(CHANGES)(chance, found, seeds)
    return found[:SIZE_MAX]


def _flip(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    if not text:
        return text
    at = chance.randrange(len(text))
    return text[:at] + bytes([text[at] ^ (1 << chance.randrange(8))]) + text[at + 1 :]


def _cut(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _span(chance, text)
    return text[:start] + text[end:]


def _repeat(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _span(chance, text)
    return text[:end] + text[start:end] * chance.choice((1, 2, 9)) + text[end:]


def _insert(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(TOKENS) + text[at:]


def _overwrite(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    start, end = _span(chance, text, longest=8)
    return text[:start] + chance.choice(TOKENS) + text[end:]


def _splice(chance: random.Random, text: bytes, seeds: Sequence[bytes]) -> bytes:
    other = chance.choice(seeds)
    return text[: chance.randrange(len(text) + 1)] + other[chance.randrange(len(other) + 1) :]


def _span(chance: random.Random, text: bytes, longest: int = 64) -> tuple[int, int]:
    start = chance.randrange(len(text) + 1)
    return start, min(len(text), start + chance.randrange(1, longest))


def _inside(chance: random.Random, text: bytes, _seeds: Sequence[bytes]) -> bytes:
    """Another value somewhere in JSON; in each of its lines, where it has several."""
    lines = text.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return _overwrite(chance, text, _seeds)
    hole = chance.random() < 0.3
    changed = json.dumps(_changed(chance, value, hole=hole)).encode()
    lines[at] = changed.replace(b'"@@"', chance.choice(TOKENS)) if hole else changed
    return b"\n".join(lines)


def _changed(chance: random.Random, value: Any, *, hole: bool) -> Any:
    if not isinstance(value, list | dict) or not value or chance.random() < 0.02:
        return "@@" if hole else _other(chance, value)
    if isinstance(value, list):
        return _changed_list(chance, value, hole=hole)
    key = chance.choice(list(value))
    rest = {name: one for name, one in value.items() if name != key}
    what = chance.random()
    if what < 0.1:
        return rest
    if what < 0.2:
        return {**rest, chance.choice(("kind", "steps", "x", "", key + "\x00")): value[key]}
    return {**value, key: _changed(chance, value[key], hole=hole)}


def _other(chance: random.Random, value: Any) -> Any:
    """A value near this one, which may well be accepted, or any."""
    near = chance.random() < 0.5 and isinstance(value, int | float) and value is not True
    if near and abs(value) < 1e15:
        return (
            value + chance.choice((-1, 1, 2)) if isinstance(value, int) else value * chance.random()
        )
    return chance.choice(VALUES)


def _changed_list(chance: random.Random, value: list[Any], *, hole: bool) -> list[Any]:
    at = chance.randrange(len(value))
    what = chance.random()
    if what < 0.1:
        return value[:at] + value[at + 1 :]
    if what < 0.2:
        return [*value, value[at]]
    return [*value[:at], _changed(chance, value[at], hole=hole), *value[at + 1 :]]


CHANGES: Final[tuple[Change, ...]] = (
    _flip, _cut, _repeat, _insert, _overwrite, _splice, _inside, _inside, _inside, _inside, _inside,
)  # fmt: skip
