"""`dpledger figures`: every figure as SVG and as CSV, into a folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from service.cli.figures.figure import Figure, table


def figures(
    out: Annotated[Path, typer.Option("--out", help="a folder; made if it does not exist")],
) -> None:
    """Redraw the source documents' figures, each as SVG and as CSV. Needs matplotlib."""
    try:
        from service.cli.figures.drawing import draw
    except ModuleNotFoundError as error:
        _refuse(
            f"dpledger figures needs {error.name}, which is not installed. In the repository: "
            "pip install '.[figures]'"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        for figure in all_figures():
            (out / f"{figure.name}.svg").write_bytes(draw(figure))
            (out / f"{figure.name}.csv").write_text(table(figure), encoding="utf-8")
            typer.echo(out / f"{figure.name}.svg")
    except OSError as error:
        _refuse(f"{error.filename}: {error.strerror}")


def all_figures() -> Iterator[Figure]:
    """Every figure, in the order of docs/theory/figures.md; each is worked out in its turn."""
    from service.cli.figures import document_001, document_004, hiding

    yield document_001.figure_1()
    yield document_001.figure_2()
    yield document_001.figure_3()
    yield document_001.figure_4()
    yield document_004.figure_12()
    yield document_004.toy()
    yield hiding.last_iterate_figure()


def _refuse(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)
