"""When each key was last used. It is no fact: no number depends on it, and a backup leaves it out.

Requests note the time in memory. A thread stores what was noted once a minute, in a transaction of
its own: no request waits for it, and each process writes at most once a minute for each key.
"""

import logging
import threading
from datetime import datetime
from typing import Final

from sqlalchemy import Connection, Engine, select

from service.clock import now, utc
from service.errors import LedgerError
from service.identity.keys import START_TOKEN
from service.storage.engine import transaction, upsert
from service.storage.tables import key_uses

USES_SECONDS: Final = 60.0  # between two writes; a time that is shown is at most so old
_STOP_SECONDS: Final = 5.0
_LOGGER = logging.getLogger("dpledger.key_uses")


class KeyUses:
    """The uses of keys that this process has seen, and the thread that stores them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._noted: dict[str, datetime] = {}  # by key; not stored yet
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="dpledger-key-uses", daemon=True)

    def note(self, name: str) -> None:
        """A key was used now."""
        with self._lock:
            self._noted[name] = now()

    def start(self) -> None:
        """Begin to store."""
        self._thread.start()

    def stop(self) -> None:
        """Store what is left, and end."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def store(self) -> None:
        """Store what was noted; what the database does not take is kept for the next time."""
        with self._lock:
            noted, self._noted = self._noted, {}
        noted.pop(START_TOKEN, None)  # which is no key
        if not noted:
            return
        try:
            with transaction(self._engine) as connection:
                _store(connection, noted)
        except LedgerError as error:
            _LOGGER.info("the times of use were not stored: %s", error.detail)
            with self._lock:
                self._noted = noted | self._noted

    def latest(self, connection: Connection) -> dict[str, datetime]:
        """When each key was last used, by name; another process's uses may be a minute late."""
        found = {row.name: utc(row.used_at) for row in connection.execute(select(key_uses))}
        with self._lock:
            noted = dict(self._noted)
        for name, moment in noted.items():
            found[name] = max(moment, found.get(name, moment))
        return found

    def _work(self) -> None:
        while not self._stopping.wait(USES_SECONDS):
            self.store()
        self.store()


def _store(connection: Connection, noted: dict[str, datetime]) -> None:
    """In the order of names, so that two processes do not wait for each other."""
    rows = [{"name": name, "used_at": moment} for name, moment in sorted(noted.items())]
    insert = upsert(connection.dialect.name, key_uses)
    given = insert.excluded.used_at
    statement = insert.on_conflict_do_update(
        index_elements=["name"], set_={"used_at": given}, where=key_uses.c.used_at < given
    )
    connection.execute(statement, rows)
