"""What a trainer declares about its loss and its steps: facts that no event shows."""

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

STAGES_MAX: Final = 1000  # of a learning rate; more would not be declared by hand
SCALE_MIN: Final = 1e-100  # of a quantity with units: its products stay normal numbers
SCALE_MAX: Final = 1e100


class DataOrder(StrEnum):
    """How records come to be in a step's batch."""

    FULL = "full"  # every record, every step
    CYCLIC = "cyclic"  # a fixed order that does not depend on the data
    SHUFFLE_ONCE = "shuffle_once"
    SHUFFLE_EACH_PASS = "shuffle_each_pass"  # noqa: S105
    FIXED_SIZE = "fixed_size"  # a fresh uniform subset each step
    POISSON = "poisson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A learning rate, from one step to the next stage."""

    first_step: int
    learning_rate: float  # in [SCALE_MIN, SCALE_MAX]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A run of noisy gradient steps from a data-independent start, as its trainer describes it.

    A step is x - learning_rate * (sum of clipped gradients + noise) / gradient_divisor, then a
    projection where there is one. Nobody can check any of this from events.
    """

    data_order: DataOrder
    loss_smoothness: float  # the gradient of each record's loss is Lipschitz with this constant
    loss_convexity: float  # each loss's least curvature: > 0 strongly, 0 plainly, < 0 weakly convex
    learning_rate: tuple[Stage, ...]  # the first begins at step 0
    max_grad_norm: float  # the norm bound, in units of the gradient
    gradient_divisor: float  # a constant
    projection_diameter: float | None  # of the convex set of each step's projection; None: none
    clipping_can_be_active: bool  # whether some gradient may exceed max_grad_norm
    generalized_linear_model: bool  # each loss is a convex function of one linear score
    # A choice, no fact: the constant that is proved for batches drawn afresh, not twice that.
    sharp: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be so."""
        for name in ("loss_smoothness", "max_grad_norm", "gradient_divisor", "projection_diameter"):
            value = getattr(self, name)
            if value is not None and not SCALE_MIN <= value <= SCALE_MAX:
                raise ValueError(f"{name} lies in [{SCALE_MIN:g}, {SCALE_MAX:g}].")
        if not abs(self.loss_convexity) <= self.loss_smoothness:
            raise ValueError("loss_convexity lies in [-loss_smoothness, loss_smoothness].")
        if self.generalized_linear_model and self.loss_convexity < 0:
            raise ValueError("loss_convexity is not negative where generalized_linear_model holds.")
        self._require_gradients()
        self._require_stages()

    def _require_gradients(self) -> None:
        """Strongly convex losses have long gradients somewhere: clipped ones, or a domain's."""
        if self.loss_convexity <= 0 or self.clipping_can_be_active:
            return
        span = self.projection_diameter
        if span is None or not 2 * self.max_grad_norm >= self.loss_convexity * span:
            raise ValueError(
                "loss_convexity above 0 without clipping needs a projection_diameter of at most "
                "2 max_grad_norm / loss_convexity: gradients are longer somewhere else."
            )

    def _require_stages(self) -> None:
        starts = [stage.first_step for stage in self.learning_rate]
        if not 1 <= len(starts) <= STAGES_MAX:
            raise ValueError(f"learning_rate has 1 to {STAGES_MAX} stages.")
        if starts[0] != 0 or any(before >= after for before, after in pairwise(starts)):
            raise ValueError("learning_rate begins at step 0, and its stages follow one another.")
        if not all(SCALE_MIN <= stage.learning_rate <= SCALE_MAX for stage in self.learning_rate):
            raise ValueError(f"learning_rate lies in [{SCALE_MIN:g}, {SCALE_MAX:g}].")
