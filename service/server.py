"""The server: uvicorn, which ends the streams first when it is stopped."""

import socket
from typing import Any

import uvicorn


class Server(uvicorn.Server):
    """Uvicorn waits for open requests before it stops the application; a stream never ends."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, whose readers resume elsewhere, then stop as uvicorn does."""
        application: Any = self.config.app
        application.state.feed.close()
        await super().shutdown(sockets)
