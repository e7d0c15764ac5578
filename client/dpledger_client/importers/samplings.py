"""How the records of an imported run were sampled, where its file says a rate and no more."""

from collections.abc import Callable
from typing import Any, Final

from dpledger_client import schemas
from dpledger_client.importers.bounded_reader import count, real
from dpledger_client.importers.event_fields import NOISE_RANGE, PROBABILITY_MIN

POISSON: Final = "poisson"
RECORDS_MAX: Final = 10**12  # by the contract

_KINDS: Final[dict[str, tuple[Callable[..., dict[str, Any]], tuple[str, ...]]]] = {
    "shuffle": (schemas.shuffle, ("batch_size", "reshuffle", "steps_per_pass")),
    "cyclic": (schemas.cyclic, ("batch_size", "steps_per_pass")),
    "fixed_size": (schemas.fixed_size, ("batch_size",)),
    "with_replacement": (schemas.with_replacement, ("batch_size",)),
    "balls_and_bins": (schemas.balls_and_bins, ("steps_per_pass",)),
    "full": (schemas.full, ()),
    "unknown": (schemas.unknown, ()),
}


def parse(text: str, *, dataset_size: int | None = None) -> dict[str, Any] | None:
    """A sampling as the command line spells it, such as `shuffle:256,steps_per_pass=234`.

    Args:
        text: a kind, then after a colon its fields; the first needs no name. `poisson` has none.
        dataset_size: records, if it is known; a refusal then says which numbers fit.

    Returns:
        The sampling; None for poisson, whose rate the file has.

    Raises:
        ValueError: it is anything else.
    """
    kind, _, rest = text.partition(":")
    if kind == POISSON and not rest:
        return None
    if kind not in _KINDS:
        raise ValueError(f"The sampling must be poisson or one of {', '.join(_KINDS)}.")
    make, names = _KINDS[kind]
    fields: dict[str, Any] = {}
    for item in rest.split(",") if rest else ():
        left, mark, right = item.partition("=")
        name, value = (left, right) if mark else (names[0] if names else "", left)
        if name not in names or name in fields:
            raise ValueError(f"{kind} has {', '.join(names) or 'no fields'}, each at most once.")
        fields[name] = _order(value) if name == "reshuffle" else _whole(name, value)
    if missing := [name for name in names[:1] if name not in fields]:
        raise ValueError(f"{kind} needs {missing[0]}, as in {kind}:256.")
    if schemas.lacks_length(said := {"kind": kind, **fields}):
        refusal = schemas.no_length(said, dataset_size=dataset_size)
        raise ValueError(f"--sampling {kind}:{fields['batch_size']},steps_per_pass=...: {refusal}")
    return make(**fields)


def _whole(name: str, value: str) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 14 else 0
    if not 1 <= number <= RECORDS_MAX:
        raise ValueError(f"{name} must be a whole number in [1, {RECORDS_MAX}].")
    return number


def _order(value: str) -> str:
    if value not in ("each_pass", "once"):
        raise ValueError("reshuffle must be each_pass or once.")
    return value


def row(
    place: str, noise_multiplier: Any, rate: Any, steps: Any, sampling: dict[str, Any] | None
) -> dict[str, Any]:
    """The event of one row of a history.

    Args:
        place: of the row, for refusals.
        noise_multiplier: noise / norm bound; 0 is a run without noise.
        rate: the chance that a record joins a step, which is used if sampling is None.
        steps: how many.
        sampling: what the sampling really was, whatever the rate says.

    Raises:
        BadFile: a value is out of range.
    """
    noise = real(f"{place}, noise_multiplier", noise_multiplier, 0.0, NOISE_RANGE[1])
    if noise:
        real(f"{place}, noise_multiplier", noise, *NOISE_RANGE)
    chance = real(f"{place}, sample_rate", rate, PROBABILITY_MIN, 1.0)
    return schemas.event(
        mechanism=schemas.gaussian(noise_multiplier=noise) if noise else schemas.no_noise(),
        sampling=schemas.poisson(sampling_probability=chance) if sampling is None else sampling,
        steps=count(f"{place}, steps", steps),
    )
