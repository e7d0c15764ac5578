"""Whether requests can be answered: each part is looked at by itself."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from typing import Final

from sqlalchemy import Engine, select

from service.errors import DamagedError, UnavailableError
from service.storage import migrations, write_probe
from service.storage.engine import attempts_of, snapshot, wait_of
from service.storage.single_flight import SingleFlight
from service.storage.tables import installation

Checks = dict[str, str]
OK: Final = "ok"
DAMAGED: Final = "damaged"
SILENT: Final = "unavailable"
UNKNOWN: Final = "unknown"  # until the database answers
_OTHER: Final = "another revision"
RECOVERING_DETAIL: Final = "recovering"  # facts are recorded again: requests can be answered
STOPPED: Final = "stopped"
PROBE_GAP_SECONDS: Final = 1.0  # between two attempts
PROBE_SECONDS: Final = 1.0  # that an answer waits for an attempt to write
_WELL: Final = frozenset({OK, RECOVERING_DETAIL})


class HealthCheck(StrEnum):
    """What must be well."""

    DATABASE = "database"  # it answers, and is to be trusted
    MIGRATIONS = "migrations"  # the schema is that of this version
    LOG = "log"  # the tamper-evident log goes on where it was left
    WRITER = "writer"  # the thread that appends is there


@lru_cache(maxsize=1)
def _head() -> str:
    return migrations.head()


class Readiness:
    """Looks once for all who ask at the same time, and answers even where the database does not."""

    def __init__(self, engine: Engine, *, writing: Callable[[], bool]) -> None:
        self._engine = engine
        self._writing = writing
        self._looks = SingleFlight(engine, self._look)
        self._written_at = -1e9
        self._probed = False
        self._writes = SingleFlight(engine, self._write, seconds=PROBE_SECONDS)

    async def checks(self) -> Checks:
        """What each part is, `ok` where it is well."""
        try:
            found = await self._looks.take()
        except UnavailableError:
            found = _unknown_checks(SILENT)
        if found[HealthCheck.MIGRATIONS] == OK and (wrong := await self._trouble()):
            found |= {HealthCheck.DATABASE: wrong}
        return found | {HealthCheck.WRITER: OK if self._writing() else STOPPED}

    def _look(self) -> Checks:
        try:
            with snapshot(self._engine) as connection:
                if migrations.revision_of(connection) != _head():
                    return {
                        HealthCheck.DATABASE: OK,
                        HealthCheck.MIGRATIONS: _OTHER,
                        HealthCheck.LOG: UNKNOWN,
                    }
                suspended = connection.scalar(select(installation.c.suspended))
        except DamagedError:
            return _unknown_checks(DAMAGED)
        except UnavailableError:
            return _unknown_checks(SILENT)
        log = OK if suspended is None else str(json.loads(suspended)["state"])
        return {HealthCheck.DATABASE: OK, HealthCheck.MIGRATIONS: OK, HealthCheck.LOG: log}

    async def _trouble(self) -> str | None:
        """Why nothing can be written; where it seems so, and at first, it is tried.

        A foreign lock does not prevent reads. Without requests, a process would never notice that
        the lock is gone, or that a permission is missing.
        """
        attempts, longest = attempts_of(self._engine), wait_of(self._engine)
        if not self._probed or attempts.trouble(longest):
            with suppress(UnavailableError):  # it goes on, and who asks next sees how it ended
                await self._writes.take()
        return attempts.trouble(longest)

    def _write(self) -> None:
        """Write what changes nothing; as much as a large append takes, where writing went wrong.

        Anybody may ask, so it is tried now and then.
        """
        if time.monotonic() - self._written_at < PROBE_GAP_SECONDS:
            return
        self._written_at = time.monotonic()
        self._probed = True
        attempts = attempts_of(self._engine)
        failures = attempts.write_failures
        room = attempts.trouble(wait_of(self._engine)) is not None
        with suppress(UnavailableError):
            write_probe.write(self._engine, room=room)
            if room:
                attempts.mended(failures)


def _unknown_checks(database: str) -> Checks:
    return {
        HealthCheck.DATABASE: database,
        HealthCheck.MIGRATIONS: UNKNOWN,
        HealthCheck.LOG: UNKNOWN,
    }


def explain_checks(checks: Checks) -> str:
    """What is not well, for people; nothing where all is."""
    return "; ".join(f"{part}: {found}" for part, found in checks.items() if found not in _WELL)
