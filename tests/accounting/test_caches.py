import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from accounting.gaussian import (
    MU_MAX,
    MU_MIN,
    gaussian_bracket_delta,
    gaussian_bracket_epsilon,
    gaussian_delta,
    gaussian_epsilon,
)
from accounting.rounding import Array, crossing
from accounting.work_limit import ByteCache


def block(kilobytes: int) -> Array:
    return np.zeros(kilobytes * 128)


def put(cache: ByteCache[Array], key: object, value: Array) -> bool:
    """Ask for a key with a value to make; whether it was made."""
    return cache.found(key, lambda: value) is value


def test_a_cache_holds_what_was_used_last_up_to_its_limit() -> None:
    cache: ByteCache[Array] = ByteCache(3072)
    for key in "abc":
        assert put(cache, key, block(1))
    assert cache.nbytes == 3072
    assert not put(cache, "a", block(1))  # now b was used longest ago
    assert put(cache, "d", block(1))
    assert [put(cache, key, block(1)) for key in "acdb"] == [False, False, False, True]
    assert cache.nbytes == 3072


def test_a_value_beyond_the_limit_is_not_held() -> None:
    cache: ByteCache[Array] = ByteCache(1024)
    put(cache, "a", block(1))
    put(cache, "b", block(2))
    assert cache.nbytes == 0
    assert put(cache, "a", block(1))
    cache.clear()
    assert cache.nbytes == 0
    assert put(cache, "a", block(1))


def test_threads_leave_the_count_of_bytes_right() -> None:
    cache: ByteCache[Array] = ByteCache(8192)
    gate = threading.Barrier(4)

    def work(seed: int) -> None:
        gate.wait()
        for i in range(500):
            put(cache, (seed + i) % 13, block(1 + i % 3))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    none = block(0)
    held = [cache.found(key, lambda: none) for key in range(13)]
    assert cache.nbytes == sum(value.nbytes for value in held) <= 8192


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 7.0, 100.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.3])
def test_a_gaussian_bracket_is_tight_on_both_sides(mu: float, delta: float) -> None:
    lower, upper = gaussian_bracket_epsilon(delta, mu=(mu, mu))
    assert upper == gaussian_epsilon(delta, mu=mu)
    assert 0 <= lower <= upper <= lower + 1e-8 * upper + 1e-300
    if lower:
        assert gaussian_bracket_delta(lower * (1 - 1e-9), mu=(mu, mu))[0] >= delta * (1 - 1e-12)
    below, above = gaussian_bracket_delta(upper, mu=(mu, mu))
    assert above == gaussian_delta(upper, mu=mu)
    assert 0 <= below <= above <= max(delta, gaussian_delta(0.0, mu=mu)) * (1 + 1e-9)
    assert above - below <= 1e-8 * above


def test_each_end_of_a_bracket_takes_its_own_end_of_mu() -> None:
    lower, upper = gaussian_bracket_epsilon(1e-5, mu=(1.0, 2.0))
    assert lower == gaussian_bracket_epsilon(1e-5, mu=(1.0, 1.0))[0] < upper
    assert upper == gaussian_epsilon(1e-5, mu=2.0)
    below, above = gaussian_bracket_delta(1.0, mu=(1.0, 2.0))
    assert below == gaussian_bracket_delta(1.0, mu=(1.0, 1.0))[0] < above
    assert above == gaussian_delta(1.0, mu=2.0)


@pytest.mark.parametrize("low", [0.0, MU_MIN, MU_MAX])
def test_out_of_range_nothing_is_known_below(low: float) -> None:
    high = 2 * low
    assert gaussian_bracket_epsilon(1e-5, mu=(low, high)) == (0.0, gaussian_epsilon(1e-5, mu=high))
    assert gaussian_bracket_delta(1.0, mu=(low, high)) == (0.0, gaussian_delta(1.0, mu=high))


def test_a_crossing_has_been_evaluated_on_both_sides() -> None:
    seen: dict[float, bool] = {}

    def holds(x: float) -> bool:
        seen[x] = x > 1 / 3
        return seen[x]

    below, above = crossing(holds, low=0.0, high=1.0)
    assert (seen[below], seen[above]) == (False, True)
    assert above - below <= 1e-15
    assert crossing(lambda x: x >= 1.0, low=0.0, high=1.0)[0] >= 1 - 2e-15
    # Where everything above the low end holds, the low end is all that is known to fail.
    assert crossing(lambda x: x > 0, low=0.0, high=1.0)[0] == 0.0
    with pytest.raises(ValueError, match="No value"):
        crossing(lambda _: False, low=0.0, high=1.0)
