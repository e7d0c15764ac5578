"""The history of an Opacus accountant, read as ledger events.

A checkpoint is a pickle, and reading a pickle runs what is in it. It is read by torch's own
reader of plain values, which runs nothing; without torch, only the same content as JSON is read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from dpledger_client.importers import samplings
from dpledger_client.importers.bounded_reader import (
    FilePath,
    mapping,
    parse_json,
    refuse,
    rows,
    text_of,
)

KEY: Final = "privacy_accountant_state_dict"
TORCH_MIN: Final = (2, 6)  # the readers of plain values before could be made to run code
# Both forms of a file that torch saves; neither begins a JSON text.
_MAGIC: Final = (b"PK\x03\x04", b"\x80")


def read(path: FilePath, *, sampling: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of an accountant's history.

    Args:
        path: a file of `PrivacyEngine.save_checkpoint`, of `torch.save(accountant.state_dict())`,
            or JSON of either's `history` and `mechanism`.
        sampling: what the sampling was; by default Poisson at the history's rates. Opacus writes
            the same history for `poisson_sampling=False`.

    Raises:
        BadFile: the file is anything else, or is a checkpoint and torch is not installed.
    """
    state = _content(path)
    if isinstance(state, dict) and KEY in state:
        state = state[KEY]
    if not isinstance(state, dict) or not {"history", "mechanism"} <= set(state):
        refuse("", f"the file has no {KEY} with history and mechanism")
    found = mapping(KEY, state, ("history", "mechanism"))
    history = rows("history", found["history"])
    if not history:
        refuse("history", "is empty")
    return events(history, sampling=sampling)


def events(
    history: Sequence[Any], *, sampling: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The events of an accountant's history; arguments as in `read`.

    Raises:
        BadFile: a row is malformed.
    """
    return [_event(f"history[{number}]", one, sampling) for number, one in enumerate(history)]


def _event(place: str, row: Any, sampling: dict[str, Any] | None) -> dict[str, Any]:
    if not isinstance(row, (list, tuple)) or len(row) != 3:
        refuse(place, "must be a noise multiplier, a sample rate and a number of steps")
    noise, rate, steps = row
    return samplings.row(place, noise, rate, steps, sampling)


def _content(path: FilePath) -> Any:
    try:
        with Path(path).open("rb") as file:
            start = file.read(4)
    except OSError as error:
        refuse("", f"the file cannot be read: {error.strerror or 'input/output error'}")
    if start.startswith(_MAGIC):
        return _checkpoint(path)
    return parse_json(text_of(path))


def _checkpoint(path: FilePath) -> Any:
    try:
        import torch
    except ImportError:
        refuse("", "the file is a checkpoint, which needs torch; or give its history as JSON")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < TORCH_MIN:
        refuse("", "the file is a checkpoint, which needs torch 2.6 or later")
    try:
        # No weight is needed: on `meta` they have shapes and no content.
        return torch.load(path, map_location="meta", weights_only=True)
    except Exception:
        refuse("", "the file is no checkpoint of plain values: give its history as JSON")
