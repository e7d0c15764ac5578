"""Which figures there are."""

from collections.abc import Iterator

from service.cli.figures import document_001, document_004, hiding
from service.cli.figures.figure import Figure


def all_figures() -> Iterator[Figure]:
    """Every figure, in the order of docs/theory/figures.md; each is worked out in its turn."""
    yield document_001.figure_1()
    yield document_001.figure_2()
    yield document_001.figure_3()
    yield document_001.figure_4()
    yield document_004.figure_12()
    yield document_004.toy()
    yield hiding.last_iterate_figure()
