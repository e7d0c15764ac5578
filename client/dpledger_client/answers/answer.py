"""A JSON object of an answer, as a frozen object with an attribute for each member."""

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, Union, get_args, get_origin

_SHOWN: Final = 6  # members in a repr


class Answer(dict[str, Any]):
    """An answer of the service: `answer.epsilon` is `answer["epsilon"]`.

    It is the dict of the JSON that came, so it can be compared, unpacked and written as JSON; but
    no member can be set or deleted. Objects inside it are answers, too, also inside lists. Members
    that this version of the client does not know are kept, and can be read in both ways. Units
    and directions are those of the HTTP interface: epsilons are in nats, and upper bounds unless
    their name says lower.

    Args:
        document: the JSON object.
    """

    __slots__ = ()
    _renamed: ClassVar[Mapping[str, type["Answer"]]] = {}  # members that dict has as a method
    _first: ClassVar[tuple[str, ...]] = ()  # what a repr shows

    def __init__(self, document: Mapping[str, Any]) -> None:
        kinds = _kinds_of(type(self))
        super().__init__({name: _made(value, kinds.get(name)) for name, value in document.items()})

    if not TYPE_CHECKING:  # a misspelt attribute is an error of types

        def __getattr__(self, name: str) -> Any:
            """The member of this name; None if it may be absent, and is."""
            try:
                return self[name]
            except KeyError:
                if name in _absent_of(type(self)):
                    return None
            known = ", ".join(sorted(self))
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {known}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for name in self if name.isidentifier())})

    def __repr__(self) -> str:
        names = [name for name in self._first if name in self] or list(self)[:_SHOWN]
        rest = ", ..." if len(names) < len(self) else ""
        members = ", ".join(f"{name}={self[name]!r}" for name in names)
        return f"{type(self).__name__}({members}{rest})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)

    def __deepcopy__(self, seen: Any) -> "Answer":
        return self

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise TypeError("An answer is frozen; dict(answer) is a copy that can be changed.")

    __setitem__ = __delitem__ = __setattr__ = __delattr__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def _made(value: Any, kind: type[Answer] | None) -> Any:
    if isinstance(value, Answer):
        return value if kind is None or isinstance(value, kind) else kind(value)
    if isinstance(value, Mapping):
        return (kind or Answer)(value)
    if isinstance(value, list):
        return [_made(one, kind) for one in value]
    return value


@cache
def _hints_of(answer: type[Answer]) -> dict[str, Any]:
    from typing import get_type_hints

    hints = get_type_hints(answer)
    return {name: hint for name, hint in hints.items() if not name.startswith("_")}


@cache
def _kinds_of(answer: type[Answer]) -> dict[str, type[Answer]]:
    """Which class each member has that is an object, or a list of them."""
    found = {name: _kind(hint) for name, hint in _hints_of(answer).items()}
    kinds = {name: kind for name, kind in found.items() if kind is not None}
    return kinds | dict(answer._renamed)


@cache
def _absent_of(answer: type[Answer]) -> frozenset[str]:
    """The members that older services do not send."""
    hints = _hints_of(answer).items()
    return frozenset(name for name, hint in hints if type(None) in get_args(hint))


def _kind(hint: Any) -> type[Answer] | None:
    if isinstance(hint, type) and get_origin(hint) is None:
        return hint if issubclass(hint, Answer) else None
    if get_origin(hint) in (Union, UnionType) or hasattr(get_origin(hint), "__iter__"):
        return next(filter(None, map(_kind, get_args(hint))), None)
    return None
