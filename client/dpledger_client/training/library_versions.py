"""Which libraries for private training a process has loaded, as labels of its run.

A library may turn out to have told its accountant more noise than it used. The ledger marks the
runs that such a defect may concern, if they say what was loaded.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Final

PREFIX: Final = "library."
UNKNOWN: Final = "unknown"  # a defect of any version may concern it
LABELS_MAX: Final = 64  # that a run may have
TEXT_MAX: Final = 200
# Modules, and the distributions that they come in.
DISTRIBUTIONS: Final[Mapping[str, str]] = {
    "flwr": "flwr",
    "jax_privacy": "jax-privacy",
    "opacus": "opacus",
    "tensorflow_privacy": "tensorflow-privacy",
}


def labelled(labels: Mapping[str, str] | None) -> dict[str, str] | None:
    """Labels with those of the loaded libraries; what a trainer says itself stands."""
    given = dict(labels or {})
    for name, distribution in DISTRIBUTIONS.items():
        label = PREFIX + name
        if name in sys.modules and label not in given and len(given) < LABELS_MAX:
            given[label] = _version(distribution)
    return given or None


def _version(distribution: str) -> str:
    try:
        return version(distribution)[:TEXT_MAX] or UNKNOWN
    except PackageNotFoundError:  # copied into the sources, perhaps with changes
        return UNKNOWN
