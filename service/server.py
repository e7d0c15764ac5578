"""The server: uvicorn, which ends the streams first when it is stopped."""

import gc
import socket
from typing import Any, Final

import uvicorn

SWEEP_AFTER: Final = (50_000, 50, 100)  # objects made since the last sweep, of each age


def settle() -> None:
    """Sweep memory seldom, and what was made until now never.

    Python looks at every object that lives to find cycles among those that do not. A ledger makes
    none, and remembers many objects: sweeping as often as usual takes a third of the time of a
    large batch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SWEEP_AFTER)


class Server(uvicorn.Server):
    """Uvicorn waits for open requests before it stops the application; a stream never ends."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, whose readers resume elsewhere, then stop as uvicorn does."""
        application: Any = self.config.app
        application.state.feed.close()
        await super().shutdown(sockets)
