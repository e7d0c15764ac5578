"""Which methods a path takes, all of its endpoints together."""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

_PARAMETER = re.compile(r"\\{[^{}]+\\}")


def methods_of(paths: Mapping[str, Iterable[str]], path: str) -> list[str]:
    """The methods of a path, all of its endpoints' together; none where nothing has that path.

    Args:
        paths: the methods by path, with the names of its parameters.
        path: of a request. No name has a colon, so what follows one is a verb.
    """
    items = [item for one, item in paths.items() if _pattern(one).fullmatch(path)]
    return sorted({method for item in items for method in item})


@lru_cache(maxsize=256)
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile(_PARAMETER.sub("[^/:]+", re.escape(path)))
