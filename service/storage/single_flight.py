"""One look at the database for all who wait for it, given up where the database says nothing."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from sqlalchemy import Engine

from service.errors import UnavailableError
from service.storage.engine import wait_of

Found = TypeVar("Found")
LATER: Final = "The database takes too long; send the same request again."


class SingleFlight(Generic[Found]):
    """A hanging database blocks the thread that queries it, but not those that wait for the result.

    Nor does it take a thread for each of them: who comes later waits for the same look.
    """

    def __init__(
        self, engine: Engine, look: Callable[[], Found], *, seconds: float | None = None
    ) -> None:
        self._seconds = wait_of(engine) if seconds is None else seconds
        self._look = look
        self._looking: asyncio.Task[Found] | None = None

    async def take(self) -> Found:
        """What is seen.

        Raises:
            UnavailableError: nothing, in the time that a lock is waited for, or in those seconds.
        """
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(asyncio.to_thread(self._look))
        looking = self._looking
        done, _ = await asyncio.wait({looking}, timeout=self._seconds)
        if not done:
            raise UnavailableError(LATER)
        return looking.result()
