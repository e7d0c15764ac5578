"""A connection to PostgreSQL: to a server that writes, and not waited for for ever."""

import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import psycopg

_Result = TypeVar("_Result")
_PORT: Final = "5432"
_SILENT: Final = "the server has said nothing for {:g} s"
_STANDBY_WAIT: Final = "SyncRepWaitForLSN"  # the function of PostgreSQL that warns of it
# Sent by a statement, not at the start of a session: PgBouncer takes no options there. What the
# loss of a server may forget must not be acknowledged: `on` waits for a synchronous standby, too.
# What is read under a lock must be what is there now, not what was there before it was waited for.
_SETTINGS: Final = """
SELECT set_config('lock_timeout', %(lock)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       set_config('timezone', 'UTC', false),
       set_config('default_transaction_isolation', 'read committed', false),
       CASE WHEN current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')
            THEN set_config('synchronous_commit', 'on', false) END,
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean
"""
_READ_ONLY: Final = "every server that answers is only to be read from"


class PostgresSession(psycopg.Connection[Any]):
    """Closes itself when the server says nothing for too long in the middle of a statement.

    A server that was stopped, or a primary that was replaced and cut off from the others, keeps its
    connections and answers nothing: the network finds nothing wrong with it.
    """

    limit_seconds: float | None = None  # without one it waits for ever
    # Whether a commit was acknowledged that a standby was to have and may not have: where the wait
    # for the standby is cancelled, PostgreSQL commits and only warns.
    unreplicated = False

    def begin(self, *, limit_seconds: float | None, lock_ms: int, idle_ms: int) -> bool:
        """Settle how long is waited: for the server, for a lock, and by it for the next statement.

        Returns:
            Whether the server takes what is written to it.

        Raises:
            psycopg.Error: the server does not answer.
        """
        self.limit_seconds = limit_seconds
        self.add_notice_handler(self._hear)
        row = self.execute(_SETTINGS, {"lock": str(lock_ms), "idle": str(idle_ms)}).fetchone()
        self.commit()
        return row is not None and not row[-1]

    def _hear(self, said: psycopg.errors.Diagnostic) -> None:
        if said.source_function == _STANDBY_WAIT:
            self.unreplicated = True

    def wait(self, gen: Any, *given: Any, **options: Any) -> Any:
        """What the driver's own does, no longer than the limit without a word from the server.

        Raises:
            OperationalError: the server has said nothing for so long.
        """
        if self.limit_seconds is None:
            return super().wait(gen, *given, **options)
        return super().wait(self._limited(gen, self.limit_seconds), *given, **options)

    def _limited(
        self, waiting: Generator[Any, Any, _Result], seconds: float
    ) -> Generator[Any, Any, _Result]:
        """Pass on what a generator of the driver waits for, and what has come."""
        deadline = time.monotonic() + seconds
        try:
            wanted = next(waiting)
            while True:
                ready = yield wanted
                if ready:
                    deadline = time.monotonic() + seconds
                elif time.monotonic() > deadline:
                    self.close()
                    raise psycopg.OperationalError(_SILENT.format(seconds))
                wanted = waiting.send(ready)
        except StopIteration as end:
            result: _Result = end.value
            return result


def connect_to_primary(
    arguments: dict[str, Any], begin: Callable[[PostgresSession], bool]
) -> PostgresSession:
    """A session that was begun with the first server of a list that takes what is written to it.

    The driver could look for it (`target_session_attrs`), but would be answered by PgBouncer: with
    what that knew of its server when it connected to it, which may be the other way round by now.

    Args:
        arguments: for the driver; `host` and `port` may name several, separated by commas.
        begin: begins a session, and says whether its server takes what is written to it.

    Raises:
        OperationalError: no such server answers.
    """
    while True:
        session = PostgresSession.connect(**arguments)
        try:
            if begin(session):
                return session
            place = session.info.host, str(session.info.port)
        except BaseException:
            session.close()
            raise
        session.close()
        rest = _after(place, _places(arguments))
        if not rest:
            raise psycopg.OperationalError(_READ_ONLY)
        hosts, ports = (",".join(part) for part in zip(*rest, strict=True))
        arguments = arguments | {"host": hosts, "port": ports}


def _places(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """The servers, each by its host and port."""
    hosts = str(arguments.get("host", "")).split(",")
    ports = str(arguments.get("port") or _PORT).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return [(host, port or _PORT) for host, port in zip(hosts, ports, strict=True)]


def _after(place: tuple[str, str], places: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The servers of a list that are named after one; none if it is not in it."""
    return places[places.index(place) + 1 :] if place in places else []
