"""The sampling that is what was read of a loader."""

from decimal import ROUND_CEILING, Context
from typing import Any, Final, Literal

from dpledger_client import schemas
from dpledger_client.loaders.known_loaders import Read, UnclearError

Sampling = dict[str, Any]
MISFIT: Final = "The loader and dataset_size do not go together."
_OWN_SEED: Final = (
    "Its orders follow from a seed of the sampler, so they do not count as secret: take "
    "dpledger_client.shuffled, or a RandomSampler."
)


def sampling_of(read: Read, size: int) -> tuple[Sampling, str]:
    """The cheapest sampling that certainly covers it, and what the loader does in words.

    Args:
        read: with the batch size of a step.
        size: of the dataset, as declared; records.

    Raises:
        UnclearError: it has no batch.
        ValueError: a record may be in a step more than once.
    """
    if read.kind != "with_replacement" and max(read.length, read.records) > size:
        return schemas.unknown(), MISFIT  # a record may be in the data repeatedly
    match read.kind:
        case "poisson":
            rate = schemas.poisson(sampling_probability=read.rate)
            return rate, "The loader draws each record by a coin of its own."
        case "rest":
            return schemas.full(), "The loader begins in the middle of a pass."
        case "weighted":
            return _weighted(read)
        case "with_replacement":
            return _with_replacement(read, size)
        case _:
            return _pass(read, size)


def told_of(found: Sampling, read: Read, size: int) -> Sampling:
    """What the service may be told of it: no exact number that only the data know."""
    if found["kind"] in ("shuffle", "cyclic") and read.length != size:
        return schemas.unknown()
    if found["kind"] == "non_uniform":
        above = Context(prec=2, rounding=ROUND_CEILING)
        return schemas.non_uniform(max_weight=float(above.create_decimal(found["max_weight"])))
    return found


def _weighted(read: Read) -> tuple[Sampling, str]:
    if read.batch_size > 1:
        raise ValueError(
            "WeightedRandomSampler with replacement may put a record into a step repeatedly: "
            "take batches of one."
        )
    words = "The loader draws by weights, which must not come from the data."
    return schemas.non_uniform(max_weight=read.rate), words


def _with_replacement(read: Read, size: int) -> tuple[Sampling, str]:
    if read.records != size:
        raise ValueError("Draws with replacement are counted by the number of records they are of.")
    words = "The loader draws with replacement."
    return schemas.with_replacement(batch_size=read.batch_size), words


def _pass(read: Read, size: int) -> tuple[Sampling, str]:
    steps = _steps_per_pass(read)
    if read.fault:
        if steps < 2:
            raise ValueError(read.fault)
        return schemas.unknown(), read.fault
    place: dict[str, Any] = {"batch_size": min(read.batch_size, size), "steps_per_pass": steps}
    if read.kind == "shuffle" and read.records == size:
        order: Literal["once", "each_pass"] = "once" if read.once else "each_pass"
        words = "The loader shuffles: a record comes once in a pass."
        if read.own_seed and relies_on_secrecy(place, size):
            return schemas.shuffle(reshuffle="once", **place), f"{words} {_OWN_SEED}"
        return schemas.shuffle(reshuffle=order, **place), words
    # Records that every pass leaves out are no luck of the order: no bound of a shuffle holds.
    return schemas.cyclic(**place), "The loader goes through the same records in each pass."


def relies_on_secrecy(place: Sampling, size: int) -> bool:
    """Whether bounds of a shuffle with such passes rely on a secret order."""
    size_of_step, steps = int(place["batch_size"]), int(place["steps_per_pass"])
    return size_of_step == 1 or steps * size_of_step < size


def _steps_per_pass(read: Read) -> int:
    if read.draws > read.records and not read.fault:
        # Orders one after the other are passes, unless a batch reaches from one into the next.
        if read.draws % read.records or read.records % read.batch_size:
            raise ValueError("A batch may reach into the next order, and hold a record twice.")
        return read.records // read.batch_size
    whole, rest = divmod(read.draws, read.batch_size // read.parts)
    batches = whole + bool(rest and not read.drop_last)
    if batches < 1:
        raise UnclearError("The loader has no batch.")
    return -(-batches // read.parts)  # the batches that are left over at its end are a step
