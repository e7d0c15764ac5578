"""What pages load: scripts, styles and pictures, all from here and each under its own hash."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from service.errors import NotFoundError
from service.web.strict_requests import CACHING

STATIC: Final = Path(__file__).parent / "static"
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",  # licences of what others wrote
}
FOR_GOOD: Final = b"public, max-age=31536000, immutable"
ASKED_EACH_TIME: Final = b"no-cache"
_HASH: Final = 12  # digits of it in an address

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    body: bytes
    compressed: bytes
    media_type: str
    version: str


@lru_cache(maxsize=1)
def assets() -> dict[str, Asset]:
    """Every file by its name; nothing else can be asked for."""
    return {
        path.relative_to(STATIC).as_posix(): _asset(path)
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in TYPES
    }


def _asset(path: Path) -> Asset:
    body = path.read_bytes()
    version = hashlib.sha256(body).hexdigest()[:_HASH]
    return Asset(body, gzip.compress(body, mtime=0), TYPES[path.suffix], version)


def static_url(name: str) -> str:
    """Where a page finds a file; another address once the file is another."""
    return f"/static/{name}?v={assets()[name].version}"


@router.get("/static/{name:path}")
async def static(name: str, request: Request) -> Response:
    """A file."""
    asset = assets().get(name)
    if asset is None:
        raise NotFoundError("There is no such file.")
    tag = f'"{asset.version}"'
    current = request.query_params.get("v") == asset.version
    request.scope[CACHING] = FOR_GOOD if current else ASKED_EACH_TIME
    headers = {"ETag": tag, "Vary": "Accept-Encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], body = "gzip", asset.compressed
    return Response(body, headers=headers, media_type=asset.media_type)
