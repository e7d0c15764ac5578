"""Which requests a process answers where reads are kept apart from writes.

Python runs one thread at a time, so a page that is worked out delays steps that the same process
records. With two kinds of processes on one database, a balancer sends GET and HEAD to the readers
and everything else to the writers; a request that comes to the wrong one is refused.
"""

import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import MisdirectedError
from service.settings import ProcessRole
from service.web import problems
from service.web.middleware import PROBES

_READS: Final = frozenset({"GET", "HEAD"})
_OF_BOTH: Final = PROBES | {"/metrics"}  # of each process by itself
# Sent with POST, and worked out or signed in without a change of a ledger.
_ASKED_BY_POST: Final = frozenset({"/v1/plan", "/sign-in", "/sign-out"})
_ASKED_OF_A_DATASET: Final = re.compile(r"/v1/datasets/[^/]+/(explain|checkpoint:compare)")
_REFUSALS: Final = {
    "reader": "This process only reads; send the request to one that writes.",
    "writer": "This process only writes; send the request to one that reads.",
}


def answers(role: ProcessRole, method: str, path: str) -> bool:
    """Whether a process of a role answers a request."""
    if role == "all" or path in _OF_BOTH:
        return True
    asks = path in _ASKED_BY_POST or _ASKED_OF_A_DATASET.fullmatch(path) is not None
    if role == "reader":
        return method in _READS or asks
    return method not in _READS


class RoleFilter:
    """ASGI middleware: refuses what a process of another role answers."""

    def __init__(self, app: ASGIApp, *, role: ProcessRole) -> None:
        self.app = app
        self._role = role

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or answers(self._role, scope["method"], scope["path"]):
            await self.app(scope, receive, send)
            return
        refusal = problems.problem_answer(MisdirectedError(_REFUSALS[self._role]))
        await refusal(scope, receive, send)
