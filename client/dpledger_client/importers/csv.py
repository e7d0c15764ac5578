"""A table of (noise_multiplier, sample_rate, steps), read as ledger events."""

import csv
import io
from typing import Any, Final

from dpledger_client.importers import samplings
from dpledger_client.importers.bounded_reader import ROWS_MAX, FilePath, refuse, text_of

RATES: Final = ("sample_rate", "sampling_probability")
DIGITS_MAX: Final = 400  # of one number


def read(path: FilePath, *, sampling: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """The events of a CSV file, one a row.

    Args:
        path: a file with a header: noise_multiplier, sample_rate (or sampling_probability) and
            steps, in any order, and no other column.
        sampling: what the sampling was; by default Poisson at each row's rate.

    Raises:
        BadFile: the file is anything else; names the line and the field.
    """
    table = csv.reader(io.StringIO(text_of(path), newline=""), strict=True)
    events: list[dict[str, Any]] = []
    try:
        columns = _columns(next(table, []))
        for cells in table:
            place = f"line {table.line_num}"
            if len(events) == ROWS_MAX:
                refuse(place, f"the table has more than {ROWS_MAX} rows")
            if len(cells) != len(columns):
                refuse(place, f"has {len(cells)} fields, the header {len(columns)}")
            events.append(_event(place, dict(zip(columns, cells, strict=True)), sampling))
    except csv.Error:
        refuse(f"line {table.line_num}", "is no CSV")
    if not events:
        refuse("", "the table has no rows")
    return events


def _columns(header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    renamed = ["sample_rate" if name in RATES else name for name in names]
    if sorted(renamed) != ["noise_multiplier", "sample_rate", "steps"]:
        refuse(
            "line 1", f"must name noise_multiplier, {' or '.join(RATES)}, and steps, and no more"
        )
    return renamed


def _event(
    place: str, cells: dict[str, str], sampling: dict[str, Any] | None
) -> dict[str, Any]:  # fmt: skip
    steps = cells["steps"].strip()
    return samplings.row(
        place,
        _number(cells["noise_multiplier"]),
        _number(cells["sample_rate"]),
        int(steps) if steps.isascii() and steps.isdigit() and len(steps) < 20 else None,
        sampling,
    )


def _number(text: str) -> float | None:
    try:
        return float(text) if len(text) <= DIGITS_MAX and "_" not in text else None
    except ValueError:
        return None
