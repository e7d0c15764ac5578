"""Who asks and who approves: two persons, whatever keys they hold."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select

from service.errors import AnotherPersonError
from service.storage.tables import api_keys

# The names of those who act without a key of their own: any person may be behind them.
UNNAMED: Final = frozenset({"command-line", "admin-key-file", "start-token"})


@dataclass(frozen=True, slots=True)
class Actor:
    """A key that acts, and the person who holds it."""

    key: str
    person: str


def find_person(connection: Connection, name: str) -> str:
    """Who acts under a name: the person of a key, or the subject of an identity provider itself."""
    held = select(api_keys.c.person).where(api_keys.c.name == name)
    return connection.scalar(held) or name


def require_named(actor: Actor) -> None:
    """Refuse an actor who may be any person.

    Raises:
        AnotherPersonError: it is the start token.
    """
    if actor.person in UNNAMED:
        raise AnotherPersonError(
            "The start token belongs to no person; this needs a key of a person: "
            "`dpledger keys create --person`."
        )


def require_another_person(actor: Actor, *, asked_by: str, approves: bool) -> None:
    """Refuse to decide about what the same person asked for, with whatever key.

    Args:
        actor: who wants to decide.
        asked_by: the person who asked.
        approves: whether the decision lets the change be made.

    Raises:
        AnotherPersonError: it is the same person, or may be.
    """
    require_named(actor)
    if approves and asked_by in UNNAMED:
        raise AnotherPersonError(
            "The start token asked for this, and any person may have used it; reject the request, "
            "and ask again with a key of a person."
        )
    if asked_by == actor.person:
        raise AnotherPersonError(
            f"{asked_by} asked for this change; another person must decide about it. Two keys of "
            "one person are the same person."
        )
