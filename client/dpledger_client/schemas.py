"""The wire form of what a step was: mechanisms, samplings and events as plain dicts."""

import math
from collections.abc import Mapping
from operator import index
from typing import Any, Literal

Placement = Literal["by_slot", "by_record"]


def gaussian(*, noise_multiplier: float) -> dict[str, Any]:
    """Gaussian noise on a sum of clipped contributions.

    Args:
        noise_multiplier: noise standard deviation / per-record norm bound; unitless, > 0.

    Raises:
        ValueError: it is not positive and finite. A step without noise is `no_noise()`.
    """
    return {
        "kind": "gaussian",
        "noise_multiplier": _positive("noise_multiplier", noise_multiplier),
    }


def laplace(*, noise_multiplier: float) -> dict[str, Any]:
    """Laplace noise on each coordinate of a sum of contributions clipped in the L1 norm.

    Args:
        noise_multiplier: scale of the noise / per-record L1 norm bound; unitless, > 0.

    Raises:
        ValueError: it is not positive and finite.
    """
    return {"kind": "laplace", "noise_multiplier": _positive("noise_multiplier", noise_multiplier)}


def randomized_response(*, probability_of_truth: float, categories: int) -> dict[str, Any]:
    """Each record that takes part reports a category, by chance its own.

    Args:
        probability_of_truth: chance that the reported category is the true one, in (0, 1).
        categories: how many there are, >= 2.

    Raises:
        ValueError: one of the two is out of range.
    """
    if not 0 < probability_of_truth < 1:
        raise ValueError("probability_of_truth must be positive and below 1.")
    if not categories >= 2:
        raise ValueError("categories must be at least 2.")
    return {
        "kind": "randomized_response",
        "probability_of_truth": float(probability_of_truth),
        "categories": int(index(categories)),
    }


def approximate_dp(*, epsilon: float, delta: float) -> dict[str, Any]:
    """A black box that was proved private elsewhere, for one step without sampling.

    Args:
        epsilon: nats, >= 0.
        delta: in [0, 1).

    Raises:
        ValueError: one of the two is out of range.
    """
    if not 0 <= epsilon < math.inf:
        raise ValueError("epsilon must be finite and at least 0.")
    if not 0 <= delta < 1:
        raise ValueError("delta must be at least 0 and below 1.")
    return {"kind": "approximate_dp", "epsilon": float(epsilon), "delta": float(delta)}


def zcdp(*, rho: float) -> dict[str, Any]:
    """A black box that was proved zero-concentrated elsewhere, for one step without sampling.

    Args:
        rho: > 0.

    Raises:
        ValueError: it is not positive and finite.
    """
    return {"kind": "zcdp", "rho": _positive("rho", rho)}


def no_noise() -> dict[str, Any]:
    """A step without noise: it has no finite epsilon."""
    return {"kind": "none"}


def full() -> dict[str, Any]:
    """Every record joins every step."""
    return {"kind": "full"}


def unknown() -> dict[str, Any]:
    """The trainer does not know who joins a step; accounted as `full()`."""
    return {"kind": "unknown"}


def poisson(
    *, sampling_probability: float | None = None, expected_batch_size: float | None = None
) -> dict[str, Any]:
    """Each record joins each step independently.

    Args:
        sampling_probability: chance that a record joins a step, in (0, 1].
        expected_batch_size: records, on average; the service divides by the dataset's size. Never
            the size of a batch that was drawn, which is private.

    Raises:
        ValueError: not exactly one of the two is given, or it is out of range.
    """
    if (sampling_probability is None) == (expected_batch_size is None):
        raise ValueError("Give exactly one of sampling_probability and expected_batch_size.")
    if expected_batch_size is not None:
        size = _positive("expected_batch_size", expected_batch_size)
        return {"kind": "poisson", "expected_batch_size": size}
    probability = _chance("sampling_probability", sampling_probability or 0.0)
    return {"kind": "poisson", "sampling_probability": probability}


def truncated_poisson(*, sampling_probability: float, max_batch_size: int) -> dict[str, Any]:
    """Each record joins each step independently; of a surplus, a uniform subset is kept.

    Args:
        sampling_probability: chance that a record joins a step before any is dropped, in (0, 1].
        max_batch_size: records that are kept at most, >= 1. A constant, fixed beforehand: the
            size of a batch that was drawn is private.

    Raises:
        ValueError: one of the two is out of range.
    """
    return {
        "kind": "truncated_poisson",
        "sampling_probability": _chance("sampling_probability", sampling_probability),
        "max_batch_size": _count("max_batch_size", max_batch_size),
    }


