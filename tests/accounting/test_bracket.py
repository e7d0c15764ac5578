import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from accounting.events import Direction
from accounting.gaussian import gaussian_delta, gaussian_epsilon
from accounting.pld import certified_composition, exact_search
from accounting.pld.certified_composition import (
    LATTICE_PAIRS_MAX,
    LATTICE_WIDTH,
    Bracket,
    Engine,
    delta_bracket,
    epsilon_bracket,
    lower_epsilon,
)
from accounting.pld.contour import real_moments
from accounting.pld.contour.contour_bounds import contour_epsilon
from accounting.pld.contour.inversion import NoDecayError
from accounting.pld.lattice.discretization import Lattice, laws
from accounting.pld.pairs import (
    DiscretePair,
    GaussianPair,
    LaplacePair,
    Pair,
    SampledGaussianPair,
    SymmetricPair,
    different_orders,
)

REMOVE, ADD = Direction
DELTA = 1e-5
Units = list[tuple[Pair, int]]

GAUSSIAN = GaussianPair(noise_multiplier=4.0)
SAMPLED = SampledGaussianPair(noise_multiplier=1.1, sampling_probability=0.01)
LAPLACE = LaplacePair(scale=3.0, sampling_probability=1.0)
SYMMETRIC = SymmetricPair(near=GAUSSIAN, far=GAUSSIAN, sampling_probability=0.1)
TWO_SIDED = LaplacePair(scale=2.0, sampling_probability=1.0)
UNKNOWN_MOMENTS = SymmetricPair(near=TWO_SIDED, far=TWO_SIDED, sampling_probability=0.1)
# Removed, a record is worth log 1.8 at most; added, log 5.
LOPSIDED = DiscretePair(first=(0.9, 0.1), second=(0.5, 0.5))
MIRRORED = DiscretePair(first=LOPSIDED.second, second=LOPSIDED.first)
TELLTALE = DiscretePair(first=(0.001, 0.999, 0.0), second=(0.0, 0.999, 0.001))
RESPONSE = DiscretePair(first=(0.7, 0.3), second=(0.3, 0.7))


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    certified_composition.forget_answers()
    yield
    certified_composition.forget_answers()


def unused(*_: object, **__: object) -> Any:
    raise AssertionError("This engine is not asked.")


@pytest.mark.parametrize(
    ("units", "engine"),
    [
        ([(GAUSSIAN, 7), (GaussianPair(noise_multiplier=2.0), 3)], Engine.CLOSED_FORM),
        ([(SAMPLED, 1)], Engine.CLOSED_FORM),
        ([(SYMMETRIC, 1)], Engine.CLOSED_FORM),
        ([(LOPSIDED, 40)], Engine.CLOSED_FORM),
        ([(LOPSIDED, 5), (RESPONSE, 3)], Engine.CLOSED_FORM),
        ([(SAMPLED, 200)], Engine.CONTOUR),
        ([(SAMPLED, 1000), (GAUSSIAN, 1)], Engine.CONTOUR),
        ([(GAUSSIAN, 1), (LOPSIDED, 4)], Engine.CONTOUR),
        ([(SYMMETRIC, 2)], Engine.LATTICE),
        ([(SYMMETRIC, 1), (GAUSSIAN, 1)], Engine.LATTICE),
    ],
)
def test_each_composition_goes_to_the_engine_the_rule_names(units: Units, engine: Engine) -> None:
    found = epsilon_bracket(units, delta=DELTA)
    assert found.engine is engine
    assert 0 < found.lower <= found.upper <= found.lower * (1 + 2 * LATTICE_WIDTH)
    back = delta_bracket(units, epsilon=found.upper)
    assert back.engine is engine
    assert 0 < back.lower <= back.upper
    assert back.lower <= DELTA
    assert delta_bracket(units, epsilon=found.lower).upper >= DELTA


def test_gaussians_alone_have_the_epsilon_of_their_joint_mu() -> None:
    units: Units = [(GAUSSIAN, 7), (GaussianPair(noise_multiplier=2.0), 3)]
    mu = math.sqrt(7 / 16 + 3 / 4)
    found = epsilon_bracket(units, delta=DELTA)
    assert found.lower <= gaussian_epsilon(DELTA, mu=mu) * (1 + 1e-13)
    assert found.upper >= gaussian_epsilon(DELTA, mu=mu) * (1 - 1e-13)
    assert found.upper - found.lower <= 1e-12
    assert lower_epsilon(units, delta=DELTA) == found.lower
    back = delta_bracket(units, epsilon=1.0)
    assert back.lower <= gaussian_delta(1.0, mu=mu) <= back.upper <= back.lower * (1 + 1e-10)


