"""The noise of JAX-Privacy's privatizers, and who joins the steps where it is correlated.

A privatizer is read from what its two functions hold. Its matrix is C^-1; the strategy that is
kept is C, with the coefficients that the matrix computes with.
"""

import dataclasses
import inspect
import math
import secrets
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, NoReturn

import jax
import numpy as np
from jax_privacy import batch_selection, noise_addition
from jax_privacy.batch_selection import PartitionType

from dpledger_client import schemas

__all__ = ["PlanNoise", "UnsupportedPlan", "correlated_sampling", "noise_of", "with_secret_key"]

_PRIVATIZERS: Final = "jax_privacy.noise_addition"
_MATRICES: Final = "jax_privacy.matrix_factorization"
_NORMS_OFF: Final = 1e-3  # relative: columns that are said to have norm 1, in single precision
_ROUNDING: Final = 1e-10  # relative: of the norms of up to 100,000 columns, in double precision
_REPLACING: Final = ("replace_one", "replace_special")


class UnsupportedPlan(ValueError):  # noqa: N818 - as the client's other refusals
    """A part of a plan has no equal in the ledger, or cannot be read for certain."""


class PlanNoise(NamedTuple):
    """What a privatizer draws.

    Attributes:
        deviation: standard deviation of the noise of a step; of raw noise where it is correlated.
        strategy: as `Client.keep_strategy` takes it; None if steps are independent.
        bands: diagonals of the strategy that are not 0; None if all may be.
        column_norm: the largest norm of a column of the strategy in its full length, without
            `column_normalized`; 1 of a strategy without bands. Unitless, not rounded outward.
        key: what the noise is drawn from, where it is correlated.
    """

    deviation: float
    strategy: dict[str, Any] | None = None
    bands: int | None = None
    column_norm: float = 1.0
    key: bytes = b""


def noise_of(privatizer: Any, *, steps: int) -> PlanNoise:
    """What a privatizer of JAX-Privacy draws.

    Args:
        privatizer: as of `plan.noise_addition_transform`.
        steps: that the plan takes, >= 1.

    Raises:
        UnsupportedPlan: it is not the library's, its matrix is of another form, or its noise is
            drawn from a seed of at most 32 bits.
    """
    parts = _parts(privatizer)
    deviation, matrix = float(parts["stddev"]), parts["noising_matrix"]
    following: Any = getattr(matrix, "multiply_next", None)
    name = _name_of(following)
    if name == "identity.<locals>.<lambda>":
        return _independent(deviation, privatizer)
    if name == "multiply_streaming_matrices.<locals>.multiply_next":
        found = _normalized(inspect.getclosurevars(following).nonlocals, deviation, steps)
    else:
        inner = _inner(matrix)
        if _name_of(inner) == "StreamingMatrixBuilder.build_inverse.<locals>.inv_multiply_next":
            found = PlanNoise(deviation, _buffered(inspect.getclosurevars(inner).nonlocals["self"]))
        else:
            coefficients = _coefficients(matrix)
            if len(coefficients) == 1:
                return _independent(deviation / coefficients[0], privatizer)
            kept = {"kind": "toeplitz", "coefficients": coefficients[:steps]}
            norm = math.hypot(*coefficients)
            found = PlanNoise(deviation, kept, len(coefficients), norm)
    return found._replace(key=_secret_key(privatizer))


def with_secret_key(plan: Any) -> Any:
    """The same plan with noise from a new key of the operating system, and empty buffers.

    JAX-Privacy draws from a seed of 31 bits where it is given no key, and `jax.random.key` keeps
    32 bits of a seed unless `jax_enable_x64` is set.

    Args:
        plan: a `DPExecutionPlan` whose privatizer is the library's.

    Raises:
        UnsupportedPlan: the privatizer cannot be read.
    """
    parts = _parts(plan.noise_addition_transform)
    shape = jax.random.key_data(jax.random.key(0)).shape
    words = np.frombuffer(secrets.token_bytes(4 * math.prod(shape)), np.uint32).reshape(shape)
    privatizer = noise_addition.matrix_factorization_privatizer(
        parts["noising_matrix"],
        stddev=parts["stddev"],
        prng_key=jax.random.wrap_key_data(words),
        dtype=parts["dtype"],
        intermediate_strategy=noise_addition.SupportedStrategies(parts["strategy"]),
    )
    return dataclasses.replace(plan, noise_addition_transform=privatizer)


