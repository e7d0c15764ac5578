"""Figure 12 of document 004, with what is proved beside it, and its toy example."""

from typing import Final

from accounting.literature.refuted.compared import EarlyStop, early_stop_epsilons
from accounting.literature.toy_shuffle import toy_epsilon
from service.cli.figures.figure import NOT_A_GUARANTEE, DrawnCurve, Figure, FigureKind, Panel

_DATASET_SIZE: Final = 1000
_NOISE_MULTIPLIER: Final = 2.0
_DELTA: Final = 1e-4
ONE_RECORD: Final = 1 / _DATASET_SIZE  # a pass of one step: drawing with replacement
FRACTIONS: Final = (ONE_RECORD, 0.5, 0.9)  # the document names none but the first
EPOCHS: Final = (1, 5, 10, 20, 40, 50)
_KEEPS: Final = 40  # probabilities that the end is told


def early_stop(fraction: float, epochs: int) -> EarlyStop:
    """The epsilons of passes that stop after a fraction of the records."""
    return early_stop_epsilons(
        noise_multiplier=_NOISE_MULTIPLIER,
        dataset_size=_DATASET_SIZE,
        fraction=fraction,
        epochs=epochs,
        delta=_DELTA,
    )


def _early_stop_panel(fraction: float) -> Panel:
    found = {epochs: early_stop(fraction, epochs) for epochs in EPOCHS}
    return Panel(
        title="tau = 1/n, with replacement" if fraction == ONE_RECORD else f"tau = {fraction:g}",
        x_name="epochs",
        y_name="epsilon at delta 1e-4",
        curves=(
            DrawnCurve(
                label="proved, by loss distributions",
                kind=FigureKind.BOUND,
                points=[(epochs, one.profiles) for epochs, one in found.items()],
            ),
            DrawnCurve(
                label="proved, by Renyi moments",
                kind=FigureKind.BOUND,
                points=[(epochs, one.moments) for epochs, one in found.items()],
            ),
            DrawnCurve(
                label=NOT_A_GUARANTEE,
                kind=FigureKind.CONJECTURE,
                points=[(epochs, one.conjectured) for epochs, one in found.items()],
            ),
        ),
        log_x=False,
        log_y=False,
    )


def figure_12() -> Figure:
    """Epsilon of shuffled passes that stop early, by epochs: conjectured, and proved twice."""
    return Figure(
        name="document_004_figure_12",
        title="Document 004, Figure 12: passes that stop after a part tau of 1000 records, noise 2",
        panels=tuple(_early_stop_panel(fraction) for fraction in FRACTIONS),
    )


def toy() -> Figure:
    """Pure epsilon of two steps on two records, drawn with replacement and shuffled."""
    keeps = [keep / _KEEPS for keep in range(_KEEPS)]
    curves = tuple(
        DrawnCurve(
            label=label,
            kind=FigureKind.EXACT,
            points=[
                (keep, toy_epsilon(keep_probability=keep, replacement=replacement))
                for keep in keeps
            ],
        )
        for label, replacement in (("shuffled", False), ("drawn with replacement", True))
    )
    panel = Panel(
        title="Two records, two steps",
        x_name="p, chance that the true end is told",
        y_name="epsilon, delta = 0",
        curves=curves,
        log_x=False,
        log_y=False,
    )
    return Figure(
        name="document_004_toy",
        title="Document 004, Section 4.5: shuffling can cost more",
        panels=(panel,),
    )