@pytest.mark.parametrize("others", [[], [(GAUSSIAN, 1)]], ids=["counts", "contour"])
def test_the_order_that_costs_more_decides_whichever_it_is(others: Units) -> None:
    forth: Units = [(LOPSIDED, 6), *others]
    back: Units = [(MIRRORED, 6), *others]
    one, other = (epsilon_bracket(units, delta=DELTA) for units in (forth, back))
    assert one.lower <= other.upper
    assert other.lower <= one.upper
    # By removal alone six answers tell at most 6 log 1.8, and adding tells nearly 6 log 5.
    assert lower_epsilon([(LOPSIDED, 6)], delta=DELTA) < 6 * math.log(1.8) < one.lower
    assert lower_epsilon(back, delta=DELTA) > 8
    deltas = [delta_bracket(units, epsilon=5.0) for units in (forth, back)]
    assert deltas[0].lower <= deltas[1].upper
    assert deltas[1].lower <= deltas[0].upper
    assert (
        deltas[0].lower
        > 100 * certified_composition._delta([(LOPSIDED, 6)], REMOVE, epsilon=5.0, width=1.0)[1]
    )


def test_a_floor_never_passes_its_bracket() -> None:
    compositions: list[Units] = [
        [(SAMPLED, 50)], [(LOPSIDED, 9)], [(MIRRORED, 9), (GAUSSIAN, 1)], [(LAPLACE, 1)]
    ]  # fmt: skip
    for units in compositions:
        assert 0 <= lower_epsilon(units, delta=DELTA) <= epsilon_bracket(units, delta=DELTA).upper


@pytest.mark.parametrize(
    ("pair", "same"),
    [
        (GAUSSIAN, True), (SYMMETRIC, True), (SAMPLED, False), (LAPLACE, True),
        (LaplacePair(scale=3.0, sampling_probability=0.5), False),
        (RESPONSE, True), (TELLTALE, True), (LOPSIDED, False),
    ],
)  # fmt: skip
def test_one_order_serves_only_where_both_are_the_same(pair: Pair, same: bool) -> None:
    both = (REMOVE, ADD)
    assert different_orders([pair]) == (both[:1] if same else both)
    assert different_orders([GAUSSIAN, pair]) == (both[:1] if same else both)


def test_the_second_order_is_composed_only_where_it_may_be_larger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Direction] = []
    real = contour_epsilon

    def spied(units: Any, direction: Direction, **given: Any) -> tuple[float, float]:
        asked.append(direction)
        return real(units, direction, **given)

    monkeypatch.setattr(certified_composition, "contour_epsilon", spied)
    epsilon_bracket([(SAMPLED, 300)], delta=DELTA)
    assert asked == [REMOVE]
    epsilon_bracket([(LOPSIDED, 6), (GAUSSIAN, 1)], delta=DELTA)
    assert asked == [REMOVE, REMOVE, ADD]


def test_a_delta_that_is_not_shown_to_be_small_is_not_said_to_be() -> None:
    units: Units = [(SAMPLED, 300)]
    for direction in Direction:
        low, high, _ = certified_composition._epsilon(units, direction, delta=DELTA, width=1e-8)
        assert certified_composition._within(units, direction, epsilon=high * 1.01, delta=DELTA)
        assert not certified_composition._within(units, direction, epsilon=low * 0.99, delta=DELTA)
        assert certified_composition._within(units, direction, epsilon=math.inf, delta=DELTA)
        # Counts and profiles are read to the end, not estimated.
        assert certified_composition._within(
            [(LOPSIDED, 1)], direction, epsilon=math.log(5.0) + 1e-9, delta=1e-9
        )
    assert not certified_composition._within(
        [(LOPSIDED, 1)], ADD, epsilon=math.log(5.0) - 1e-3, delta=1e-9
    )
    # Nothing is known of moments: more work must decide.
    assert not certified_composition._within([(UNKNOWN_MOMENTS, 2)], REMOVE, epsilon=1e3, delta=0.5)
    assert certified_composition._within([(SYMMETRIC, 2)], REMOVE, epsilon=1e3, delta=0.5)


def test_moments_alone_show_a_delta_far_out_to_be_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certified_composition, "contour_delta", unused)
    assert certified_composition._within([(SAMPLED, 300)], ADD, epsilon=50.0, delta=DELTA)
    # What tells all with some probability does so at every epsilon.
    failing: Units = [(SAMPLED, 300), (TELLTALE, 1)]
    assert certified_composition._within(failing, ADD, epsilon=80.0, delta=0.0011)
    with pytest.raises(AssertionError, match="not asked"):
        certified_composition._within(failing, ADD, epsilon=80.0, delta=0.00099)


