"""JSON as RFC 8259 has it: UTF-8, unique keys, no NaN, bounded."""

import json
from typing import Any, Final

from service.errors import MalformedBodyError

KEYS_MAX: Final = 10_000  # of one object: each that is not known is told at length


class _KeysError(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > KEYS_MAX:
        raise _KeysError(f"has more than {KEYS_MAX} keys")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _KeysError("repeats a key")
    return found


def _refuse_constant(_name: str) -> Any:
    raise ValueError("not JSON")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse_constant)


def parse_json(body: bytes, *, where: str = "body") -> Any:
    """The value of a JSON text, as RFC 8259 has it and with unique keys.

    Raises:
        MalformedBodyError: it is not JSON in UTF-8, repeats a key, has very many, or nests or
            counts too far.
    """
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except _KeysError as error:
        raise MalformedBodyError(f"{where}: an object {error}") from None
    except UnicodeDecodeError:
        raise MalformedBodyError(f"{where}: not UTF-8") from None
    except RecursionError:
        raise MalformedBodyError(f"{where}: nested too deeply") from None
    except json.JSONDecodeError as error:
        raise MalformedBodyError(f"{where}: not JSON at character {error.pos}") from None
    except ValueError:  # NaN and infinities, and integers of thousands of digits
        raise MalformedBodyError(f"{where}: not a JSON number") from None
