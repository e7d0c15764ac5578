"""Connections to PostgreSQL: to a server that takes what is written, with limits of time."""

import time
from collections.abc import Callable, Generator
from typing import Any, Final, TypeVar

import psycopg
from sqlalchemy import URL, Engine, create_engine, event

_Result = TypeVar("_Result")
_PORT: Final = "5432"
# A worker that stands still in the middle of a transaction holds a dataset's lock no longer than
# so many times what others wait for it; what it did by then is undone.
STANDSTILL: Final = 6
STANDSTILL_SECONDS_MIN: Final = 5.0
SILENCE: Final = 3  # waits without a word, after which a server is left
SILENCE_SECONDS_MIN: Final = 5.0
_KEEPALIVES: Final = 3  # without an answer, after which a server is gone
_SILENT: Final = "the server has said nothing for {:g} s"
_STANDBY_WAIT: Final = "SyncRepWaitForLSN"  # the function of PostgreSQL that warns of it
# Sent by a statement, not at the start of a session: PgBouncer takes no options there. What the
# loss of a server may forget must not be acknowledged: `on` waits for a synchronous standby, too.
# What is read under a lock must be what is there now, not what was there before it was waited for.
# Numbers, times and hashes are read and written as they are, whatever the server, the database, the
# role or the environment set: `extra_float_digits` below 1 rounds each number that is read, without
# `standard_conforming_strings` the driver doubles the backslashes of bytes in arrays, and a warning
# that a standby lacks a commit must be heard.
_SETTINGS: Final = """
SELECT set_config('lock_timeout', %(lock)s, false),
       set_config('idle_in_transaction_session_timeout', %(idle)s, false),
       set_config('timezone', 'UTC', false),
       set_config('client_encoding', 'UTF8', false),
       set_config('extra_float_digits', '1', false),
       set_config('datestyle', 'ISO', false),
       set_config('standard_conforming_strings', 'on', false),
       set_config('client_min_messages', 'warning', false),
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


def postgres_engine(address: URL, wait: float, *, serving: bool, **pool: Any) -> Engine:
    """An engine for a server.

    Args:
        address: where it is.
        wait: seconds that a lock or a word of the server is waited for.
        serving: whether a connection is left to a server that says nothing for three waits.
        pool: the pool of connections, and what each connection is told.
    """
    wait_ms = int(wait * 1000)
    standstill_ms = int(1000 * max(STANDSTILL_SECONDS_MIN, STANDSTILL * wait))
    seconds = max(1, int(wait))
    chosen: dict[str, Any] = {
        "connect_timeout": seconds,
        # A network that swallows everything would be waited for as long as for a quarter hour.
        "tcp_user_timeout": wait_ms,
        "keepalives_idle": seconds,
        "keepalives_interval": seconds,
        "keepalives_count": _KEEPALIVES,
    }
    engine = create_engine(
        address.set(drivername="postgresql+psycopg"),
        **pool,
        pool_pre_ping=True,
        connect_args={name: value for name, value in chosen.items() if name not in address.query},
    )
    # By then every append that waits was answered 503.
    limit = max(SILENCE_SECONDS_MIN, SILENCE * wait) if serving else None

    # A server that is only read from may be behind: its numbers would be too low.
    any_server = "target_session_attrs" in address.query

    def begin(session: PostgresSession) -> bool:
        writes = session.begin(limit_seconds=limit, lock_ms=wait_ms, idle_ms=standstill_ms)
        return writes or any_server

    def opened(_dialect: Any, _record: Any, _given: Any, arguments: Any) -> PostgresSession:
        return connect_to_primary(arguments, begin)

    event.listen(engine, "do_connect", opened)
    return engine
