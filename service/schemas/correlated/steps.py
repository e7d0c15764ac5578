"""Steps of correlated noise: messages, and how they become accounting mechanisms and samplings."""

import re
from typing import Annotated, Final, Literal, TypeGuard

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from accounting import events as core
from service.errors import InvalidRequestError
from service.schemas.message import NoiseMultiplier, Probability, Wire, Within

PASS_MAX: Final = 100_000  # steps of a pass of correlated noise
DIGEST_PATTERN: Final = r"^sha256:[0-9a-f]{64}$"

_DIGEST: Final = re.compile(DIGEST_PATTERN.strip("^$"))

StrategyDigest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
PassSteps = Annotated[int, Within(1, PASS_MAX)]
SensitivitySquared = Annotated[float, Within(1e-120, 1e250)]
_SENSITIVITY: Final[TypeAdapter[float | None]] = TypeAdapter(
    SensitivitySquared | None, config=ConfigDict(strict=True)
)


class MatrixGaussianMechanism(Wire):
    """Gaussian noise that a strategy correlates over the steps of a pass."""

    kind: Literal["matrix_gaussian"]
    noise_multiplier: NoiseMultiplier
    strategy: StrategyDigest
    sensitivity_squared: SensitivitySquared | None = None  # the service fills it in


class OpenMatrixGaussian(MatrixGaussianMechanism):
    """The same; without `noise_multiplier` it is to be found."""

    noise_multiplier: NoiseMultiplier | None = None  # type: ignore[assignment]


class MinSeparationSampling(Wire):
    """Any steps of a pass, as far apart as declared and as few."""

    kind: Literal["min_separation"]
    steps_per_pass: PassSteps
    min_separation: PassSteps
    participations: PassSteps | None = None
    placement: Literal["by_slot", "by_record"]
    noise_restarts_each_pass: bool = False


class CyclicPoissonSampling(Wire):
    """Groups of records take turns; of the group whose turn it is each record joins by a coin."""

    kind: Literal["cyclic_poisson"]
    sampling_probability: Probability
    cycle_length: PassSteps
    steps_per_pass: PassSteps
    placement: Literal["by_slot", "by_record"]
    noise_restarts_each_pass: bool = False


CorrelatedSampling = MinSeparationSampling | CyclicPoissonSampling


def to_matrix_gaussian(message: MatrixGaussianMechanism) -> core.MatrixGaussian:
    """The accounting mechanism of a message whose sensitivity is known."""
    assert message.sensitivity_squared is not None  # noqa: S101 (require_pair)
    return core.MatrixGaussian(
        noise_multiplier=message.noise_multiplier,
        strategy=message.strategy,
        sensitivity_squared=message.sensitivity_squared,
    )


def to_correlated_sampling(
    message: CorrelatedSampling, *, location: str
) -> core.MinSeparation | core.CyclicPoisson:
    """The accounting sampling of a message.

    Raises:
        InvalidRequestError: a number is beyond the steps of the pass.
    """
    if isinstance(message, CyclicPoissonSampling):
        n = message.steps_per_pass
        _within(message.cycle_length, n, f"{location}.cycle_length", "steps_per_pass")
        return core.CyclicPoisson(
            sampling_probability=message.sampling_probability,
            cycle_length=message.cycle_length,
            steps_per_pass=n,
            placement=core.Placement(message.placement),
            noise_restarts_each_pass=message.noise_restarts_each_pass,
        )
    return to_min_separation(message, location=location)


def to_min_separation(message: MinSeparationSampling, *, location: str) -> core.MinSeparation:
    """The accounting sampling of a message.

    Raises:
        InvalidRequestError: a number is beyond the steps of the pass.
    """
    n, b = message.steps_per_pass, message.min_separation
    _within(b, n, f"{location}.min_separation", "steps_per_pass")
    most = -(-n // b)
    k = most if message.participations is None else message.participations
    _within(k, most, f"{location}.participations", "ceil(steps_per_pass / min_separation)")
    return core.MinSeparation(
        steps_per_pass=n,
        min_separation=b,
        participations=k,
        placement=core.Placement(message.placement),
        noise_restarts_each_pass=message.noise_restarts_each_pass,
    )


def can_be_sensitivity(value: object) -> bool:
    """Whether a parsed value is null or a number that the schema allows as a sensitivity."""
    try:
        _SENSITIVITY.validate_python(value)
    except ValidationError:
        return False
    return True


def is_digest(value: object) -> TypeGuard[str]:
    """Whether a parsed value has the form of a strategy's name."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _within(value: int, most: int, location: str, words: str) -> None:
    if value > most:
        raise InvalidRequestError(location, f"must lie in [1, {most}], at most {words}")


def require_pair(mechanism: object, sampling: object, *, location: str) -> None:
    """Refuse correlated noise without a sampling that bounds it, and the other way round.

    A step without noise may have any sampling: it has no bound.

    Raises:
        InvalidRequestError: it is so, or the sensitivity of the strategy is not known.
    """
    correlated = isinstance(sampling, CorrelatedSampling)
    if isinstance(mechanism, MatrixGaussianMechanism):
        if not correlated:
            raise InvalidRequestError(
                f"{location}.sampling.kind",
                "must be min_separation or cyclic_poisson where the noise is matrix_gaussian",
            )
        if mechanism.sensitivity_squared is None:
            raise InvalidRequestError(
                f"{location}.mechanism.sensitivity_squared",
                "must be given here: GET /v1/strategies/{digest}/sensitivity answers it",
            )
    elif correlated and getattr(mechanism, "kind", "") != "none":
        raise InvalidRequestError(
            f"{location}.mechanism.kind", "must be matrix_gaussian with this sampling"
        )