def correlated_sampling(
    strategy: Any, *, steps: int, bands: int | None, relation: str | None
) -> dict[str, Any]:
    """Who joins the steps of a plan whose noise is correlated.

    Args:
        strategy: a batch selection of JAX-Privacy.
        steps: that it has, >= 1: one pass.
        bands: diagonals of the noise's strategy that are not 0; None if all may be.
        relation: the dataset's neighbouring relation.

    Returns:
        `cyclic_poisson` where the strategy's bands are at most the groups, else `min_separation`.

    Raises:
        UnsupportedPlan: neither tells it safely.
    """
    kind = type(strategy)
    if getattr(strategy, "truncated_batch_size", None) is not None:
        refuse_plan("Truncated batches have no equal where noise is correlated.")
    if kind is batch_selection.CyclicPoissonSampling:
        return _taking_turns(strategy, steps, bands, relation)
    if kind is batch_selection.BallsInBinsSampling:
        return _apart(plan_count("cycle_length", strategy.cycle_length), steps, "by_record")
    if kind is batch_selection.BMinSepSampling:
        return _apart(plan_count("min_sep", strategy.min_sep), steps, "by_record")
    if kind is not batch_selection.FixedBatchSampling:
        refuse_plan(f"{kind.__name__} has no equal among the samplings of correlated noise.")
    if strategy.replace:
        refuse_plan("A batch may hold a record twice: it has no equal where noise is correlated.")
    if relation not in _REPLACING:
        refuse_plan("Batches of a fixed size of correlated noise need a replace relation.")
    return _apart(1, steps, "by_slot")


def refuse_plan(reason: str) -> NoReturn:
    """Refuse a plan.

    Raises:
        UnsupportedPlan: always.
    """
    raise UnsupportedPlan(reason)


