"""Backups whose lines were changed."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

Change = Callable[[list[bytes]], list[bytes]]


def rewritten(file: Path, change: Change) -> Path:
    """A file with other lines, compressed as before."""
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    other = file.with_suffix(".changed")
    other.write_bytes(gzip.compress(b"".join(change(lines))))
    return other


def forged(file: Path, change: Change) -> Path:
    """A file that was changed by somebody who made its last line fit."""

    def change_all(lines: list[bytes]) -> list[bytes]:
        body = change(lines[:-1])
        rows = json.loads(lines[-1])["rows"]
        digest = hashlib.sha256(b"".join(body)).hexdigest()
        last = json.dumps({"rows": rows, "sha256": digest}, separators=(",", ":"))
        return [*body, last.encode() + b"\n"]

    return rewritten(file, change_all)