def test_rough_units_show_that_the_second_order_is_the_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def spied(units: Any, direction: Direction, *, epsilon: float, delta: float) -> bool:
        seen.append((units, direction))
        return True

    monkeypatch.setattr(certified_composition, "_within", spied)
    rough = [(SampledGaussianPair(noise_multiplier=1.0, sampling_probability=0.01), 300)]
    epsilon_bracket([(SAMPLED, 300)], delta=DELTA, rough=rough)
    epsilon_bracket([(SAMPLED, 300)], delta=DELTA)
    assert seen == [(tuple(rough), ADD), (((SAMPLED, 300),), ADD)]


def test_rough_units_change_no_answer() -> None:
    rough = [(SampledGaussianPair(noise_multiplier=0.9, sampling_probability=0.02), 300)]
    plain = epsilon_bracket([(SAMPLED, 300)], delta=DELTA)
    assert epsilon_bracket([(SAMPLED, 300)], delta=DELTA, rough=rough) == plain


@pytest.mark.parametrize("read", ["epsilon", "delta"])
def test_brackets_that_do_not_meet_are_an_error(read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(*_: object, **__: object) -> tuple[float, float]:
        return 0.1, 0.5

    def apart(*_: object, **__: object) -> tuple[float, float]:
        return 0.6, 0.7

    monkeypatch.setattr(certified_composition, f"contour_{read}", wide)
    monkeypatch.setattr(certified_composition, f"lattice_{read}", apart)
    ask = {"delta": DELTA} if read == "epsilon" else {"epsilon": 1.0}
    question: Callable[..., Bracket] = getattr(certified_composition, f"{read}_bracket")
    with pytest.raises(ArithmeticError, match="do not meet"):
        question([(SAMPLED, 300)], **ask)
    with pytest.raises(ArithmeticError, match="do not meet"):
        certified_composition._both((0.0, math.nan), (0.0, 1.0))
    assert certified_composition._both((0.0, 2.0), (1.0, math.inf)) == (1.0, 2.0)


def test_a_wide_contour_is_narrowed_by_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    units: Units = [(SAMPLED, 300)]
    low, high, _ = certified_composition._epsilon(units, REMOVE, delta=DELTA, width=1e-8)
    monkeypatch.setattr(
        certified_composition, "contour_epsilon", lambda *_, **__: (low / 2, high * 2)
    )
    monkeypatch.setattr(
        certified_composition, "lattice_epsilon", lambda *_, **__: (low * 0.99, high * 1.01)
    )
    assert certified_composition._epsilon(units, REMOVE, delta=DELTA, width=1e-8) == (
        low * 0.99, high * 1.01, Engine.LATTICE,
    )  # fmt: skip
    tight = (low, low * (1 + LATTICE_WIDTH))
    monkeypatch.setattr(certified_composition, "contour_epsilon", lambda *_, **__: tight)
    monkeypatch.setattr(certified_composition, "lattice_epsilon", unused)
    assert certified_composition._epsilon(units, REMOVE, delta=DELTA, width=1e-8) == (
        *tight,
        Engine.CONTOUR,
    )


def test_moments_alone_give_a_finite_upper_end() -> None:
    for direction in Direction:
        upper = certified_composition.chernoff_epsilon([(SAMPLED, 300)], direction, DELTA)
        low, high, _ = certified_composition._epsilon(
            [(SAMPLED, 300)], direction, delta=DELTA, width=1e-8
        )
        assert low <= high < upper < 2 * high
    failing: Units = [(SAMPLED, 300), (TELLTALE, 1)]
    assert certified_composition.chernoff_epsilon(failing, REMOVE, 0.0011) < 50
    assert certified_composition.chernoff_epsilon(failing, REMOVE, 0.00099) == math.inf
    assert certified_composition.chernoff_epsilon([(UNKNOWN_MOMENTS, 2)], REMOVE, DELTA) == math.inf
    assert 0 < certified_composition.chernoff_epsilon([(SYMMETRIC, 2)], REMOVE, DELTA) < 1


def test_very_many_pairs_that_do_not_decay_are_left_to_their_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object, **__: object) -> tuple[float, float]:
        raise NoDecayError

    units: Units = [
        (SampledGaussianPair(noise_multiplier=1 + i / 1000, sampling_probability=0.01), 1)
        for i in range(LATTICE_PAIRS_MAX + 1)
    ]
    truth = epsilon_bracket(units, delta=DELTA)
    certified_composition.forget_answers()
    for name in ("contour_epsilon", "contour_delta"):
        monkeypatch.setattr(certified_composition, name, never)
    for name in ("lattice_epsilon", "lattice_delta"):
        monkeypatch.setattr(certified_composition, name, unused)
    found = epsilon_bracket(units, delta=DELTA)
    assert found.engine is Engine.CONTOUR
    assert (found.lower, True) == (0.0, truth.upper < found.upper < 2 * truth.upper)
    assert (delta_bracket(units, epsilon=1.0).lower, delta_bracket(units, epsilon=1.0).upper) == (
        0.0, 1.0,
    )  # fmt: skip
    # One pair less, or nothing known at all, and the lattice must say it.
    for fewer in (units[1:], [*units, (UNKNOWN_MOMENTS, 1)]):
        with pytest.raises(AssertionError, match="not asked"):
            epsilon_bracket(fewer, delta=DELTA)


