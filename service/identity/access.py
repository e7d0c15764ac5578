"""What a key reaches that is limited to named datasets: them, their runs and reservations.

All else is for it as if it were not there: the same refusal as for a name that was never used.
"""

import re
from collections.abc import Mapping
from typing import Final

from sqlalchemy import BindParameter, ColumnElement, Engine, bindparam, select, true

from service.errors import NotFoundError
from service.schemas.requests import valid_name
from service.storage.engine import snapshot
from service.storage.tables import change_requests, datasets, incidents, reservations, runs

OPEN_NOUNS: Final = frozenset({"bound", "digest", "page"})  # that belong to no dataset
REMEMBERED_MAX: Final = 100_000  # names; some two hundred bytes each

_NAMED: Final[BindParameter[str]] = bindparam("named")
# The dataset of what a path names.
_DATASETS: Final = {
    "run": select(datasets.c.name)
    .join(runs, runs.c.dataset_id == datasets.c.id)
    .where(runs.c.name == _NAMED),
    "reservation": select(datasets.c.name)
    .join(reservations, reservations.c.dataset_id == datasets.c.id)
    .where(reservations.c.name == _NAMED),
    "change_request": select(datasets.c.name)
    .join(change_requests, change_requests.c.dataset_id == datasets.c.id)
    .where(change_requests.c.name == _NAMED),
    "incident": select(datasets.c.name)
    .join(incidents, incidents.c.dataset_id == datasets.c.id)
    .where(incidents.c.id == bindparam("number")),
}
_NUMBER: Final = re.compile(r"incident-([0-9]{1,18})-[0-9a-f]+")


def datasets_within(limit: frozenset[str] | None) -> ColumnElement[bool]:
    """Which rows of datasets a key reaches."""
    return true() if limit is None else datasets.c.name.in_(sorted(limit))


def runs_within(limit: frozenset[str] | None) -> ColumnElement[bool]:
    """Which rows of runs a key reaches."""
    if limit is None:
        return true()
    return runs.c.dataset_id.in_(select(datasets.c.id).where(datasets_within(limit)))


def require_dataset(limit: frozenset[str], name: str) -> None:
    """Refuse a dataset that a key does not reach, whether it is there or not.

    Raises:
        NotFoundError: it does not.
    """
    if name not in limit and valid_name(name):
        raise NotFoundError("There is no such dataset.")


class Reach:
    """What limited keys were found to reach.

    It is cached, for a name is never reused and what it names never moves. What was refused is
    not: to refuse what is there must take as long as to refuse what is not.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: set[tuple[str, str, str]] = set()

    def unknown(
        self, key: str, limit: frozenset[str], names: Mapping[str, str]
    ) -> list[tuple[str, str]]:
        """What of a path the database must be asked about, in words of `require`.

        Raises:
            NotFoundError: the path names a dataset that the key does not reach.
        """
        if names and not (names.keys() & {"dataset", *_DATASETS} or names.keys() <= OPEN_NOUNS):
            # A noun without a rule may belong to any dataset.
            raise NotFoundError("A key that is limited to datasets may not use this.")
        if "dataset" in names:
            require_dataset(limit, names["dataset"])
        return [
            (noun, name)
            for noun, name in names.items()
            if noun in _DATASETS and (key, noun, name) not in self._found
        ]

    def require(self, key: str, limit: frozenset[str], noun: str, name: str) -> None:
        """Refuse a name whose dataset the key does not reach, whether it is there or not.

        Raises:
            NotFoundError: it does not.
        """
        if not valid_name(name):
            return  # its form is refused
        with snapshot(self._engine) as connection:
            dataset = connection.scalar(_DATASETS[noun], _named_by(noun, name))
        if dataset is None or dataset not in limit:
            raise NotFoundError(f"There is no such {noun.replace('_', ' ')}.")
        if len(self._found) >= REMEMBERED_MAX:
            self._found.clear()
        self._found.add((key, noun, name))


def _named_by(noun: str, name: str) -> dict[str, str | int]:
    if noun != "incident":
        return {"named": name}
    found = _NUMBER.fullmatch(name)
    return {"number": int(found[1]) if found else 0}  # which no row has