def fixed_size(*, batch_size: int) -> dict[str, Any]:
    """A uniform subset without replacement, fresh each step.

    Args:
        batch_size: records, >= 1.

    Raises:
        ValueError: it is below 1.
    """
    return {"kind": "fixed_size", "batch_size": _count("batch_size", batch_size)}


def with_replacement(*, batch_size: int) -> dict[str, Any]:
    """Independent uniform draws, fresh each step; a record may come up repeatedly.

    Args:
        batch_size: draws, >= 1; may exceed the dataset's size.

    Raises:
        ValueError: it is below 1.
    """
    return {"kind": "with_replacement", "batch_size": _count("batch_size", batch_size)}


def cyclic(*, batch_size: int, steps_per_pass: int | None = None) -> dict[str, Any]:
    """A fixed, data-independent order, pass after pass.

    Args:
        batch_size: records, >= 1.
        steps_per_pass: steps, >= 1: ceil(dataset_size / batch_size) if the last, smaller batch is
            used, floor(dataset_size / batch_size) if it is dropped (drop_last). It must be given:
            neither number is safe for the other loader.

    Raises:
        ValueError: steps_per_pass is missing, or a count is below 1.
    """
    steps = _steps_per_pass("cyclic", batch_size, steps_per_pass)
    return {
        "kind": "cyclic",
        "batch_size": _count("batch_size", batch_size),
        "steps_per_pass": steps,
    }


def shuffle(
    *,
    batch_size: int,
    reshuffle: Literal["each_pass", "once"] = "each_pass",
    steps_per_pass: int | None = None,
    left_out: int | None = None,
) -> dict[str, Any]:
    """A random order, drawn for each pass or once.

    Args:
        batch_size: records, >= 1.
        reshuffle: when the order is drawn.
        steps_per_pass: steps, >= 1: ceil(dataset_size / batch_size) if the last, smaller batch is
            used, floor(dataset_size / batch_size) if it is dropped (drop_last), fewer if each pass
            stops early. Of a PyTorch DataLoader it is len(loader). It must be given: neither number
            is safe for the other loader.
        left_out: records that each pass leaves out, >= 0. The service refuses the step if it is not
            what the other numbers say; without it they are believed.

    Raises:
        ValueError: steps_per_pass is missing, or a count is below 1; left_out is below 0.
    """
    steps = _steps_per_pass("shuffle", batch_size, steps_per_pass)
    made = {
        "kind": "shuffle",
        "batch_size": _count("batch_size", batch_size),
        "reshuffle": reshuffle,
        "steps_per_pass": steps,
    }
    if left_out is None:
        return made
    if not left_out >= 0:
        raise ValueError("left_out must be at least 0.")
    return made | {"left_out": int(index(left_out))}


def balls_and_bins(*, steps_per_pass: int) -> dict[str, Any]:
    """Each record lands in one step of each pass, uniformly and independently of the others.

    Batches then differ in size, and some may be empty. A permuted order cut into batches is
    `shuffle(...)`.

    Args:
        steps_per_pass: steps, >= 1.

    Raises:
        ValueError: it is below 1.
    """
    return {"kind": "balls_and_bins", "steps_per_pass": _count("steps_per_pass", steps_per_pass)}


def random_allocation(*, steps_per_pass: int, participations: int) -> dict[str, Any]:
    """Each record joins exactly `participations` steps of each pass, a uniform set of its own.

    Args:
        steps_per_pass: steps, >= 1.
        participations: steps of a pass that a record joins, in [1, steps_per_pass].

    Raises:
        ValueError: one of the two is out of range.
    """
    length = _count("steps_per_pass", steps_per_pass)
    joined = _count("participations", participations)
    if joined > length:
        raise ValueError("participations must be at most steps_per_pass.")
    return {"kind": "random_allocation", "steps_per_pass": length, "participations": joined}


def non_uniform(*, max_weight: float) -> dict[str, Any]:
    """One record a step, drawn with weights that do not depend on the data.

    Args:
        max_weight: no record is drawn with a greater chance; in (0, 1]. Weights add up to one, so
            it is at least 1 / dataset_size.

    Raises:
        ValueError: it is out of range.
    """
    return {"kind": "non_uniform", "max_weight": _chance("max_weight", max_weight)}


