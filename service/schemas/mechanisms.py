"""What a step did to the records it saw: messages, and how they become accounting mechanisms."""

from typing import Annotated, Any, Final, Literal, assert_never, cast

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from accounting import events as core
from accounting.events import (
    CATEGORIES_MAX,
    EPSILON_MAX,
    HALTING_MIN,
    RHO_MAX,
    SHAPE_MAX,
    TRIALS_MAX,
)
from accounting.renyi.selection import negative_binomial_of_mean
from service.schemas.correlated.steps import MatrixGaussianMechanism, to_matrix_gaussian
from service.schemas.message import PROBABILITY_MIN, NoiseMultiplier, Wire, Within
from service.schemas.samplings import SamplingMessage, to_sampling

RHO_MIN: Final = 1e-12
TRIAL_STEPS_MAX: Final = 10**9

ProbabilityOfTruth = Annotated[float, Within(PROBABILITY_MIN, 1, ends="[)")]
Categories = Annotated[int, Within(2, CATEGORIES_MAX)]
DeclaredEpsilon = Annotated[float, Within(0, EPSILON_MAX)]
DeclaredDelta = Annotated[float, Within(0, 1, ends="[)")]
Rho = Annotated[float, Within(RHO_MIN, RHO_MAX)]


class GaussianMechanism(Wire):
    """Gaussian noise on a sum of clipped contributions."""

    kind: Literal["gaussian"]
    noise_multiplier: NoiseMultiplier


class LaplaceMechanism(Wire):
    """Laplace noise on a sum of contributions clipped in L1."""

    kind: Literal["laplace"]
    noise_multiplier: NoiseMultiplier


class RandomizedResponseMechanism(Wire):
    """Each record reports its own category or, with equal chances, any other."""

    kind: Literal["randomized_response"]
    probability_of_truth: ProbabilityOfTruth
    categories: Categories


class ApproximateDpMechanism(Wire):
    """A black box that was proved elsewhere to be (epsilon, delta)-DP."""

    kind: Literal["approximate_dp"]
    epsilon: DeclaredEpsilon
    delta: DeclaredDelta


class ZcdpMechanism(Wire):
    """A black box that was proved elsewhere to be rho-zCDP."""

    kind: Literal["zcdp"]
    rho: Rho


class NoMechanism(Wire):
    """A step without noise."""

    kind: Literal["none"]


Shape = Annotated[float, Within(-1, SHAPE_MAX, ends="(]")]
HaltingProbability = Annotated[float, Within(HALTING_MIN, 1, ends="[)")]
SolvedMean = Annotated[float, Within(1, TRIALS_MAX, ends="(]")]
PoissonMean = Annotated[float, Within(1, TRIALS_MAX)]
TrialSteps = Annotated[int, Within(1, TRIAL_STEPS_MAX)]


class NegativeBinomialRepetitions(Wire):
    """A truncated negative binomial number of trials; a mean is solved for and not kept."""

    kind: Literal["truncated_negative_binomial"]
    shape: Shape
    halting_probability: HaltingProbability | None = None
    mean: SolvedMean | None = Field(default=None, exclude_if=lambda value: value is None)

    @model_validator(mode="before")
    @classmethod
    def _solved(cls, given: Any) -> Any:
        """A mean as the halting probability that has it: what is kept is what is drawn with."""
        if not isinstance(given, dict) or given.get("mean") is None:
            return given
        shape, mean = given.get("shape"), given["mean"]
        if given.get("halting_probability") is not None:
            raise PydanticCustomError("not_both", "give halting_probability or mean, not both")
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in (shape, mean)):
            return given  # its fields name the fault
        try:
            law = negative_binomial_of_mean(shape=cast(float, shape), mean=mean)
        except ValueError:
            return given
        rest = {name: value for name, value in given.items() if name != "mean"}
        return {**rest, "halting_probability": law.halting_probability}

    @model_validator(mode="after")
    def _is_known(self) -> "NegativeBinomialRepetitions":
        if self.mean is not None:
            raise PydanticCustomError("no_law", "no halting_probability has this mean")
        if self.halting_probability is None:
            raise PydanticCustomError("one_of_two", "give halting_probability or mean")
        return self


class PoissonRepetitions(Wire):
    """A Poisson number of trials; with none, a fixed output is released."""

    kind: Literal["poisson"]
    mean: PoissonMean


class SelectionBase(Wire):
    """What each trial of a selection is, at most: equal steps in a row."""

    mechanism: Annotated[
        GaussianMechanism
        | LaplaceMechanism
        | RandomizedResponseMechanism
        | ApproximateDpMechanism
        | ZcdpMechanism
        | NoMechanism,
        Field(discriminator="kind"),
    ]
    sampling: SamplingMessage
    steps: TrialSteps


class SelectionMechanism(Wire):
    """The best of a secret number of independent trials, released alone."""

    kind: Literal["selection"]
    repetitions: Annotated[
        NegativeBinomialRepetitions | PoissonRepetitions, Field(discriminator="kind")
    ]
    base: SelectionBase


MechanismMessage = Annotated[
    GaussianMechanism
    | LaplaceMechanism
    | RandomizedResponseMechanism
    | ApproximateDpMechanism
    | ZcdpMechanism
    | MatrixGaussianMechanism
    | SelectionMechanism
    | NoMechanism,
    Field(discriminator="kind"),
]


def to_mechanism(
    message: MechanismMessage, *, dataset_size: int | None, location: str
) -> core.Mechanism:
    """The accounting mechanism of a message.

    Raises:
        InvalidRequestError: the sampling of a selection's base does not fit the dataset.
    """
    match message:
        case GaussianMechanism():
            return core.Gaussian(noise_multiplier=message.noise_multiplier)
        case LaplaceMechanism():
            return core.Laplace(noise_multiplier=message.noise_multiplier)
        case RandomizedResponseMechanism():
            return core.RandomizedResponse(
                probability_of_truth=message.probability_of_truth, categories=message.categories
            )
        case ApproximateDpMechanism():
            return core.ApproximateDp(epsilon=message.epsilon, delta=message.delta)
        case ZcdpMechanism():
            return core.Zcdp(rho=message.rho)
        case MatrixGaussianMechanism() | SelectionMechanism():
            return _of_many_steps(message, dataset_size, location)
        case NoMechanism():
            return core.NoNoise()
        case _:
            assert_never(message)


def _of_many_steps(
    message: MatrixGaussianMechanism | SelectionMechanism, dataset_size: int | None, location: str
) -> core.MatrixGaussian | core.PrivateSelection:
    if isinstance(message, MatrixGaussianMechanism):
        return to_matrix_gaussian(message)
    base, law = message.base, message.repetitions
    here = f"{location}.base"
    trials: core.Trials
    if isinstance(law, PoissonRepetitions):
        trials = core.PoissonTrials(mean=law.mean)
    else:
        assert law.halting_probability is not None  # noqa: S101 (the message has one)
        trials = core.NegativeBinomialTrials(
            shape=law.shape, halting_probability=law.halting_probability
        )
    step = core.Event(
        mechanism=to_mechanism(
            base.mechanism, dataset_size=dataset_size, location=f"{here}.mechanism"
        ),
        sampling=to_sampling(base.sampling, dataset_size=dataset_size, location=f"{here}.sampling"),
    )
    return core.PrivateSelection(repetitions=trials, base=step, steps=base.steps)
