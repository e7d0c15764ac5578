"""A cache gives the value of the present version, works once for all who wait, and is bounded."""

import threading
import time

import pytest

from service.storage import versioned_cache
from service.storage.versioned_cache import VersionedCache


def test_a_value_serves_until_its_version_is_another() -> None:
    cache: VersionedCache[str] = VersionedCache(2)
    assert cache.get("key", 1) is None
    cache.put("key", 1, "one")
    assert cache.compute("key", 1, lambda: "never") == "one"
    assert cache.get("key", 2) is None
    assert cache.compute("key", 2, lambda: "two") == "two"
    assert (cache.get("key", 1), cache.get("key", 2)) == (None, "two")


def test_another_version_serves_a_reader_that_allows_its_age() -> None:
    cache: VersionedCache[str] = VersionedCache(2)
    cache.put("key", 1, "one")
    assert cache.get("key", 2, age_max=60.0) == "one"
    assert cache.get("key", 2, age_max=0.0) is None
    time.sleep(0.01)
    assert cache.get("key", 2, age_max=0.005) is None
    assert cache.compute("key", 2, lambda: "two", age_max=60.0) == "one"


def test_in_a_shared_cache_it_serves_no_longer_than_its_work_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache: VersionedCache[str] = VersionedCache(2, shared=True)
    cache.put("key", 1, "one", seconds=0.0)
    assert cache.get("key", 2, age_max=60.0) is None
    cache.put("key", 1, "one", seconds=10.0)
    assert cache.get("key", 2, age_max=60.0) == "one"
    monkeypatch.setattr(versioned_cache, "SHARED", 0)
    assert cache.get("key", 2, age_max=60.0) is None
    assert cache.get("key", 1) == "one"


def test_the_values_used_last_are_kept_and_no_more_than_its_size() -> None:
    cache: VersionedCache[int] = VersionedCache(3)
    for number in range(3):
        cache.put(number, 0, number + 1)
    assert cache.get(0, 0) == 1
    cache.compute(3, 0, lambda: 4)
    assert [cache.get(number, 0) for number in range(4)] == [1, None, 3, 4]
    assert len(cache) == 3


def test_of_threads_that_want_the_same_one_works_and_all_have_its_value() -> None:
    cache: VersionedCache[object] = VersionedCache(2)
    works: list[int] = []
    found: list[object] = []
    together = threading.Barrier(4)

    def work() -> object:
        works.append(1)
        time.sleep(0.05)
        return object()

    def ask() -> None:
        together.wait()
        found.append(cache.compute("key", 1, work))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(works), len(found), len(set(map(id, found)))) == (1, 4, 1)


def test_threads_that_want_different_values_do_not_wait_for_one_another() -> None:
    cache: VersionedCache[str] = VersionedCache(2)
    waits = threading.Event()

    def slow() -> str:
        assert waits.wait(30)
        return "slow"

    thread = threading.Thread(target=lambda: cache.compute("slow", 1, slow))
    thread.start()
    assert cache.compute("quick", 1, lambda: "quick") == "quick"
    assert cache.get("slow", 1) is None
    waits.set()
    thread.join()
    assert cache.get("slow", 1) == "slow"


def test_work_that_fails_leaves_no_value_and_is_tried_again() -> None:
    cache: VersionedCache[str] = VersionedCache(2)

    def fail() -> str:
        raise RuntimeError("failed")

    cache.put("key", 1, "one")
    with pytest.raises(RuntimeError, match="failed"):
        cache.compute("key", 2, fail)
    assert cache.get("key", 2) is None
    assert cache.compute("key", 2, lambda: "two") == "two"
