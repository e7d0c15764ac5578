"""What each class of privacy event is in the ledger, or why it has no equal."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, Protocol

from dpledger_client import schemas, sweeps
from dpledger_client.importers.event_fields import NOISE_RANGE, PROBABILITY_MIN, Part, Place, merge

RHO_RANGE: Final = (1e-12, 1e4)  # by the contract, as are the next two
CATEGORIES_MAX: Final = 1_000_000
EPSILON_MAX: Final = 1e4
# Sums and roots of a few doubles are off by less than this; noise is rounded down by it.
ROUNDING: Final = 2.0**-50
# Chances of a mixture add up to 1 but for this.
_CHANCES_OFF: Final = 1e-9


class Reader(Protocol):
    """What a rule may ask about the tree and the ledger it goes to."""

    def parts(self, event: Any, path: str, depth: int) -> list[Part]:
        """What an event comes to, in order."""

    def inside(self, place: Place) -> list[Part]:
        """What the event in a field comes to."""

    def demand_size(self, place: Place, name: str) -> None:
        """Refuse an event on a dataset of another size than the ledger's."""

    def demand_relation(self, place: Place, *allowed: str) -> None:
        """Refuse an event that is told under other relations than the ledger's."""


Rule = Callable[[Reader, Place], list[Part]]


def _once(mechanism: dict[str, Any], sampling: dict[str, Any] | None = None) -> list[Part]:
    return [Part(mechanism, schemas.full() if sampling is None else sampling, 1)]


def _nothing(_: Reader, __: Place) -> list[Part]:
    return []


def _non_private(_: Reader, __: Place) -> list[Part]:
    return _once(schemas.no_noise())


def _gaussian_of(noise: float) -> dict[str, Any]:
    return schemas.gaussian(noise_multiplier=noise) if noise else schemas.no_noise()


def _gaussian(_: Reader, place: Place) -> list[Part]:
    return _once(_gaussian_of(place.noise()))


def _laplace(_: Reader, place: Place) -> list[Part]:
    noise = place.noise()
    return _once(schemas.laplace(noise_multiplier=noise) if noise else schemas.no_noise())


def _randomized_response(_: Reader, place: Place) -> list[Part]:
    lie = Fraction(place.real("noise_parameter", low=0.0, high=1.0))
    buckets = place.count("num_buckets", low=1, high=CATEGORIES_MAX)
    if buckets == 1:
        return []  # there is one answer
    exact = 1 - lie + lie / buckets
    truth = float(exact)
    if truth < exact:  # more truth costs more
        truth = math.nextafter(truth, 2.0)
    if truth >= 1:
        return _once(schemas.no_noise())
    return _once(schemas.randomized_response(probability_of_truth=truth, categories=buckets))


def _zcdp(_: Reader, place: Place) -> list[Part]:
    rho = place.real("rho", low=0.0, high=RHO_RANGE[1])
    xi = place.real("xi", low=0.0, high=EPSILON_MAX)
    if rho and xi:
        place.refuse("with both rho and xi has no equal")
    if xi:  # the same Renyi divergence at every order: pure, by its limit
        return _once(schemas.approximate_dp(epsilon=xi, delta=0.0))
    if rho and rho < RHO_RANGE[0]:
        place.refuse(f"has a rho below {RHO_RANGE[0]:g}")
    return _once(schemas.zcdp(rho=rho)) if rho else []


def _tree_aggregation(reader: Reader, place: Place) -> list[Part]:
    reader.demand_relation(place, "replace_special")
    counts = place.several("step_counts")
    longest = max(place.within("step_counts", one).count("step_counts", low=1) for one in counts)
    # A record is in one leaf, so in as many nodes as the tallest tree has levels.
    levels = longest.bit_length()
    scale = math.sqrt(levels) * (1 + ROUNDING) if levels > 1 else 1.0
    return _once(_gaussian_of(place.noise(scale=scale)))


