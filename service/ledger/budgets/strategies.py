"""Strategies of correlated noise: kept by their digests, and filled in where a step names one."""

import json
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, bindparam, select

from accounting import correlated_noise as core
from accounting.events import CyclicPoisson, MinSeparation
from service.clock import now, stamp
from service.errors import InvalidRequestError, NotFoundError
from service.schemas.correlated.steps import can_be_sensitivity, is_digest
from service.schemas.correlated.strategies import (
    StrategyMessage,
    compute_squared_sensitivity,
    place_parts,
    read_strategy,
    sampling_in,
    steps_in,
    strategy_content,
    strategy_digest,
)
from service.schemas.field_errors import location_of
from service.schemas.responses import Answer
from service.storage.engine import snapshot, upsert
from service.storage.tables import strategies

_ONE: Final = select(strategies).where(strategies.c.digest == bindparam("digest"))
_SEVERAL: Final = select(strategies.c.digest, strategies.c.content).where(
    strategies.c.digest.in_(bindparam("digests", expanding=True))
)
_PRICES_MAX: Final = 4096  # that are cached
_NOT_KEPT: Final = "is not a strategy of this ledger: POST /v1/strategies keeps one"


class StrategyAnswer(Answer):
    """A strategy that is kept."""

    digest: str  # what steps name it by
    strategy: dict[str, Any]
    by: str | None  # the key that stored it
    created_at: str


class SensitivityAnswer(Answer):
    """How far one record moves a pass of a strategy."""

    sensitivity_squared: float  # upper, rounding included
    rule: str  # one_participation, banded, monotone, dominated or separated
    exact: bool  # whether some record moves the pass so far, but for the rounding


def keep_strategy(
    connection: Connection, message: StrategyMessage, *, by: str | None
) -> tuple[StrategyAnswer, bool]:
    """Keep a strategy, or find it; whether it is new.

    Args:
        connection: in a transaction.
        message: the strategy.
        by: the key's name.
    """
    content = strategy_content(message)
    digest = strategy_digest(content)
    values = {"digest": digest, "content": content, "by": by, "created_at": now()}
    insert = upsert(connection.dialect.name, strategies).values(values)
    inserted = insert.on_conflict_do_nothing().returning(strategies.c.digest)
    created = connection.execute(inserted).scalar_one_or_none() is not None
    return find_strategy(connection, digest), created


def find_strategy(connection: Connection, digest: str) -> StrategyAnswer:
    """A strategy by its digest.

    Raises:
        NotFoundError: there is none.
    """
    row = strategy_row(connection, digest)
    return StrategyAnswer(
        digest=row.digest,
        strategy=json.loads(row.content),
        by=row.by,
        created_at=stamp(row.created_at),
    )


def strategy_row(connection: Connection, digest: str) -> Row[Any]:
    """Its row.

    Raises:
        NotFoundError: there is none.
    """
    row = connection.execute(_ONE, {"digest": digest}).one_or_none()
    if row is None:
        raise NotFoundError("There is no such strategy.")
    return row


def kept_strategies(connection: Connection, digests: Iterable[str]) -> dict[str, Any]:
    """Those of some strategies that are kept, by digest, in its order."""
    wanted = sorted(digests)
    if not wanted:
        return {}
    rows = connection.execute(_SEVERAL, {"digests": wanted})
    return dict(sorted((row.digest, json.loads(row.content)) for row in rows))


@dataclass(frozen=True, slots=True)
class _Asked:
    digest: str
    sampling: MinSeparation | CyclicPoisson


class Sensitivities:
    """Fills in, where steps name a strategy, how far it moves a record. One for a database."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is cached."""
        self._engine = engine
        self._known: OrderedDict[_Asked, float] = OrderedDict()
        self._lock = Lock()

    def fill_in(self, body: Any, *, location: str = "body") -> None:
        """Fill in the sensitivity of each step of correlated noise in a parsed body.

        A sensitivity that the sender gives is compared; where the sampling is none, it is removed.
        What cannot be a sensitivity stays, so that the schema refuses it.

        Raises:
            InvalidRequestError: a strategy is not kept here, does not serve its sampling, or has
                another sensitivity.
            TooExpensiveError: a sensitivity takes too much work.
        """
        for place, step in steps_in(body, location):
            mechanism = step["mechanism"]
            if not can_be_sensitivity(mechanism.get("sensitivity_squared")):
                continue
            said = mechanism.pop("sensitivity_squared", None)
            where = location_of(place_parts(place))
            digest, sampling = mechanism.get("strategy"), _sampling_of(step, where)
            if not is_digest(digest) or sampling is None:
                continue  # the schema says what is wrong
            found = self._price(_Asked(digest, sampling), where)
            if said not in (None, found):
                raise InvalidRequestError(
                    f"{where}.mechanism.sensitivity_squared",
                    f"must be {found!r} here, or left out",
                )
            mechanism["sensitivity_squared"] = found

    def _price(self, asked: _Asked, location: str) -> float:
        with self._lock:
            known = self._known.get(asked)
        if known is not None:
            return known
        found = compute_squared_sensitivity(
            self.strategy(asked.digest, f"{location}.mechanism.strategy"),
            asked.sampling,
            location=f"{location}.mechanism.strategy",
        )
        with self._lock:
            self._known[asked] = found
            if len(self._known) > _PRICES_MAX:
                self._known.popitem(last=False)
        return found

    def strategy(self, digest: str, location: str) -> core.Strategy:
        """A strategy that is kept.

        Raises:
            InvalidRequestError: it is not.
        """
        with snapshot(self._engine) as connection:
            row = connection.execute(_ONE, {"digest": digest}).one_or_none()
        if row is None:
            raise InvalidRequestError(location, _NOT_KEPT)
        return read_strategy(row.content)


def _sampling_of(step: dict[str, Any], location: str) -> MinSeparation | CyclicPoisson | None:
    try:
        return sampling_in(step.get("sampling"))
    except InvalidRequestError as error:
        raise InvalidRequestError(location, error.detail) from None
