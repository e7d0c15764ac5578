"""What several passes attain at their best play stays below every answer about their ledger."""

import math
from functools import partial

import numpy as np
import pytest

from accounting.accountants.best_bound import best_bound
from accounting.event_counts import count_events
from accounting.events import Event, Gaussian, NeighboringRelation, Reshuffle, Shuffle, Span
from accounting.gaussian import gaussian_delta
from accounting.guarantees import ACCEPTABLE
from accounting.privacy_profile import privacy_profile
from tests.accounting.batch_games import Action
from tests.accounting.several_passes import attained_in_passes

pytestmark = pytest.mark.no_cover  # of values; other tests reach the lines, and untraced it is fast

REPLACED: list[Action] = [(2, 0), (0, 2), (1, -1)]
NULL: list[Action] = [(2, 1), (1, 2), (1, 0), (0, 1)]
EPSILONS = np.array([0.0, 0.2, 1.0, 3.5])
REPLACE_ONE, REPLACE_SPECIAL = (
    NeighboringRelation.REPLACE_ONE,
    NeighboringRelation.REPLACE_SPECIAL,
)


def test_releases_attain_their_closed_form() -> None:
    # One batch and one step of it: a release of two records, but for a chance of 1e-9.
    value = attained_in_passes(
        1 + 1e-9, cells=(400,), noise=2.0, passes=3, actions=[(2, 0), (0, 2)], ratios=1200
    )
    exact = np.array([gaussian_delta(epsilon, mu=math.sqrt(3)) for epsilon in EPSILONS[:3]])
    found = value(np.exp(EPSILONS[:3]))
    assert np.all(found <= exact)
    np.testing.assert_allclose(found, exact, rtol=1e-3)


@pytest.mark.parametrize(
    ("sizes", "noise", "passes", "closest"),
    [
        ((5, 2, 1), 1.5, 1, 0.999),
        ((5, 2, 1), 1.5, 3, 0.7),
        ((8, 1, 1), 0.7, 2, 0.7),
        ((8, 3, 2), 0.7, 2, 0.7),
        ((40, 2, 2), 3.0, 2, 0.7),
    ],
)
def test_the_best_play_of_several_passes_stays_below_every_answer(
    sizes: tuple[int, int, int], noise: float, passes: int, closest: float
) -> None:
    records, batch, steps = sizes
    sampling = Shuffle(
        batch_size=batch,
        steps_per_pass=steps,
        reshuffle=Reshuffle.EACH_PASS,
        dataset_size=records,
    )
    event = Event(mechanism=Gaussian(noise_multiplier=noise), sampling=sampling)
    counts = count_events([[Span(event=event, steps=passes * steps)]])
    ratios = []
    for relation, actions in ((REPLACE_ONE, REPLACED), (REPLACE_SPECIAL, NULL)):
        value = attained_in_passes(
            records / batch,
            cells=(400,) if steps == 1 else (40,) * steps,
            noise=noise,
            passes=passes,
            actions=actions,
        )
        exact = value(np.exp(EPSILONS))
        said = privacy_profile(counts, relation=relation, epsilons=EPSILONS, accept=ACCEPTABLE)
        ratios.append(float(np.max(exact / said.upper)))
        for epsilon, delta in zip(EPSILONS[1:3].tolist(), exact[1:3].tolist(), strict=True):
            ask = partial(
                best_bound, counts, relation=relation, accept=ACCEPTABLE, with_lower=False
            )
            at_epsilon, at_delta = ask(epsilon=epsilon), ask(delta=delta)
            assert at_epsilon is not None
            assert at_delta is not None
            ratios += [delta / at_epsilon.delta, epsilon / at_delta.epsilon]
    print(f"{sizes} at {noise}, {passes} passes: attained over claimed {ratios}")  # noqa: T201
    assert closest < max(ratios) < 1
