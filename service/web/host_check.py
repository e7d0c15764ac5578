"""The Host of a request: exactly one, so that nothing in front reads another than the service."""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.web.problems import problem


class OneHost:
    """ASGI middleware: answers 400 to a request with two Hosts, or with none (RFC 9112, 3.2)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] == "http":
            hosts = sum(name == b"host" for name, _ in scope["headers"])
            if hosts != 1 and not (hosts == 0 and scope["http_version"] == "1.0"):
                refusal = problem("malformed-request", "A request has exactly one Host header.")
                await refusal(scope, receive, send)
                return
        await self.app(scope, receive, send)
