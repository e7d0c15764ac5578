"""A copy of a ledger that runs elsewhere is another ledger, and has an identity of its own.

With the same identity and the same key each of the two would sign heads that contradict the other:
a head of one that is shown to the other suspends it.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, select, update

from service.ledger.log.leaves import Act, append_leaves
from service.storage.tables import installation

COPIED: Final = "copied"  # the act
_INSTALLATION: Final = select(installation.c.ledger_id).with_for_update()


def rename(connection: Connection, *, reason: str) -> str:
    """Give a ledger another identity, and say so in its log; the new one."""
    before = connection.execute(_INSTALLATION).scalar_one()
    drawn = secrets.token_hex(16)
    append_leaves(connection, None, [Act(COPIED, {"from": before, "to": drawn, "reason": reason})])
    connection.execute(update(installation).values(ledger_id=drawn))
    return drawn


def find_identity(told: Iterable[Mapping[str, Any]]) -> str | None:
    """The identity that the latest of some acts gave a ledger; none where none did.

    Raises:
        ValueError, TypeError, KeyError: it says none.
    """
    given = [act["content"] for act in told if act["kind"] == COPIED]
    return str(json.loads(given[-1])["to"]) if given else None
