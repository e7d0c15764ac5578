"""Answers of which the greater part is always the same: its text is kept."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_encode: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True, slots=True)
class Form:
    """The constant part of an answer."""

    values: Mapping[str, Any]
    text: str  # as JSON, without its braces


def form_of(values: Mapping[str, Any]) -> Form:
    """The form of these values."""
    return Form(values, _encode(values)[1:-1])


class Told(dict[str, Any]):
    """An answer: a form and what varies."""

    def __init__(self, form: Form, varying: dict[str, Any]) -> None:
        super().__init__(form.values)
        self.update(varying)
        self._form = form
        self._varying = varying

    @property
    def text(self) -> str:
        """The answer as JSON."""
        return f"{{{self._form.text},{_encode(self._varying)[1:]}"


def text_of(answer: Mapping[str, Any]) -> str:
    """An answer as JSON, with the kept texts of what it tells."""
    told = {name: value for name, value in answer.items() if isinstance(value, Told)}
    plain = {name: value for name, value in answer.items() if name not in told}
    parts = [_encode(plain)[1:-1], *(f'"{name}":{one.text}' for name, one in told.items())]
    return f"{{{','.join(part for part in parts if part)}}}"
