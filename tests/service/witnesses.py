"""What tests of the witness look at."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, select

from service.storage.engine import snapshot
from service.storage.tables import datasets, installation
from service.transparency.stored_tree import Tree
from tests.service.samples import Json

Serve = Callable[..., AbstractContextManager[str]]


def leaves_of(engine: Engine) -> dict[str | None, list[bytes]]:
    """Every leaf in the rows."""
    with snapshot(engine) as connection:
        logs: list[Any] = [
            (None, None, connection.execute(select(installation.c.log_size)).scalar())
        ]
        rows = connection.execute(select(datasets.c.name, datasets.c.id, datasets.c.log_size))
        logs += rows.all()
        return {name: Tree(connection, row, size).leaves(0, size) for name, row, size in logs}


def lines(path: Path) -> list[Json]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]
