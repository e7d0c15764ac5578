"""The founding documents, statement by statement: what each says, its verdict, where it lives.

Data about theorems, for readers and tests; no number rests on it. docs/theory/rows.md is the table,
docs/theory/errata.md what is wrong in the documents and how it is known.
"""

from typing import Final

from accounting.literature.documents import cyclic, here, internship, lecture, projected, shuffling
from accounting.literature.documents.row import Row, Verdict

ROWS: Final[tuple[Row, ...]] = (
    *shuffling.ROWS,
    *projected.ROWS,
    *cyclic.ROWS,
    *lecture.ROWS,
    *internship.ROWS,
    *here.ROWS,
)

__all__ = ["ROWS", "Row", "Verdict"]
