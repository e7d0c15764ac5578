"""A privacy event of dp_accounting that was printed or kept as JSON, read as ledger events.

Three spellings: what Python prints of an event, what it prints of `event.to_named_tuple()`, and
JSON objects of `class_name` and the event's fields. Nothing in the file is evaluated.
"""

import re
from typing import Any, Final

from dpledger_client.importers.bounded_reader import FilePath, parse_json, refuse, text_of
from dpledger_client.importers.event_tree import Node, UntranslatableEvent, translate
from dpledger_client.importers.repr_parser import Call, parse

MODULE: Final = "dp_accounting.dp_event"
# What the classes leave out, because it has a default.
DEFAULTS: Final[dict[str, dict[str, Any]]] = {"ZCDpEvent": {"xi": 0.0}}
_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def read(
    path: FilePath, *, dataset_size: int | None = None, relation: str | None = None
) -> list[dict[str, Any]]:
    """The events of a printed or JSON tree.

    Args:
        path: the file.
        dataset_size: records, for events that state it.
        relation: the neighbouring relation, for events that are defined under some only.

    Raises:
        BadFile: the file is no tree, costs nothing, or has an event without an equal; names the
            place.
    """
    text = text_of(path)
    root = parse_json(text) if text.lstrip().startswith("{") else parse(text)
    try:
        events = translate(root, view=view, dataset_size=dataset_size, relation=relation)
    except UntranslatableEvent as error:
        refuse("", str(error))
    if not events:
        refuse("", "the tree has no event that costs anything")
    return events


def view(event: Any) -> Node | None:
    """An event as it was printed or kept as JSON; None for anything else."""
    if isinstance(event, Call):
        name, fields = event.name.rpartition(".")[2], dict(event.fields)
    elif isinstance(event, dict):
        name, fields = "", dict(event)
    else:
        return None
    module, named = fields.pop("module_name", MODULE), fields.pop("class_name", name)
    if module != MODULE or not isinstance(named, str) or not _WORD.fullmatch(named):
        return None
    return Node(named, {**DEFAULTS.get(named, {}), **fields})