def plan_count(name: str, value: Any) -> int:
    """A whole number of a plan, >= 1.

    Raises:
        UnsupportedPlan: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        refuse_plan(f"{name} must be a whole number, at least 1.")
    return int(value)


def _taking_turns(
    strategy: batch_selection.CyclicPoissonSampling,
    steps: int,
    bands: int | None,
    relation: str | None,
) -> dict[str, Any]:
    groups, chance = (
        plan_count("cycle_length", strategy.cycle_length),
        float(strategy.sampling_prob),
    )
    if not 0 < chance <= 1:
        refuse_plan("sampling_prob must be in (0, 1].")
    by_itself = groups == 1 or strategy.partition_type is PartitionType.INDEPENDENT
    if not by_itself and relation not in _REPLACING:
        refuse_plan("A cycle of EQUAL_SPLIT groups needs a replace relation: say relation.")
    unbounded = by_itself and relation == "replace_one"  # of cyclic_poisson
    if bands is None or not bands <= groups <= steps or unbounded or chance == 1:
        return _apart(groups, steps, "by_record" if by_itself else "by_slot")
    return schemas.cyclic_poisson(
        sampling_probability=chance,
        cycle_length=groups,
        steps_per_pass=steps,
        placement="by_record" if by_itself else "by_slot",
    )


def _apart(separation: int, steps: int, placement: schemas.Placement) -> dict[str, Any]:
    return schemas.min_separation(
        steps_per_pass=steps, min_separation=min(separation, steps), placement=placement
    )


def _parts(privatizer: Any) -> dict[str, Any]:
    """What the two functions of a privatizer hold."""
    found: dict[str, Any] = {}
    for name in ("init", "update"):
        function: Any = getattr(privatizer, name, None)
        if getattr(function, "__module__", None) != _PRIVATIZERS:
            refuse_plan("The noise of plan.noise_addition_transform cannot be read.")
        found |= inspect.getclosurevars(function).nonlocals
    if not {"stddev", "noising_matrix", "prng_key", "dtype", "strategy"} <= set(found):
        refuse_plan("The noise of plan.noise_addition_transform cannot be read.")
    return found


def _name_of(function: Any) -> str:
    ours = str(getattr(function, "__module__", "")).startswith(_MATRICES)
    return str(getattr(function, "__qualname__", "")) if ours else ""


def _inner(matrix: Any) -> Any:
    """What a matrix does with one array."""
    following: Any = getattr(matrix, "multiply_next", None)
    if not _name_of(following).endswith("from_array_implementation.<locals>.lifted_next"):
        _no_form()
    return inspect.getclosurevars(following).nonlocals["multiply_next_fn"]


def _coefficients(matrix: Any) -> list[float]:
    """Those of C, of the inverse of a Toeplitz matrix."""
    inner = _inner(matrix)
    if _name_of(inner) != "inverse_as_streaming_matrix.<locals>._next":
        _no_form()
    found = _finite(inspect.getclosurevars(inner).nonlocals["coef"])
    if len(found) == 1:
        found[0] = abs(found[0])
    if not found[0] > 0:
        refuse_plan("The first coefficient of a strategy must be above 0.")
    return found


def _normalized(held: Mapping[str, Any], deviation: float, steps: int) -> PlanNoise:
    """A Toeplitz strategy whose columns were divided by their norms, for so many steps."""
    left = _inner(held["A"])
    if _name_of(left) != "diagonal.<locals>.<lambda>":
        _no_form()
    coefficients = _coefficients(held["B"])[:steps]
    scales = np.array(_finite(inspect.getclosurevars(left).nonlocals["diag"]))
    squares = np.zeros(steps)
    squares[: len(coefficients)] = np.square(coefficients)
    # Column j is cut off at the end of the pass, after steps - j coefficients.
    norms = np.sqrt(np.cumsum(squares))[::-1]
    if scales.shape != norms.shape or not (np.abs(scales / norms - 1) < _NORMS_OFF).all():
        refuse_plan(
            "Columns of the strategy are scaled by other numbers than their norms in this plan."
        )
    longest = max(1.0, float((norms / scales).max()) * (1 + _ROUNDING))
    kept = {"kind": "toeplitz", "coefficients": coefficients, "column_normalized": True}
    return PlanNoise(deviation / longest, kept, len(coefficients))


def _buffered(builder: Any) -> dict[str, Any]:
    decays, scales = _finite(builder.buf_decay), _finite(builder.output_scale)
    return {"kind": "blt", "buffer_decay": decays, "output_scale": scales}


def _finite(values: Any) -> list[float]:
    found = [float(value) for value in np.asarray(values, dtype=np.float64).reshape(-1)]
    if not found or not all(map(math.isfinite, found)):
        refuse_plan("The strategy of correlated noise has no numbers, or some that are not finite.")
    return found


def _independent(deviation: float, privatizer: Any) -> PlanNoise:
    if deviation:
        _secret_key(privatizer)
    return PlanNoise(deviation)


def _secret_key(privatizer: Any) -> bytes:
    words = np.asarray(jax.random.key_data(_parts(privatizer)["prng_key"])).reshape(-1)
    # Such a seed is one word beside words of 0; some implementations write both of them twice.
    if len(set(words.tolist()) - {0}) < 2:
        refuse_plan(
            "The noise is drawn from a seed of at most 32 bits (prng_key=None is one of 31 bits): "
            "use with_secret_key(plan) of dpledger_client.integrations.jax_privacy."
        )
    return words.tobytes()


def _no_form() -> NoReturn:
    refuse_plan(
        "Noise that is correlated between steps has an equal only if its matrix is the inverse of "
        "a Toeplitz or a buffered Toeplitz strategy."
    )
