"""The pages are loaded when the first of them is asked for."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from service.schemas.responses import build_messages

_API: Final = ("/v1/", "/problems/")
# Asked by programs; what they are refused is told to a browser as a page.
_PROBED: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class PageLoader:
    """ASGI middleware: adds the pages to the application when the first of them is asked for.

    They take a sixth of a start and 10 MiB, which a service that only programs ask does without.
    """

    def __init__(self, app: ASGIApp, *, single_sign_on: bool) -> None:
        """Load nothing yet.

        Args:
            app: what is behind.
            single_sign_on: whether people sign in at identity providers.
        """
        self.app = app
        self._single_sign_on = single_sign_on
        self._loading = asyncio.Lock()
        self._loaded = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if not self._loaded and scope["type"] == "http" and _leads_to_page(scope):
            async with self._loading:
                if not self._loaded:
                    await self._load(scope["app"])
        await self.app(scope, receive, send)

    async def _load(self, app: FastAPI) -> None:
        install = await asyncio.to_thread(_loaded, self._single_sign_on)  # steps go on meanwhile
        install(app)
        build_messages()  # those of pages, too
        self._loaded = True


def _loaded(single_sign_on: bool) -> Callable[[FastAPI], None]:
    from service.web.dashboard.routes import install_pages, page_modules  # as the class says

    return partial(install_pages, modules=page_modules(single_sign_on=single_sign_on))


def _leads_to_page(scope: Scope) -> bool:
    """Whether the answer may be a page."""
    path: str = scope["path"]
    if path in _PROBED:
        return any(name == b"accept" and b"text/html" in value for name, value in scope["headers"])
    return not path.startswith(_API)
