"""What a step did to the records it saw: messages, and how they become accounting mechanisms."""

from typing import Annotated, Final, Literal, assert_never

from pydantic import AfterValidator, Field

from accounting import events as core
from accounting.events import CATEGORIES_MAX, EPSILON_MAX, RHO_MAX
from service.schemas.correlated.steps import MatrixGaussianMechanism, to_matrix_gaussian
from service.schemas.message import PROBABILITY_MIN, Wire, bounds, within

RHO_MIN: Final = 1e-12

NoiseMultiplier = Annotated[
    float, AfterValidator(within(1e-9, 1e9)), Field(json_schema_extra=bounds(1e-9, 1e9))
]
ProbabilityOfTruth = Annotated[
    float,
    AfterValidator(within(PROBABILITY_MIN, 1.0, ends="[)")),
    Field(json_schema_extra=bounds(PROBABILITY_MIN, 1, ends="[)")),
]
Categories = Annotated[
    int, AfterValidator(within(2, CATEGORIES_MAX)), Field(json_schema_extra=bounds(2, 10**6))
]
DeclaredEpsilon = Annotated[
    float, AfterValidator(within(0.0, EPSILON_MAX)), Field(json_schema_extra=bounds(0, 1e4))
]
DeclaredDelta = Annotated[
    float,
    AfterValidator(within(0.0, 1.0, ends="[)")),
    Field(json_schema_extra=bounds(0, 1, ends="[)")),
]
Rho = Annotated[
    float, AfterValidator(within(RHO_MIN, RHO_MAX)), Field(json_schema_extra=bounds(RHO_MIN, 1e4))
]


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


MechanismMessage = Annotated[
    GaussianMechanism
    | LaplaceMechanism
    | RandomizedResponseMechanism
    | ApproximateDpMechanism
    | ZcdpMechanism
    | MatrixGaussianMechanism
    | NoMechanism,
    Field(discriminator="kind"),
]


def to_mechanism(message: MechanismMessage) -> core.Mechanism:
    """The accounting mechanism of a message."""
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
        case MatrixGaussianMechanism():
            return to_matrix_gaussian(message)
        case NoMechanism():
            return core.NoNoise()
        case _:
            assert_never(message)
