"""The best trainer against an envelope, exactly: Theorem 1 of docs/theory/envelopes.md attacked.

It attains the delta of all items together and never more. Rules that are almost the envelope's
are exceeded, and the same search finds it.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from accounting.pld.certified_composition import delta_bracket
from accounting.pld.pairs import SampledGaussianPair
from tests.accounting.envelope_games import (
    BOX,
    COIN,
    RARE,
    RESPONSE,
    TELLING,
    Array,
    Laws,
    Left,
    alone,
    attained,
    best_value,
    delta_of,
    epsilon_of,
    laws,
    mapped,
    mirrored,
    product,
    sampled_cells,
)

EPSILONS = (0.0, 0.2, 0.8, 1.5, 3.0)
CELLS = 31
WIDE = sampled_cells(rate=0.3, noise=0.8, cells=CELLS)
SHARP = sampled_cells(rate=0.05, noise=0.4, cells=CELLS)
FULL = sampled_cells(rate=1.0, noise=2.0, cells=CELLS)
GAMES = {
    "few outcomes": [RESPONSE, TELLING, BOX, RARE, COIN],
    "repeated": [TELLING, TELLING, BOX, COIN, COIN],
    "two sampled kinds": [WIDE, SHARP, SHARP],
    "sampled, full and told": [WIDE, FULL, TELLING],
}


def ratio_of(left: Left, items: Sequence[Laws], epsilon: float) -> float:
    """What the best trainer attains, as a multiple of what all items together are worth.

    One where both are nothing.
    """
    found, worth = attained(left, epsilon), delta_of(product(items), epsilon)
    return found / worth if worth else 1.0 + found


@pytest.mark.parametrize("name", GAMES)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_best_trainer_attains_the_product_and_no_more(name: str, backwards: bool) -> None:
    items = GAMES[name]
    if backwards:
        others = {id(pair): mirrored(pair) for pair in items}
        items = [others[id(pair)] for pair in items]
    ratios = [ratio_of(alone(items), items, epsilon) for epsilon in EPSILONS]
    print(f"{name}: {min(ratios) - 1:.1e} to {max(ratios) - 1:.1e}")  # noqa: T201
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) <= 1 + 1e-12


def weaker(pair: Laws, generator: np.random.Generator) -> Laws:
    """What some random map of the outcomes leaves."""
    size = len(pair[0])
    return mapped(pair, generator.dirichlet(np.full(3, 0.4), size))


def test_no_choice_of_covered_steps_after_a_look_exceeds_the_product() -> None:
    generator = np.random.default_rng(20240711)
    worst = 0.0
    for _ in range(60):
        chances = generator.dirichlet(np.full(3, 0.6), (3, 2))
        chances[0, 1, 0] = 0.0  # an infinite loss
        chances /= chances.sum(axis=-1, keepdims=True)
        items = [laws(p, q) for p, q in chances]
        left = tuple((one, weaker(one, generator), weaker(one, generator)) for one in items)
        for epsilon in (0.1, 0.7):
            worst = max(worst, ratio_of(left, items, epsilon))
    print(f"{worst - 1:.2e}")  # noqa: T201
    assert 1 - 1e-9 <= worst <= 1 + 1e-12


def test_a_smaller_rate_is_covered_and_a_larger_one_is_not() -> None:
    small, large = (sampled_cells(rate=rate, noise=0.8, cells=CELLS) for rate in (0.1, 0.3))
    for epsilon in EPSILONS:
        covered: Left = ((large, small), (FULL,), (COIN,))
        assert ratio_of(covered, [large, FULL, COIN], epsilon) <= 1 + 1e-12
        wrong: Left = ((small, large), (FULL,), (COIN,))
        assert ratio_of(wrong, [small, FULL, COIN], epsilon) > 1.05


def test_an_item_that_is_charged_twice_exceeds_the_envelope() -> None:
    for epsilon in EPSILONS:
        items = [RESPONSE, TELLING, COIN]
        twice = alone([*items, TELLING])
        assert ratio_of(twice, items, epsilon) > 1.02


def test_a_dearer_step_on_a_cheaper_item_exceeds_the_envelope() -> None:
    cheap = mapped(RESPONSE, np.array([[0.8, 0.2, 0.0], [0.2, 0.8, 0.0], [0.0, 0.0, 1.0]]))
    for epsilon in (0.0, 0.2, 0.5):
        assert ratio_of(((cheap, RESPONSE), (COIN,)), [cheap, COIN], epsilon) > 1.05
        assert ratio_of(((RESPONSE, cheap), (COIN,)), [RESPONSE, COIN], epsilon) <= 1 + 1e-12


def test_items_that_are_added_after_an_answer_exceed_each_envelope_that_results() -> None:
    # Whichever is added, all items together have a delta of at most .01 at epsilon 1.
    coin, tell = EVEN, ALL
    held = max(delta_of(product([RARE, one]), 1.0) for one in (coin, tell))
    after = attained(((RARE,),), 1.0)
    chosen = float(
        sum(
            p * max(best_value(alone([one]), np.array([math.e * q / p]))[0] for one in (coin, tell))
            for p, q in zip(*RARE, strict=True)
        )
    )
    print(f"{held:.6f} {chosen:.6f} {chosen / held:.3f}")  # noqa: T201
    assert after <= held <= 0.01 * (1 + 1e-12)
    assert chosen > 1.8 * held


Steps = tuple[int, ...]  # how often each kind was taken


def best_within(
    kinds: Sequence[Laws], admits: Callable[[Steps], bool], used: Steps, a: Array
) -> Array:
    """The best value of a trainer whose steps are admitted as long as their counts are."""
    value = np.maximum(1 - a, 0.0)
    for at, (p, q) in enumerate(kinds):
        after = (*used[:at], used[at] + 1, *used[at + 1 :])
        if admits(after):
            seen = p > 0
            following = np.outer(a, q[seen] / p[seen]).ravel()
            rest = best_within(kinds, admits, after, following).reshape(len(a), -1) @ p[seen]
            value = np.maximum(value, rest)
    return value


def either_of(*held: Steps) -> Callable[[Steps], bool]:
    """Counts that some list holds."""
    return lambda used: any(
        all(n <= most for n, most in zip(used, one, strict=True)) for one in held
    )


def delta_of_counts(kinds: Sequence[Laws], counts: Steps, epsilon: float) -> float:
    """The divergence of steps that are all taken."""
    pairs = [kind for kind, n in zip(kinds, counts, strict=True) for _ in range(n)]
    return delta_of(product(pairs), epsilon)


# After one answer of the first step EVEN is the dearer one, after the other ALL.
FAIR = laws((1 / (1 + math.exp(-0.475)), 1 / (1 + math.exp(0.475))), (0.5, 0.5))
EVEN = (FAIR[0], FAIR[0][::-1])
ALL = laws((0.01, 0.99, 0.0), (0.0, 0.99, 0.01))
KINDS = [RARE, EVEN, ALL, COIN]
LISTS = [((1, 1, 0, 0), (1, 0, 1, 0)), ((1, 1, 0, 1), (1, 0, 2, 1)), ((2, 1, 0, 0), (1, 0, 2, 0))]


def most_of_either(held: tuple[Steps, Steps], epsilon: float) -> float:
    """What the best trainer attains that either of two lists holds."""
    start = np.array([math.exp(epsilon)])
    return float(best_within(KINDS, either_of(*held), (0,) * len(KINDS), start)[0])


@pytest.mark.parametrize("held", LISTS)
def test_two_rules_of_which_either_may_hold_attain_at_most_the_sum_of_their_deltas(
    held: tuple[Steps, Steps],
) -> None:
    for epsilon in (*EPSILONS, 1.0):
        deltas = [delta_of_counts(KINDS, one, epsilon) for one in held]
        found = most_of_either(held, epsilon)
        print(f"{epsilon}: {found / max(deltas):.4f} of the larger")  # noqa: T201
        assert max(deltas) * (1 - 1e-9) <= found <= sum(deltas) * (1 + 1e-12)


def test_the_whole_delta_for_each_of_two_rules_is_exceeded() -> None:
    deltas = [delta_of_counts(KINDS, one, 1.0) for one in LISTS[0]]
    assert max(deltas) <= 0.01 * (1 + 1e-12)
    assert most_of_either(LISTS[0], 1.0) > 1.8 * 0.01


def test_a_rule_that_counts_outside_steps_alone_exceeds_the_sum() -> None:
    def admits(used: Steps) -> bool:
        return used[0] <= 2 and used[3] <= 3 and used[1] <= 0 and used[2] <= 0

    deltas = [delta_of_counts(KINDS, one, 1.0) for one in ((2, 0, 0, 0), (0, 0, 0, 3))]
    found = best_within(KINDS, admits, (0,) * len(KINDS), np.array([math.e]))
    print(f"{float(found[0]) / sum(deltas):.3f}")  # noqa: T201
    assert float(found[0]) > 1.04 * sum(deltas)


def test_the_items_used_when_a_run_stops_are_no_guarantee() -> None:
    delta = 0.01
    items = [RARE, TELLING, laws((0.12, 0.88), (0.06, 0.94))]

    def best(used: tuple[int, ...], ratio: Array) -> Array:
        reading = epsilon_of(product([items[at] for at in used]), delta)
        value = np.maximum(1 - math.exp(reading) * ratio, 0.0)
        for at, (p, q) in enumerate(items):
            if at not in used:
                seen = p > 0
                following = np.outer(ratio, q[seen] / p[seen]).ravel()
                rest = best((*used, at), following).reshape(len(ratio), -1) @ p[seen]
                value = np.maximum(value, rest)
        return value

    found = float(best((), np.ones(1))[0])
    print(f"{found / delta:.3f}")  # noqa: T201
    assert found > 1.2 * delta
    whole = epsilon_of(product(items), delta)
    assert attained(alone(items), whole) <= delta * (1 + 1e-9)


def test_a_sign_that_changes_exceeds_pairs_that_are_not_their_own_mirror_image() -> None:
    items = [WIDE, WIDE]
    left: Left = ((WIDE, mirrored(WIDE)),) * 2
    either = max(
        delta_of(product(one), 0.0) for one in (items, [WIDE, mirrored(WIDE)])
    )  # of one order for both, and of one for each
    found = attained(left, 0.0)
    print(f"{found / either:.4f}")  # noqa: T201
    assert found > 1.001 * either
    own = [RESPONSE, laws((0.7, 0.3), (0.3, 0.7))]
    assert all(delta_of(pair, 0.3) == pytest.approx(delta_of(mirrored(pair), 0.3)) for pair in own)
    signs = tuple((pair, mirrored(pair)) for pair in own)
    assert all(ratio_of(signs, own, epsilon) <= 1 + 1e-12 for epsilon in EPSILONS)


class Pass:
    """Two steps; one holds the record, and its place stays secret."""

    def __init__(self, step: Laws) -> None:
        with_record, without = step
        self.second = np.outer(without, without)
        self.first = 0.5 * (np.outer(with_record, without) + np.outer(without, with_record))
        self.without = without

    @property
    def whole(self) -> Laws:
        """The pair of the whole pass."""
        return self.first.ravel(), self.second.ravel()

    def next(self, answer: int | None) -> list[Laws]:
        """The step that comes, given the first answer; with and without a contribution."""
        if answer is None:
            return [(self.first.sum(axis=1), self.second.sum(axis=1))]
        chance = self.first[answer].sum()
        row = self.first[answer] / chance
        return [(row, self.without), (self.without, self.without)]


def best_of_passes(passes: tuple[tuple[Pass, int | None], ...], items: Left, a: float) -> float:
    """The best value where passes are open, and items may be used between their steps."""
    value = max(0.0, 1 - a)
    for at, (one, answer) in enumerate(passes):
        others = passes[:at] + passes[at + 1 :]
        for p, q in one.next(answer):
            following = [
                others if answer is not None else (*others, (one, y)) for y in range(len(p))
            ]
            value = max(
                value,
                math.fsum(
                    p[y] * best_of_passes(following[y], items, a * q[y] / p[y])
                    for y in range(len(p))
                    if p[y] > 0
                ),
            )
    for at, (pair,) in enumerate(items):
        rest = items[:at] + items[at + 1 :]
        value = max(
            value,
            math.fsum(
                x * best_of_passes(passes, rest, a * y / x)
                for x, y in zip(*pair, strict=True)
                if x > 0
            ),
        )
    return value


def test_open_passes_and_steps_between_theirs_attain_their_product() -> None:
    passes = [Pass(laws((0.7, 0.3), (0.35, 0.65))), Pass(laws((0.1, 0.9), (0.0, 1.0)))]
    begin = tuple((one, None) for one in passes)
    pairs = [*(one.whole for one in passes), COIN]
    for epsilon in (0.0, 0.2, 0.6):
        found = best_of_passes(begin, alone([COIN]), math.exp(epsilon))
        exact = delta_of(product(pairs), epsilon)
        print(f"{found / exact - 1:.1e}")  # noqa: T201
        assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-12)


def test_what_is_certified_of_sampled_gaussians_is_what_cells_come_close_to() -> None:
    units = [
        (SampledGaussianPair(noise_multiplier=0.8, sampling_probability=0.3), 1),
        (SampledGaussianPair(noise_multiplier=0.4, sampling_probability=0.05), 2),
    ]
    fine = product([
        sampled_cells(rate=0.3, noise=0.8, cells=201),
        *2 * [sampled_cells(rate=0.05, noise=0.4, cells=201)],
    ])  # fmt: skip
    for epsilon, coarse in ((0.2, 0.133660), (0.8, 0.064585), (1.5, 0.031187)):
        found = delta_bracket(units, epsilon=epsilon)
        told = attained(alone([WIDE, SHARP, SHARP]), epsilon)
        print(f"{found.lower:.6f} {found.upper:.6f} {told / found.upper:.5f}")  # noqa: T201
        # Cells tell less than the answer itself; the numbers of `coarse` were found with others.
        assert 0.97 * found.upper <= told < coarse < found.lower
        assert (1 - 1e-3) * found.upper <= delta_of(fine, epsilon) <= found.upper
