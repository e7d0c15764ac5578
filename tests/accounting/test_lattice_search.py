"""The lattice's readings at extremes: far below every loss, and a search that starts from zero."""

import dataclasses
import math
from types import SimpleNamespace
from typing import Any, cast

from accounting.events import Direction
from accounting.pld.lattice import lattice_bounds
from accounting.pld.lattice.fft_convolution import Composition, Reading, read_delta
from accounting.pld.pairs import SampledGaussianPair


def test_a_scale_beyond_any_double_certifies_nothing(monkeypatch: Any) -> None:
    seen: list[Composition] = []
    honest = read_delta

    def watched(composition: Composition, *, epsilon: float) -> Reading:
        seen.append(composition)
        return honest(composition, epsilon=epsilon)

    monkeypatch.setattr(lattice_bounds, "read_delta", watched)
    pair = SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.01)
    lattice_bounds.lattice_epsilon([(pair, 30)], direction=Direction.REMOVE, delta=1e-5, width=1e-2)
    composition = dataclasses.replace(seen[0], log_scale=1e4)
    found = read_delta(composition, epsilon=0.5)
    assert (found.lower, found.upper) == (0.0, 1.0)


def test_a_search_that_starts_at_zero_leaves_it_where_delta_is_larger_there() -> None:
    view = SimpleNamespace(epsilon=0.7, deviation=0.5, spread=1.0)
    question = cast(Any, SimpleNamespace(width=1e-3, view=view))

    def read(epsilon: float) -> tuple[float, float]:
        return math.exp(-3 * epsilon), -3.0

    for safe_above in (True, False):
        found = lattice_bounds._search(read, 1e-3, question, start=0.0, safe_above=safe_above)
        assert (read(found)[0] <= 1e-3) is safe_above
        assert abs(found - math.log(1e3) / 3) <= 1e-3
