"""Send the events of a run or a dataset as they happen."""

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from fastapi import Request, Response
from pydantic import Field
from sqlalchemy import Engine
from starlette.types import Receive, Scope, Send

from service.errors import InvalidRequestError, LedgerError
from service.identity.authentication import Caller, KeyRing
from service.ledger import lookups
from service.operations import feed_messages
from service.operations.event_feed import Feed, Subscriber
from service.operations.feed_messages import Topic
from service.storage.engine import snapshot
from service.web.parameters import Parameters

EVENT_STREAM: Final = "text/event-stream"
SEQUENCE: Final = "[0-9]{1,19}"
SEQUENCE_MAX: Final = 2**63 - 1
LAST_WORDS_SECONDS: Final = 1.0  # for a reader to take the end of its stream
_HEADER: Final = "last-event-id"
_LOGGER = logging.getLogger("dpledger.streams")
_FRAME: Final = {
    "type": "object",
    "required": ["data"],
    "properties": {
        "event": {"type": "string", "description": "`state`, `entry` or `incident`."},
        "id": {"type": "string", "description": "Sequence number of the dataset's latest entry."},
        "data": {"type": "string", "description": "The frame's content, a JSON object."},
    },
}


class StreamQuery(Parameters):
    """Where to resume, for readers that cannot send the header Last-Event-ID."""

    last_event_id: str | None = Field(
        default=None,
        pattern=f"^{SEQUENCE}$",
        description="Send what followed the frame with this id; the header Last-Event-ID wins.",
    )


class EventStream(Response):
    """An open stream; sends what the feed tells until either side ends it."""

    media_type = EVENT_STREAM

    def __init__(
        self,
        request: Request,
        caller: Caller,
        topic: Topic,
        after: int | None,
        *,
        allowed: Callable[[], bool] | None = None,
    ) -> None:
        """Allowed: whether the stream may go on; else as long as the request's key may."""
        # A proxy that gathers its answers would keep frames back.
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._request = request
        self._caller = caller
        self._topic = topic
        self._after = after
        self._allowed = allowed or self._key_in_force
        self._feed: Feed = request.app.state.feed

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """Send frames until the reader leaves, is dropped, loses its key, or the service stops."""
        subscriber = Subscriber(topic=self._topic, key=self._caller.name, allowed=self._allowed)
        with self._feed.seat(subscriber):
            sending = asyncio.create_task(self._send_all(subscriber, send))
            leaving = asyncio.create_task(_wait_until_left(receive))
            try:
                await asyncio.wait(
                    {sending, leaving, subscriber.ended}, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                for task in (sending, leaving):
                    task.cancel()
                await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()  # a defect is not kept quiet
        with suppress(TimeoutError):  # of one that does not read; its connection is closed
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await _write(send, b"", more=False)

    async def _send_all(self, subscriber: Subscriber, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        await _write(send, feed_messages.RETRY)
        try:
            # What takes long comes first: a reader that is not let in yet cannot be too late.
            state = b""
            if self._after is None:
                state, after = await asyncio.to_thread(self._state)
            else:
                after = await self._catch_up(send, self._after)
            since = await self._feed.join(subscriber, after=after)
            if state:  # only now, for who has seen it is told of every incident that follows
                await _write(send, state)
            await self._catch_up(send, after, until=since)
        except LedgerError as error:
            _LOGGER.warning("a stream ends", extra={"reason": error.detail})
            return
        while True:
            await _write(send, await subscriber.backlog.get())

    async def _catch_up(self, send: Send, after: int, *, until: int = SEQUENCE_MAX) -> int:
        """Send what was recorded after one sequence until another; the last one read."""
        while after < until:
            page, after, more = await asyncio.to_thread(self._missed, after, until)
            if page:
                await _write(send, page)
            if not more:
                break
        return after

    def _missed(self, after: int, until: int) -> tuple[bytes, int, bool]:
        with snapshot(self._feed.engine) as connection:
            return feed_messages.read_missed_page(connection, self._topic, after, until)

    def _state(self) -> tuple[bytes, int]:
        with snapshot(self._feed.engine) as connection:
            return feed_messages.state_frame(connection, self._topic)

    def _key_in_force(self) -> bool:
        keys: KeyRing = self._request.app.state.keys
        try:
            keys.caller(self._request)
        except LedgerError:
            return False
        return True


async def _write(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def _wait_until_left(receive: Receive) -> None:
    """Wait until the reader is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def run_topic(engine: Engine, name: str) -> tuple[Topic, int]:
    """What one watches of a run, and the sequence its dataset has come to.

    Raises:
        NotFoundError: there is no such run.
    """
    with snapshot(engine) as connection:
        run = lookups.find_run(connection, name)
        head = lookups.dataset_of(connection, run).head_sequence
    return Topic(dataset_id=run.dataset_id, run_id=run.id), head


def find_resume_point(request: Request, query: StreamQuery, head: int) -> int | None:
    """The sequence to resume after. The header wins: browsers add it to an address they keep.

    Raises:
        InvalidRequestError: it is no sequence, or one that was never given out.
    """
    header = request.headers.get(_HEADER)
    where = "query.last_event_id" if header is None else f"header.{_HEADER}"
    asked = query.last_event_id if header is None else header
    if asked is None:
        return None
    if not re.fullmatch(SEQUENCE, asked) or int(asked) > head:
        raise InvalidRequestError(where, "must be the id of a frame of this dataset")
    return int(asked)
