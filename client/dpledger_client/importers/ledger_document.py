"""The ledger document: what the service's command line computes a guarantee from."""

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from dpledger_client.importers.bounded_reader import FilePath
from dpledger_client.importers.event_fields import STEPS_MAX, Part, merge

FORMAT: Final = "dpledger/1"
RELATIONS: Final = ("add_or_remove_one", "replace_one", "replace_special")


def merged(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Events in order, contiguous from step 0, equal neighbours merged.

    Raises:
        ValueError: they are more steps than a run may have.
    """
    parts = [Part(one["mechanism"], one["sampling"], one["steps"]) for one in events]
    placed: list[dict[str, Any]] = []
    step = 0
    for part in merge(parts):
        placed.append({"first_step": step, **part._asdict()})
        step += part.steps
    if step > STEPS_MAX:
        raise ValueError(f"The events are more than {STEPS_MAX:g} steps.")
    return placed


def document(
    events: Iterable[Mapping[str, Any]],
    *,
    neighboring_relation: str,
    dataset_size: int | None = None,
    release: str = "every_step",
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A ledger document of some events.

    Args:
        events: of steps, mechanism and sampling, in order.
        neighboring_relation: add_or_remove_one, replace_one or replace_special.
        dataset_size: records, declared; some samplings need it.
        release: which iterates were ever shown.
        labels: where the events come from.

    Raises:
        ValueError: the relation is none of the three, or there are too many steps.
    """
    if neighboring_relation not in RELATIONS:
        raise ValueError(f"neighboring_relation must be one of {', '.join(RELATIONS)}.")
    made: dict[str, Any] = {
        "format": FORMAT,
        "neighboring_relation": neighboring_relation,
        "release": release,
        "assumptions": {},
        "events": merged(events),
    }
    if dataset_size is not None:
        made["dataset_size"] = dataset_size
    if labels:
        made["labels"] = dict(labels)
    return made


def text_of(made: Mapping[str, Any]) -> str:
    """The document as JSON text, keys sorted, one line."""
    words = json.dumps(made, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"{words}\n"


def write(path: FilePath, made: Mapping[str, Any]) -> None:
    """Write a document, wholly or not at all.

    Raises:
        OSError: it cannot be written.
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text_of(made))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)  # a document is not secret
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
