"""Loss and epsilon by epoch, drawn with matplotlib where it is installed."""

import importlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from examples.partial_shuffle.training import Checkpoint


def pyplot() -> Any:
    """matplotlib, drawing to files only.

    Raises:
        ImportError: it is not installed.
    """
    importlib.import_module("matplotlib").use("agg")
    return importlib.import_module("matplotlib.pyplot")


def draw(plot: Any, path: Path, checkpoints: Sequence[Checkpoint], *, least_loss: float) -> None:
    """Loss without noise, loss with noise, and epsilon, a line for each tau; SVG, PNG or PDF."""
    figure, (exact, noisy, cost) = plot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for tau, several in _by(checkpoints, "tau"):
        label = f"tau = {tau:g}"
        _line(exact, [one for one in several if one.noise_multiplier == 0], label, least_loss)
        private = [one for one in several if one.noise_multiplier > 0]
        _line(noisy, private, label, least_loss)
        first = [one for one in private if one.run == private[0].run]
        cost.plot([one.epochs for one in first], [one.epsilon for one in first], label=label)
    for axes, title in ((exact, "loss without noise"), (noisy, "loss with noise")):
        axes.set(title=title, xlabel="epochs", ylabel="above the least loss")
    exact.set_yscale("log")
    cost.set(title="epsilon of one training (upper)", xlabel="epochs", yscale="log")
    figure.legend(*exact.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path)


def _line(axes: Any, checkpoints: Sequence[Checkpoint], label: str, least_loss: float) -> None:
    """The mean over trainings, and one standard deviation to each side."""
    at = _by(checkpoints, "epochs")
    epochs = [epoch for epoch, _ in at]
    losses = np.array([[one.loss - least_loss for one in several] for _, several in at])
    means, deviations = losses.mean(axis=1), losses.std(axis=1)
    axes.plot(epochs, means, label=label)
    axes.fill_between(epochs, means - deviations, means + deviations, alpha=0.2)


def _by(checkpoints: Sequence[Checkpoint], field: str) -> list[tuple[float, list[Checkpoint]]]:
    def key(one: Checkpoint) -> float:
        return float(getattr(one, field))

    return [(value, list(group)) for value, group in groupby(sorted(checkpoints, key=key), key=key)]