def test_a_delta_no_less_than_the_total_variation_costs_nothing() -> None:
    assert epsilon_bracket([(RESPONSE, 1)], delta=0.41) == Bracket(0.0, 0.0, Engine.CLOSED_FORM)
    assert epsilon_bracket([(RESPONSE, 1)], delta=0.39).lower > 0
    # Where rounding alone decides, the lower end is zero and the upper next to it.
    edge = epsilon_bracket([(RESPONSE, 1)], delta=0.7 - 0.3)
    assert (edge.lower, edge.upper <= 1e-13) == (0.0, True)
    assert epsilon_bracket([(SAMPLED, 300)], delta=0.9).upper == 0.0


def test_infinite_losses_that_reach_delta_give_an_infinite_epsilon() -> None:
    units: Units = [(TELLTALE, 2)]
    assert epsilon_bracket(units, delta=0.0019).upper == math.inf
    assert epsilon_bracket(units, delta=0.0021).upper < 50
    assert delta_bracket(units, epsilon=60.0).upper >= 1 - 0.999**2


def test_a_profile_flat_at_delta_and_known_exactly_has_one_epsilon() -> None:
    def steps(epsilon: float) -> tuple[float, float]:
        value = 0.5 if epsilon < 1 else 0.25 if epsilon < 2 else 0.0
        return value, value

    assert exact_search.exact_epsilon(steps, 0.25) == (1.0, 1.0)
    low, high = exact_search.exact_epsilon(steps, 0.1)
    assert low < 2.0 == high
    assert exact_search.exact_epsilon(lambda _: (0.1, 0.2), 0.15) == (0.0, math.inf)


def test_an_answer_is_remembered_and_can_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    units: Units = [(SAMPLED, 40)]
    first = epsilon_bracket(units, delta=DELTA)
    assert epsilon_bracket(tuple(units), delta=DELTA) is first
    assert epsilon_bracket(units, delta=2 * DELTA) != first
    certified_composition.forget_answers()
    assert real_moments.log_moments.cache_info().currsize > 0
    again = epsilon_bracket(units, delta=DELTA)
    assert (again == first, again is first) == (True, False)
    certified_composition.forget()
    assert real_moments.log_moments.cache_info().currsize == 0
    assert epsilon_bracket(units, delta=DELTA) == first


def test_threads_get_the_answers_a_single_one_gets() -> None:
    def ask(count: int) -> tuple[Bracket, Bracket]:
        units: Units = [(SAMPLED, count % 5 + 200)]
        return epsilon_bracket(units, delta=DELTA), delta_bracket(units, epsilon=2.0)

    alone = [ask(count) for count in range(10)]
    certified_composition.forget()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(10))) == alone


def test_where_the_lattice_cannot_serve_either_real_moments_still_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> tuple[float, float]:
        raise ArithmeticError

    units = [(SampledGaussianPair(noise_multiplier=0.5, sampling_probability=1e-4), 7)]
    whole = epsilon_bracket(units, delta=1e-8), delta_bracket(units, epsilon=0.5)
    monkeypatch.setattr(certified_composition, "contour_epsilon", refuse_decay)
    monkeypatch.setattr(certified_composition, "contour_delta", refuse_decay)
    monkeypatch.setattr(certified_composition, "lattice_epsilon", refuse)
    monkeypatch.setattr(certified_composition, "lattice_delta", refuse)
    certified_composition.forget()
    rough = epsilon_bracket(units, delta=1e-8)
    assert (rough.lower, rough.upper > whole[0].lower) == (0.0, True)
    assert rough.upper < math.inf
    assert delta_bracket(units, epsilon=0.5).upper == 1.0
    certified_composition.forget()


def refuse_decay(*_: object, **__: object) -> tuple[float, float]:
    raise NoDecayError


def test_losses_beyond_any_double_are_refused_by_the_laws() -> None:
    pair = SampledGaussianPair(noise_multiplier=0.5, sampling_probability=0.1)
    beyond = Lattice(width=8.0, offset=0.0, bottom=0.0, first=0, last=100, bit=1.0)
    with pytest.raises(ArithmeticError, match="exponential"):
        laws(pair, direction=Direction.REMOVE, lattice=beyond, small=1e-5)
