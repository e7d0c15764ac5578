"""Answers to pages that take long, kept until a fact changes that they rest on.

If many readers watch a run that changes all the time, an answer serves several of them. Each answer
says of which steps it is.
"""

from collections.abc import Hashable
from typing import Any, Final

from fastapi import Request
from sqlalchemy import Row

from service.storage.versioned_cache import VersionedCache

ANSWERS_MAX: Final = 600  # some tens of kilobytes each


def answers_of(request: Request) -> VersionedCache[Any]:
    """Return the answers of this process."""
    found: VersionedCache[Any] = request.app.state.answers
    return found


def dataset_version(dataset: Row[Any]) -> tuple[Hashable, ...]:
    """Return what changes with each fact: each entry and each act is a leaf of the log."""
    return (dataset.version, dataset.head_sequence, dataset.log_size)
