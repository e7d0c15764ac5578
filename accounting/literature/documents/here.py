"""Statements that the documents ask for and that are proved here."""

from typing import Final

from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    Row(
        "X-C9",
        "shuffled passes that stop early, every answer shown, are as drawn afresh at rate 1/(n-t)",
        Verdict.PROVEN,
        ("partial-shuffle", "partial-shuffle-rdp"),
    ),
    Row(
        "X-A8",
        "what a kernel leaves of a divergence depends on it, so that a chain leaves less",
        Verdict.PROVEN,
        ("pnsgd-record-refined", "pnsgd-shuffled-refined"),
    ),
)
