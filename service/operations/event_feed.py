"""The feed: new entries of the database, sent to all watchers.

The database is what is believed, for other processes write to it too. One task a process asks it
ten times a second at most, while there are watchers, for any number of them; the writer of
this process wakes the task at once. Without watchers it keeps nothing.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy import Engine

from service.errors import LedgerError, TooManyRequestsError, UnavailableError
from service.operations import feed_messages
from service.operations.feed_messages import Position, Told, Topic
from service.storage.engine import snapshot

STREAMS_MAX: Final = 400  # of one process; each holds a connection and some buffers
_RETRY_SECONDS: Final = 5
_OPEN: Final = "The key has as many streams open as it may; close one, or come again."
BACKLOG_MAX: Final = 64  # writes a reader may be late; beyond, it is dropped and resumes
GAP_SECONDS: Final = 0.1  # between two rounds: updates closer together share one write
# Of those, to notify all watchers, so that an append waits for few of them.
SPREAD_SECONDS: Final = 0.05
_AT_ONCE: Final = 16  # who are told, or looked at, before others have their turn
IDLE_SECONDS: Final = 0.2  # before asking unasked, for what other processes wrote
HEARTBEAT_SECONDS: Final = 15.0
RECHECK_SECONDS: Final = 0.2  # with the ring's half second, a revoked key's streams end in one
_LOGGER = logging.getLogger("dpledger.streams")


def _future() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True, kw_only=True)
class Subscriber:
    """One open stream."""

    topic: Topic
    key: str  # its name
    allowed: Callable[[], bool]  # whether its key is still in force
    ended: "asyncio.Future[None]" = field(default_factory=_future)  # by us, not by the reader
    backlog: "asyncio.Queue[bytes]" = field(
        default_factory=lambda: asyncio.Queue(maxsize=BACKLOG_MAX)
    )

    def put(self, write: bytes) -> None:
        """Hand over a write; a reader that is too late loses its stream, and resumes."""
        try:
            self.backlog.put_nowait(write)
        except asyncio.QueueFull:
            _LOGGER.warning("slow reader dropped", extra={"dataset_id": self.topic.dataset_id})
            self.end()

    def end(self) -> None:
        """Close the stream."""
        if not self.ended.done():
            self.ended.set_result(None)


@dataclass(slots=True)
class _Watch:
    """A dataset with watchers."""

    position: Position
    subscribers: set[Subscriber] = field(default_factory=set)


@dataclass(slots=True)
class _Joining:
    """Who waits to be let in, once the feed has come as far as its reader."""

    subscriber: Subscriber
    after: int
    since: "asyncio.Future[int]"


class Feed:
    """Who watches what, and the task that tells them."""

    def __init__(
        self, engine: Engine, refresh_keys: Callable[[], None], *, streams_max: int = STREAMS_MAX
    ) -> None:
        """At most so many streams; a key has as many as it leaves free, so half at most."""
        self._streams_max = streams_max
        self._of_key: Counter[str] = Counter()
        self._engine = engine
        self._refresh_keys = refresh_keys
        self._watches: dict[int, _Watch] = {}
        self._seated: set[Subscriber] = set()
        self._joining: list[_Joining] = []
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._waking = False
        self._closed = False
        self._beaten = self._checked = 0.0

    @property
    def engine(self) -> Engine:
        """The database that is believed."""
        return self._engine

    @property
    def subscribers(self) -> int:
        """How many streams are open."""
        return len(self._seated)

    @property
    def working(self) -> bool:
        """Whether the database is being asked."""
        return self._task is not None and not self._task.done()

    def moved(self, datasets: Iterable[int]) -> None:
        """Say, from any thread, that datasets changed; costs nothing without watchers."""
        if not self._watches or self._waking:
            return
        if any(one in self._watches for one in datasets):
            self.wake()

    def wake(self) -> None:
        """Say, from any thread, that something changed in some dataset."""
        if not self._watches or self._waking:
            return
        self._waking = True
        with suppress(RuntimeError):  # the loop was closed: there are no watchers
            self._loop.call_soon_threadsafe(self._woken.set)

    def close(self) -> None:
        """End every stream and take no more; from the event loop."""
        self._closed = True
        self._end_all()

    async def stop(self) -> None:
        """Close, and ask the database no more."""
        self.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @contextmanager
    def seat(self, subscriber: Subscriber) -> Iterator[None]:
        """Count a stream in while it is open.

        Raises:
            UnavailableError: there are too many, or the service is stopping.
            TooManyRequestsError: too many are of its key.
        """
        free = self._streams_max - len(self._seated)
        if self._closed or free <= 0:
            raise UnavailableError("No more streams are taken now; ask again later.")
        # After two keys that take all they may a quarter is free for others, after three an eighth.
        if self._of_key[subscriber.key] >= free:
            raise TooManyRequestsError(_RETRY_SECONDS, _OPEN)
        self._of_key[subscriber.key] += 1
        self._seated.add(subscriber)
        self._work()
        try:
            yield
        finally:
            self._seated.discard(subscriber)
            self._of_key -= Counter((subscriber.key,))  # which forgets those who have none
            self._leave(subscriber)

    async def join(self, subscriber: Subscriber, *, after: int) -> int:
        """Tell a seated subscriber what is new from a sequence on, which is answered.

        It does not lie before the one that the subscriber has read already.

        Raises:
            UnavailableError: the database does not answer.
        """
        since: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._joining.append(_Joining(subscriber, after, since))
        self._woken.set()
        return await since

    def _leave(self, subscriber: Subscriber) -> None:
        self._joining = [one for one in self._joining if one.subscriber is not subscriber]
        watch = self._watches.get(subscriber.topic.dataset_id)
        if watch is not None:
            watch.subscribers.discard(subscriber)
            if not watch.subscribers:
                del self._watches[subscriber.topic.dataset_id]

    def _end_all(self) -> None:
        for subscriber in tuple(self._seated):
            subscriber.end()

    def _work(self) -> None:
        """Begin to ask the database, unless that is going on."""
        if not self.working:
            self._loop = asyncio.get_running_loop()
            self._task = self._loop.create_task(self._rounds(self._loop))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        _LOGGER.error("the feed failed", exc_info=error)
        # Streams without a feed would stay silent; if they end, clients open them again.
        self._refuse_joining(UnavailableError("The feed has stopped; ask again."))
        self._end_all()

    async def _rounds(self, loop: asyncio.AbstractEventLoop) -> None:
        self._beaten = self._checked = loop.time()
        while self._seated:
            started = loop.time()
            self._woken.clear()
            self._waking = False
            self._beat(started)
            try:
                await self._recheck(started)
                more = await self._round()
            except LedgerError as error:
                _LOGGER.warning("the feed waits for the database", extra={"reason": str(error)})
                self._refuse_joining(error)
                more = False
            if not more:
                with suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_SECONDS):
                        await self._woken.wait()
                await asyncio.sleep(max(0.0, started + GAP_SECONDS - loop.time()))

    async def _round(self) -> bool:
        """Ask once, tell what is new, and let in who waits; whether there is more to tell."""
        waiting = {one.subscriber.topic.dataset_id for one in self._joining}
        known = {
            one: (watch.position, {subscriber.topic.run_id for subscriber in watch.subscribers})
            for one, watch in self._watches.items()
        }
        if not known and not waiting:
            return False
        heads, told = await asyncio.to_thread(self._read, known, waiting)
        await self._publish(told)
        self._let_in(heads)
        return any(heads[one] != news.position for one, news in told.items())

    def _read(
        self, known: dict[int, tuple[Position, set[int | None]]], waiting: set[int]
    ) -> tuple[dict[int, Position], dict[int, Told]]:
        with snapshot(self._engine) as connection:
            heads = feed_messages.heads(connection, {*known, *waiting})
            return heads, {
                one: feed_messages.tell(
                    connection, one, since=since, until=heads[one], watched=watched
                )
                for one, (since, watched) in known.items()
                if heads.get(one, since) != since
            }

    async def _publish(self, told: Mapping[int, Told]) -> None:
        """Hand over what is new, a few at a time: an append that comes meanwhile is answered."""
        writes: list[tuple[Subscriber, bytes]] = []
        for dataset_id, news in told.items():
            watch = self._watches.get(dataset_id)
            if watch is None:  # the last one left meanwhile
                continue
            watch.position = news.position
            found = ((one, news.writes[one.topic.run_id]) for one in watch.subscribers)
            writes.extend((one, write) for one, write in found if write)
        rest = SPREAD_SECONDS * _AT_ONCE / max(_AT_ONCE, len(writes))
        for place, (subscriber, write) in enumerate(writes, start=1):
            subscriber.put(write)  # to one who has left it is nothing
            if place % _AT_ONCE == 0 and place < len(writes):
                await asyncio.sleep(rest)

    def _let_in(self, heads: dict[int, Position]) -> None:
        later: list[_Joining] = []
        for one in self._joining:
            dataset_id = one.subscriber.topic.dataset_id
            if dataset_id not in self._watches and dataset_id in heads:
                self._watches[dataset_id] = _Watch(heads[dataset_id])
            watch = self._watches.get(dataset_id)
            if watch is None or watch.position.sequence < one.after:
                later.append(one)
            elif not one.since.done():
                watch.subscribers.add(one.subscriber)
                one.since.set_result(watch.position.sequence)
        self._joining = later

    def _refuse_joining(self, error: LedgerError) -> None:
        refused, self._joining = self._joining, []
        for one in refused:
            if not one.since.done():
                one.since.set_exception(error)

    def _beat(self, present: float) -> None:
        """Show now and then that the streams live."""
        if present - self._beaten < HEARTBEAT_SECONDS:
            return
        self._beaten = present
        for subscriber in tuple(self._seated):
            subscriber.put(feed_messages.HEARTBEAT)

    async def _recheck(self, present: float) -> None:
        """End now and then the streams whose key was revoked."""
        if present - self._checked < RECHECK_SECONDS:
            return
        self._checked = present
        await asyncio.to_thread(self._refresh_keys)
        for place, subscriber in enumerate(tuple(self._seated), start=1):
            if not subscriber.allowed():
                subscriber.end()
            if place % _AT_ONCE == 0:
                await asyncio.sleep(0)
