"""What a measurement depends on beside the code: the machine, its load, and the versions."""

import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

OURS: Final = ("numpy", "scipy", "fastapi", "uvicorn", "sqlalchemy", "psycopg")


def version(package: str) -> str:
    """Its version, or that it is not installed."""
    try:
        return f"{package} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        return f"{package} not installed"


def version_in(python: str, package: str) -> str:
    """The version of a package in another environment."""
    asked = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    return subprocess.check_output([python, "-c", asked], text=True).strip()


@contextmanager
def conditions(*peers: str) -> Iterator[None]:
    """Print versions and the machine's load before a measurement, and what it took after it.

    Args:
        peers: packages beside our own whose versions matter.
    """
    named = ", ".join(version(one) for one in (*OURS, *peers))
    print(f"Python {platform.python_version()}, {named}")
    print(f"{os.cpu_count()} cores; load {_load()} before")
    wall, processor = time.perf_counter(), time.process_time()
    yield
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"\nload {_load()} after; {wall:.0f} s, of them {processor:.0f} s of this process")


def _load() -> str:
    """Processes that wait for a core, over one, five and fifteen minutes."""
    return " ".join(f"{one:.1f}" for one in os.getloadavg())