def _mixture(reader: Reader, place: Place) -> list[Part]:
    reader.demand_relation(place, "add_or_remove_one", "replace_special")
    shifts = _reals(place, "sensitivities", high=1e9)
    chances = _reals(place, "sampling_probs", high=1.0)
    if not (len(shifts) == len(chances) <= 2 and abs(sum(chances) - 1) <= _CHANCES_OFF):
        place.refuse("has an equal only with one or two sensitivities whose chances add up to 1")
    moved = [number for number, shift in enumerate(shifts) if shift]
    if len(moved) == 2:
        place.refuse("with two sensitivities has an equal only if one of them is 0")
    if not moved:
        return []
    [at] = moved
    chance = max(chances[at], 1.0 - (math.fsum(chances) - chances[at]))  # more costs more
    scale = shifts[at] * (1 + ROUNDING) if shifts[at] != 1 else 1.0
    noise = place.noise("standard_deviation", scale=scale)
    return _sampled(_once(_gaussian_of(noise)), chance, place)


def _reals(place: Place, name: str, *, high: float) -> list[float]:
    values = place.several(name)
    return [place.within(name, value).real(name, low=0.0, high=high) for value in values]


def _truncated(reader: Reader, place: Place) -> list[Part]:
    reader.demand_size(place, "dataset_size")
    chance = place.probability()
    kept = place.count("truncated_batch_size")
    mechanism = _gaussian_of(place.noise())
    if not (chance and kept):
        return []
    sampling = schemas.truncated_poisson(sampling_probability=chance, max_batch_size=kept)
    return _once(mechanism, sampling)


def _composed(reader: Reader, place: Place) -> list[Part]:
    events = place.node.fields["events"]
    if not isinstance(events, (list, tuple)):
        place.refuse("has events that are no list")
    found: list[Part] = []
    for number, event in enumerate(events):
        found += reader.parts(event, f"{place.path}.events[{number}]", place.depth + 1)
    return merge(found)


def _self_composed(reader: Reader, place: Place) -> list[Part]:
    count = place.count("count")
    parts = reader.inside(place)
    return [part._replace(steps=part.steps * count) for part in parts] if count else []


def _poisson(reader: Reader, place: Place) -> list[Part]:
    chance = place.probability()
    return _sampled(reader.inside(place), chance, place)


def _sampled(parts: list[Part], chance: float, place: Place) -> list[Part]:
    if not parts or not chance:
        return []
    mechanism, sampling = _one_release(parts, place)
    if sampling["kind"] not in ("full", "poisson"):
        place.refuse(f"over a batch that is sampled again ({sampling['kind']}) has no equal")
    inner = sampling.get("sampling_probability", 1.0)
    joint = chance * inner
    if 1 not in (chance, inner):
        joint = min(1.0, math.nextafter(joint, 2.0))  # more sampling costs more
    if joint < PROBABILITY_MIN:
        place.refuse(f"has a joint sampling probability below {PROBABILITY_MIN:g}")
    return _once(mechanism, schemas.poisson(sampling_probability=joint) if joint < 1 else None)


def _with_replacement(reader: Reader, place: Place) -> list[Part]:
    return _of_size(reader, place, schemas.with_replacement)


def _without_replacement(reader: Reader, place: Place) -> list[Part]:
    if place.count("sample_size") > place.count("source_dataset_size"):
        place.refuse("has a sample_size above its source_dataset_size")
    return _of_size(reader, place, schemas.fixed_size)


def _of_size(
    reader: Reader, place: Place, sampling_of: Callable[..., dict[str, Any]]
) -> list[Part]:
    reader.demand_size(place, "source_dataset_size")
    size = place.count("sample_size")
    parts = reader.inside(place)
    if not parts or not size:
        return []
    mechanism, sampling = _one_release(parts, place)
    if sampling != schemas.full():
        place.refuse(f"over a batch that is sampled again ({sampling['kind']}) has no equal")
    return _once(mechanism, sampling_of(batch_size=size))


