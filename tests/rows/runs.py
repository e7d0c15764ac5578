"""Runs as document 001 has them."""

from accounting.literature.contraction.contraction import Lipschitz, ProjectedNoisySgd
from accounting.literature.contraction.kernels import Noise


def projected(
    *,
    noise: Noise = Noise.GAUSSIAN,
    noise_scale: float = 1.0,
    learning_rate: float = 0.1,
    gradient_bound: float = 1.0,
    smoothness: float = 0.5,
    convexity: float = 0.0,
    dimension: int = 1,
) -> ProjectedNoisySgd:
    """A run on a set of diameter 1; single records, no clipping."""
    return ProjectedNoisySgd(
        learning_rate=learning_rate,
        smoothness=smoothness,
        convexity=convexity,
        gradient_bound=gradient_bound,
        diameter=1.0,
        dimension=dimension,
        clip_can_be_active=False,
        noise=noise,
        noise_scale=noise_scale,
        batch_size=1,
        lipschitz=Lipschitz.DOCUMENT,
    )
