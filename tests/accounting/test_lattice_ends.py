"""One end of a bracket: as near as in a whole bracket, for less work."""

from typing import Any

import pytest

from accounting.events import Direction
from accounting.pld.certified_composition import epsilon_bracket, lower_epsilon
from accounting.pld.lattice import fft_convolution
from accounting.pld.lattice import lattice_bounds as engine
from accounting.pld.lattice.lattice_bounds import End, lattice_delta, lattice_epsilon
from accounting.pld.pairs import DensePair, DiscretePair, LaplacePair, Pair
from accounting.subsampling.replacement import (
    with_replacement_add_remove_pair,
    with_replacement_lower_pair,
)
from accounting.work_limit import limit_work

DELTA = 1e-5
WIDTH = 2e-4
STEPS = 14_000
BATCH: dict[str, Any] = {"noise_multiplier": 1.1, "batch_size": 256, "dataset_size": 60_000}
PAIRS: list[Pair] = [
    with_replacement_add_remove_pair(**BATCH), with_replacement_lower_pair(**BATCH, null=True)
]  # fmt: skip


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Points of each composition that is made."""
    sizes: list[int] = []

    def counted(units: Any, **given: Any) -> fft_convolution.Composition:
        sizes.append(given["frame"].size)
        return fft_convolution.compose(units, **given)

    monkeypatch.setattr(engine, "compose", counted)
    return sizes


@pytest.mark.parametrize(
    ("pair", "direction"),
    [(PAIRS[0], Direction.REMOVE), (PAIRS[1], Direction.REMOVE), (PAIRS[1], Direction.ADD)],
    ids=["upper-remove", "lower-remove", "lower-add"],
)
def test_one_end_is_as_near_as_in_a_bracket_for_less_work(
    pair: Pair, direction: Direction, composed: list[int]
) -> None:
    asked: dict[str, Any] = {"direction": direction, "delta": DELTA, "width": WIDTH}
    whole = lattice_epsilon([(pair, STEPS)], **asked)
    work = sum(composed)
    assert whole[1] - whole[0] <= WIDTH * whole[1]
    for end in End:
        composed.clear()
        ends = lattice_epsilon([(pair, STEPS)], **asked, only=end)
        assert ends[0] <= whole[1]
        assert whole[0] <= ends[1]
        assert ends[end] == pytest.approx(whole[end], rel=1e-5)
        assert sum(composed) < 0.7 * work


@pytest.mark.parametrize("pair", PAIRS, ids=["upper", "lower"])
def test_one_end_of_delta_is_as_near_as_in_a_bracket(pair: Pair, composed: list[int]) -> None:
    asked: dict[str, Any] = {"direction": Direction.REMOVE, "epsilon": 1.0, "width": WIDTH}
    whole = lattice_delta([(pair, STEPS)], **asked)
    work = sum(composed)
    for end in End:
        composed.clear()
        ends = lattice_delta([(pair, STEPS)], **asked, only=end)
        assert ends[0] <= whole[1]
        assert whole[0] <= ends[1]
        assert ends[end] == pytest.approx(whole[end], rel=WIDTH)
        assert sum(composed) < 0.7 * work


def test_where_a_lattice_meets_atoms_both_ends_say_how_near_it_is(composed: list[int]) -> None:
    units: list[tuple[Pair, int]] = [(LaplacePair(scale=3.0, sampling_probability=0.3), 50)]
    asked: dict[str, Any] = {"direction": Direction.ADD, "delta": DELTA, "width": 1e-3}
    whole = lattice_epsilon(units, **asked)
    sizes = composed.copy()
    for end in End:
        composed.clear()
        assert lattice_epsilon(units, **asked, only=end) == whole
        assert composed == sizes


def test_a_bracket_and_a_floor_of_one_end_are_those_of_both() -> None:
    units: list[tuple[Pair, int]] = [(PAIRS[0], STEPS)]
    both = epsilon_bracket(units, delta=DELTA)
    upper = epsilon_bracket(units, delta=DELTA, only=End.UPPER)
    assert upper.upper == pytest.approx(both.upper, rel=1e-5)
    assert upper.lower <= both.upper
    assert lower_epsilon(units, delta=DELTA) == pytest.approx(both.lower, rel=WIDTH)


@pytest.mark.parametrize("epsilon", [1.0, 100.0])
def test_what_lies_far_above_an_epsilon_is_not_composed_without_a_transform(epsilon: float) -> None:
    # Losses of about 600 nats: no sum of positive terms up to so little would have any mass.
    units: list[tuple[Pair, int]] = [
        (DensePair(first=(1.0, 0.0), second=(1 - 2.7e-7, 2.7e-7)), 252),
        (DensePair(first=(0.0, 1.0), second=(1 - 6.4e-14, 6.4e-14)), 20),
        (DiscretePair(first=(0.2, 0.8), second=(5 / 7, 2 / 7)), 30),
    ]
    with limit_work(2e8):
        low, high = lattice_delta(units, direction=Direction.REMOVE, epsilon=epsilon, width=2e-4)
    assert 0.99 < low < high == 1


def test_sums_of_products_take_no_lattice_that_is_finer_than_their_limit() -> None:
    # Atoms 8.1 nats below zero and 4.0 above: an exact lattice has thousands of points a step.
    pair = DiscretePair(first=(0.0003, 0.9997), second=(0.9826, 0.0174))
    with limit_work(2e7):
        low, high = lattice_delta(
            [(pair, 3253)], direction=Direction.REMOVE, epsilon=3209.0, width=2.5e-3
        )
    assert 0 <= low < high == 1