def _one_release(parts: list[Part], place: Place) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is released of one batch, as one mechanism and the sampling within the batch.

    Gaussian releases of one batch are one release of them all: with each divided by its noise, a
    record moves the whole by at most the root of the sum of the squares.
    """
    if len(parts) == 1 and parts[0].steps == 1:
        return parts[0].mechanism, parts[0].sampling
    if any(part.sampling != schemas.full() for part in parts):
        place.refuse("over several steps that sample one batch again has no equal")
    kinds = {part.mechanism["kind"] for part in parts}
    if "none" in kinds:
        return schemas.no_noise(), schemas.full()
    if kinds != {"gaussian"}:
        place.refuse("over several releases of one batch has an equal only if all are Gaussian")
    squares = math.fsum(part.steps / part.mechanism["noise_multiplier"] ** 2 for part in parts)
    joint = (1 - ROUNDING) / math.sqrt(squares)
    if joint < NOISE_RANGE[0]:
        place.refuse(f"has a joint noise multiplier below {NOISE_RANGE[0]:g}")
    return schemas.gaussian(noise_multiplier=joint), schemas.full()


_NO_TRIAL: Final = ("none", "approximate_dp", "selection")  # no selection of such is bounded


def _selected(reader: Reader, place: Place) -> list[Part]:
    """The best of a random number of runs; an infinite shape is a Poisson number."""
    mean, shape = (
        place.real("mean", low=1.0, high=1e6),
        place.real("shape", low=-1.0, high=math.inf),
    )
    parts = reader.inside(place)
    if not parts:
        return []
    part = parts[0]
    failing = part.mechanism["kind"] in _NO_TRIAL or part.sampling["kind"] == "with_replacement"
    if len(parts) > 1 or failing:
        place.refuse("has an equal only over steps of one kind that cannot fail")
    try:
        law = (
            sweeps.poisson_trials(mean=mean)
            if math.isinf(shape)
            else sweeps.negative_binomial_trials(shape=shape, mean=mean)
        )
    except ValueError:
        place.refuse("has a mean and a shape that no law of the ledger has")
    base = {"mechanism": part.mechanism, "sampling": part.sampling, "steps": part.steps}
    return _once({"kind": "selection", "repetitions": law, "base": base})


def _refused(reason: str) -> Rule:
    def refuse(_: Reader, place: Place) -> list[Part]:
        place.refuse(reason)

    return refuse


_SIZED: Final = ("source_dataset_size", "sample_size", "event")
RULES: Final[Mapping[str, tuple[Rule, tuple[str, ...]]]] = {
    "NoOpDpEvent": (_nothing, ()),
    "NonPrivateDpEvent": (_non_private, ()),
    "UnsupportedDpEvent": (_refused("says itself that it cannot be accounted"), ()),
    "GaussianDpEvent": (_gaussian, ("noise_multiplier",)),
    "LaplaceDpEvent": (_laplace, ("noise_multiplier",)),
    "DiscreteLaplaceDpEvent": (
        _refused("has no equal: the ledger knows no noise on whole numbers"),
        ("noise_parameter", "sensitivity"),
    ),
    "RandomizedResponseDpEvent": (_randomized_response, ("noise_parameter", "num_buckets")),
    "ZCDpEvent": (_zcdp, ("rho", "xi")),
    "SingleEpochTreeAggregationDpEvent": (_tree_aggregation, ("noise_multiplier", "step_counts")),
    "MixtureOfGaussiansDpEvent": (
        _mixture,
        ("standard_deviation", "sensitivities", "sampling_probs"),
    ),
    "TruncatedSubsampledGaussianDpEvent": (
        _truncated,
        ("dataset_size", "sampling_probability", "truncated_batch_size", "noise_multiplier"),
    ),
    "RepeatAndSelectDpEvent": (_selected, ("event", "mean", "shape")),
    "ComposedDpEvent": (_composed, ("events",)),
    "SelfComposedDpEvent": (_self_composed, ("event", "count")),
    "PoissonSampledDpEvent": (_poisson, ("sampling_probability", "event")),
    "SampledWithReplacementDpEvent": (_with_replacement, _SIZED),
    "SampledWithoutReplacementDpEvent": (_without_replacement, _SIZED),
}