def matrix_gaussian(*, noise_multiplier: float, strategy: str) -> dict[str, Any]:
    """Gaussian noise that a strategy correlates over the steps of a pass.

    Args:
        noise_multiplier: deviation of the noise before it is correlated / norm bound; > 0.
        strategy: its digest, from `Client.keep_strategy`.

    Raises:
        ValueError: the noise is not positive and finite.
    """
    return gaussian(noise_multiplier=noise_multiplier) | {
        "kind": "matrix_gaussian", "strategy": strategy,
    }  # fmt: skip


def min_separation(
    *, steps_per_pass: int, min_separation: int, placement: Placement,
    participations: int | None = None, noise_restarts_each_pass: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Any steps of a pass of correlated noise, as far apart as declared and as few.

    Args:
        steps_per_pass: rows of the strategy, >= 1.
        min_separation: two steps of a record are at least so many rows apart, >= 1.
        placement: by_slot if a record's place among the others decides its steps, else by_record.
        participations: steps of a record, at most; by default as many as there is room for.
        noise_restarts_each_pass: whether each further pass draws noise anew, with empty buffers.

    Raises:
        ValueError: a count is below 1.
    """
    made = {
        "kind": "min_separation", "steps_per_pass": _count("steps_per_pass", steps_per_pass),
        "min_separation": _count("min_separation", min_separation), "placement": placement,
        "noise_restarts_each_pass": bool(noise_restarts_each_pass),
    }  # fmt: skip
    if participations is None:
        return made
    return made | {"participations": _count("participations", participations)}


def cyclic_poisson(
    *, sampling_probability: float, cycle_length: int, steps_per_pass: int,
    placement: Placement, noise_restarts_each_pass: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Groups of records take turns in a pass of correlated noise; each joins by a coin.

    Args:
        sampling_probability: chance that a record of the group joins, in (0, 1].
        cycle_length: groups, at least as many as the strategy has bands.
        steps_per_pass: rows of the strategy, >= 1.
        placement: of a record into a group: by_slot, or by_record by coins of its own.
        noise_restarts_each_pass: as of `min_separation`.

    Raises:
        ValueError: a number is out of range.
    """
    return {
        "kind": "cyclic_poisson", "cycle_length": _count("cycle_length", cycle_length),
        "sampling_probability": _chance("sampling_probability", sampling_probability),
        "steps_per_pass": _count("steps_per_pass", steps_per_pass), "placement": placement,
        "noise_restarts_each_pass": bool(noise_restarts_each_pass),
    }  # fmt: skip


def event(
    *,
    mechanism: Mapping[str, Any],
    sampling: Mapping[str, Any],
    steps: int,
    first_step: int | None = None,
) -> dict[str, Any]:
    """Equal steps in a row.

    Args:
        mechanism: the noise of each step, such as `gaussian(...)`.
        sampling: who joins each step, such as `poisson(...)`.
        steps: how many, >= 1.
        first_step: the number of the first; in a plan, by default, the one after the event before.

    Raises:
        ValueError: steps is below 1.
    """
    place = {} if first_step is None else {"first_step": first_step}
    return {
        **place,
        "steps": _count("steps", steps),
        "mechanism": dict(mechanism),
        "sampling": dict(sampling),
    }


def _positive(name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be positive and finite.")
    return float(value)  # the numbers of array libraries are not JSON


def _chance(name: str, value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be positive and at most 1.")
    return float(value)


def _count(name: str, value: int) -> int:
    if not value >= 1:
        raise ValueError(f"{name} must be at least 1.")
    return int(index(value))  # an index may be a bool, which JSON spells otherwise


def lacks_length(sampling: Mapping[str, Any]) -> bool:
    """Whether a sampling goes through the data in an order, and its passes have no length."""
    return sampling.get("kind") in ("cyclic", "shuffle") and sampling.get("steps_per_pass") is None


def no_length(sampling: Mapping[str, Any], *, dataset_size: int | None) -> ValueError:
    """The refusal of a sampling without steps_per_pass: which number fits which loader."""
    used, dropped = "ceil(dataset_size / batch_size)", "floor(dataset_size / batch_size)"
    size = sampling.get("batch_size")
    if dataset_size is not None and isinstance(size, int) and 1 <= size <= dataset_size:
        used, dropped = str(-(-dataset_size // size)), str(dataset_size // size)
    return ValueError(
        f"steps_per_pass must be given with {sampling['kind']}: {used} for a loader that uses the "
        f"last, smaller batch, {dropped} for one that drops it (drop_last); of a PyTorch "
        "DataLoader it is len(loader)."
    )


def _steps_per_pass(kind: str, batch_size: int, steps: int | None) -> int:
    if steps is None:
        raise no_length({"kind": kind, "batch_size": batch_size}, dataset_size=None)
    return _count("steps_per_pass", steps)
