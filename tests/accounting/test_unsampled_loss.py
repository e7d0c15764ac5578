"""The loss of an unsampled step at the loss of the sampled one, by its definition."""

import mpmath as mp
import numpy as np
import pytest

from accounting.events import Direction
from accounting.pld.profiles import LOSS_MAX, unsampled_loss


@pytest.mark.parametrize("q", [1e-12, 1e-3, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("direction", list(Direction))
def test_it_is_what_its_definition_says_at_every_size(direction: Direction, q: float) -> None:
    sign = 1 if direction is Direction.REMOVE else -1
    x = np.array([1e-9, 1e-3, 1.0, 30.0, LOSS_MAX - 1, LOSS_MAX, LOSS_MAX + 1, 700, 710, 1e4, 1e8])
    found, error = unsampled_loss(direction, q, sign * x)
    with mp.workdps(60):
        for each, r, off in zip(x, found, error, strict=True):
            exact = sign * mp.log1p(mp.expm1(mp.mpf(float(each))) / mp.mpf(q))
            assert abs(mp.mpf(float(r)) - exact) <= off
            assert off <= 1e-12 * (1 + abs(float(exact)))
