"""Names of datasets, runs and branches, and the paths that they are part of."""

import re
import secrets
from datetime import UTC, datetime
from typing import Final

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DATASET_LETTERS: Final = 40  # of the dataset's name in a name that is made


def name_of(text: str) -> str:
    """A name as the contract has it: any other could mean another path.

    Raises:
        ValueError: it is none.
    """
    if not _NAME.fullmatch(text):
        raise ValueError("A name must match [a-z0-9][a-z0-9._-]{0,62}.")
    return text


def new_name(dataset: str) -> str:
    """A name for a run of a dataset: its day and a random part make it the only one."""
    return f"{dataset[:_DATASET_LETTERS]}-{datetime.now(UTC):%Y%m%d}-{secrets.token_hex(4)}"


def path_of(noun: str, name: str, rest: str = "") -> str:
    """The path of what bears a name."""
    return f"/v1/{noun}/{name_of(name)}{rest}"
