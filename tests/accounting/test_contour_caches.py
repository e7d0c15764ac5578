"""What the contour engine remembers: by value, within bytes, and the same from every thread."""

import dataclasses
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from accounting.events import Direction
from accounting.pld.contour import complex_moments, tilted_grids
from accounting.pld.contour.complex_moments import line_of
from accounting.pld.contour.contour_bounds import contour_epsilon
from accounting.pld.contour.real_moments import LADDER, log_moments
from accounting.pld.contour.tilted_grids import grid_of, scan_of
from accounting.pld.pairs import GaussianPair, LaplacePair, Pair, SampledGaussianPair, Units
from accounting.work_limit import ByteCache

REMOVE, ADD = Direction.REMOVE, Direction.ADD
WIDTH = 1e-6


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    complex_moments.forget()
    log_moments.cache_clear()


def sampled(sigma: float, q: float) -> SampledGaussianPair:
    return SampledGaussianPair(noise_multiplier=sigma, sampling_probability=q)


@dataclasses.dataclass(frozen=True)
class Block:
    """A value of a given size."""

    nbytes: int


def test_a_cache_drops_what_was_used_longest_ago_by_bytes() -> None:
    cache: ByteCache[Block] = ByteCache(100)
    made: list[str] = []

    def ask(key: str, size: int) -> None:
        def make() -> Block:
            made.append(key)
            return Block(size)

        cache.found(key, make)

    for key, size in (("a", 40), ("b", 40), ("a", 40), ("c", 50)):  # b is used longest ago
        ask(key, size)
    assert (made, cache.nbytes) == (["a", "b", "c"], 90)
    ask("a", 40)
    ask("b", 40)  # which takes the place of c
    assert (made, cache.nbytes) == (["a", "b", "c", "b"], 80)
    ask("huge", 101)
    assert cache.nbytes == 0
    ask("a", 40)
    cache.clear()
    assert cache.nbytes == 0


def test_equal_pairs_share_a_line_and_no_others_do() -> None:
    def at(pair: Pair, direction: Direction = REMOVE, nodes: int = 16) -> complex_moments.Line:
        return line_of(pair, direction, order=1.0, spacing=0.25, nodes=nodes)

    order = float(LADDER[60])
    forth = line_of(sampled(2.0, 0.5), REMOVE, order=order, spacing=0.25, nodes=16)
    back = line_of(sampled(2.0, 0.5), ADD, order=order, spacing=0.25, nodes=16)
    assert forth.log_moment != back.log_moment
    assert at(GaussianPair(noise_multiplier=2.0)) is at(GaussianPair(noise_multiplier=2.0))
    assert at(GaussianPair(noise_multiplier=2.0)) is not at(GaussianPair(noise_multiplier=2.5))
    laplace = LaplacePair(scale=2.0, sampling_probability=1.0)
    assert at(GaussianPair(noise_multiplier=2.0)).log_moment != at(laplace).log_moment
    one, other = sampled(2.0, 0.5), sampled(2.0, math.nextafter(0.5, 1))
    assert scan_of(one, REMOVE, order) is scan_of(one, REMOVE, order)
    assert scan_of(one, REMOVE, order) is not scan_of(one, ADD, order)
    assert scan_of(one, REMOVE, order) is not scan_of(other, REMOVE, order)
    assert grid_of(one, REMOVE, order, 1.9) is grid_of(one, REMOVE, order, 2.0)
    assert grid_of(one, REMOVE, order, 1.9) is not grid_of(one, REMOVE, order, 2.1)
    assert complex_moments._LINES.nbytes > 0
    assert tilted_grids._GRIDS.nbytes > 0
    complex_moments.forget()
    assert (
        complex_moments._LINES.nbytes
        == tilted_grids._GRIDS.nbytes
        == tilted_grids._SCANS.nbytes
        == 0
    )


def test_threads_find_the_same_bits_as_one_alone() -> None:
    jobs = [([(sampled(1.0 + 0.1 * (i % 4), 0.01), 800)], [REMOVE, ADD][i % 2]) for i in range(16)]

    def run(job: tuple[Units, Direction]) -> tuple[float, float]:
        return contour_epsilon(job[0], job[1], delta=1e-5, width=WIDTH)

    alone = [run(job) for job in jobs]
    complex_moments.forget()
    log_moments.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, jobs)) == alone
