import ast
import copy
import math
import pickle
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import dpledger_client as dp
import numpy as np
import pytest
from dpledger_client import sampling_check
from dpledger_client.sampling_check import Evidence, log_e_values, observe, start, verdict

CLIENT = Path(__file__).parents[2] / "client"
Sampling = dict[str, Any]
POISSON = {"kind": "poisson", "sampling_probability": 0.1}
CAPPED = {"kind": "truncated_poisson", "sampling_probability": 0.1, "max_batch_size": 9}
BALLS = {"kind": "balls_and_bins", "steps_per_pass": 10}
ALLOCATION = {"kind": "random_allocation", "steps_per_pass": 10, "participations": 3}


def after(sampling: Sampling, n: int, sizes: Sequence[int]) -> Evidence:
    evidence = start(sampling, dataset_size=n)
    for size in sizes:
        evidence = observe(evidence, size)
    return evidence


def is_contradicted(sampling: Sampling, n: int, sizes: Sequence[int]) -> bool:
    return log_e_values(after(sampling, n, sizes))["mixture"] == math.inf


def allocation(random: np.random.Generator) -> list[int]:
    chosen = random.random((100, 10)).argpartition(2, axis=1)[:, :3]
    return list(map(int, np.bincount(chosen.ravel(), minlength=10)))


@pytest.mark.parametrize(
    ("sampling", "draw"),
    [
        (POISSON, lambda random: random.binomial(100, 0.1, 30).tolist()),
        (CAPPED, lambda random: np.minimum(random.binomial(100, 0.1, 30), 9).tolist()),
        (BALLS, lambda random: random.multinomial(100, [0.1] * 10, 3).ravel().tolist()),
        (ALLOCATION, lambda random: [size for _ in range(3) for size in allocation(random)]),
    ],
    ids=["poisson", "truncated_poisson", "balls_and_bins", "random_allocation"],
)
def test_false_alarms_are_rarer_than_the_level(
    sampling: Sampling, draw: Callable[[np.random.Generator], list[int]]
) -> None:
    random, runs = np.random.default_rng(7), 500
    ends = [after(sampling, 100, draw(random)) for _ in range(runs)]
    for level in (0.2, 0.05, 0.01):
        alarms = sum(verdict(evidence, level=level) == "refuted" for evidence in ends)
        assert alarms <= level * runs


@pytest.mark.parametrize(
    ("sampling", "n", "sizes"),
    [
        (dp.fixed_size(batch_size=64), 1000, [64] * 40),
        (dp.full(), 1000, [1000] * 40),
        (dp.shuffle(batch_size=64, steps_per_pass=16), 1000, ([64] * 15 + [40]) * 3),
        (dp.shuffle(batch_size=64, reshuffle="once", steps_per_pass=2), 128, [64] * 5),
        (dp.shuffle(batch_size=64, steps_per_pass=15), 1000, [64] * 50),
        (dp.shuffle(batch_size=64, steps_per_pass=3), 1000, [64] * 50),
        (dp.cyclic(batch_size=64, steps_per_pass=16), 1000, ([64] * 15 + [40]) * 3),
        ({"kind": "balls_and_bins", "steps_per_pass": 1}, 50, [50] * 3),
        ({"kind": "random_allocation", "steps_per_pass": 4, "participations": 4}, 50, [50] * 9),
        (dp.poisson(sampling_probability=1), 50, [50] * 9),
        ({**CAPPED, "sampling_probability": 1.0}, 50, [9] * 9),
    ],
)
def test_certain_sizes_are_no_evidence_and_any_other_is_a_contradiction(
    sampling: Sampling, n: int, sizes: list[int]
) -> None:
    evidence = after(sampling, n, sizes)
    assert log_e_values(evidence) == {"mixture": 0.0}
    assert verdict(evidence, level=0.5) == "not refuted"
    for wrong in {0, 1, sizes[0] - 1, sizes[0] + 1, n + 1} - {sizes[0]}:
        assert is_contradicted(sampling, n, [wrong])
        assert is_contradicted(sampling, n, [*sizes[:2], wrong])


@pytest.mark.parametrize(
    ("sampling", "n", "sizes"),
    [
        (dp.shuffle(batch_size=64, steps_per_pass=16), 1000, [64] * 16),
        (dp.shuffle(batch_size=64, steps_per_pass=15), 1000, [64] * 15 + [40]),
        (POISSON, 100, [101]),
        (CAPPED, 100, [10]),
        (BALLS, 100, [60, 41]),
        (BALLS, 100, [10] * 9 + [9]),
        (ALLOCATION, 100, [30] * 9 + [31]),
        (ALLOCATION, 100, [101]),
        (ALLOCATION, 100, [1, 1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_an_impossible_size_is_a_contradiction(
    sampling: Sampling, n: int, sizes: list[int]
) -> None:
    assert not is_contradicted(sampling, n, sizes[:-1])
    evidence = after(sampling, n, sizes)
    assert set(log_e_values(evidence).values()) == {math.inf}
    assert verdict(evidence, level=1e-300) == "refuted"


def test_a_contradiction_stays() -> None:
    evidence = after(CAPPED, 100, [10, 9, 9, 8, 0])
    assert verdict(evidence, level=1e-300) == "refuted"
    assert set(log_e_values(evidence).values()) == {math.inf}


def test_a_verdict_stays_though_evidence_may_fall() -> None:
    random = np.random.default_rng(0)
    evidence = after(POISSON, 100, [10] * 10)
    assert verdict(evidence, level=1e-3) == "refuted"
    for size in random.binomial(100, 0.1, 200).tolist():
        evidence = observe(evidence, size)
    assert log_e_values(evidence)["mixture"] < math.log(1e3)
    assert verdict(evidence, level=1e-3) == "refuted"


def test_the_mixture_is_the_average() -> None:
    values = log_e_values(after(POISSON, 100, [9, 9, 10, 12, 9]))
    mixture = math.exp(values.pop("mixture"))
    assert len(values) == 17  # no probability has a mean four standard deviations lower
    assert mixture == pytest.approx(sum(map(math.exp, values.values())) / 17, rel=1e-12)


def test_rounding_takes_evidence_away_and_hardly_any() -> None:
    # A bet that waits has a factor of 1, so all of what is missing was taken off.
    values = log_e_values(after(POISSON, 100, [9, 8, 7]))
    assert -1e-11 < values["cut at the maximum"] < 0


def test_there_is_no_evidence_at_the_start() -> None:
    values = log_e_values(start(POISSON, dataset_size=100))
    assert set(values.values()) == {0.0}


def test_one_participation_is_balls_in_bins() -> None:
    sizes, single = [11, 9, 10, 10, 8, 12, 10, 10, 9, 11, 7], {**ALLOCATION, "participations": 1}
    assert log_e_values(after(single, 100, sizes)) == log_e_values(after(BALLS, 100, sizes))


def test_an_expected_batch_size_is_a_probability() -> None:
    by_size, sizes = dp.poisson(expected_batch_size=10), [9, 9, 12]
    assert log_e_values(after(by_size, 100, sizes)) == log_e_values(after(POISSON, 100, sizes))


def test_a_cap_that_no_batch_reaches_is_none() -> None:
    loose, sizes = {**CAPPED, "max_batch_size": 100}, [9, 9, 12]
    assert log_e_values(after(loose, 100, sizes)) == log_e_values(after(POISSON, 100, sizes))


def test_empty_batches_are_steps() -> None:
    rare = {"kind": "poisson", "sampling_probability": 1e-3}
    evidence = after(rare, 1000, [0, 1, 0, 0, 2, 1, 0])
    assert verdict(evidence, level=0.1) == "not refuted"
    assert verdict(after(rare, 1000, [0] * 40), level=1e-6) == "refuted"


def test_an_observation_changes_nothing_that_was() -> None:
    before = after(POISSON, 100, [9, 9])
    values = log_e_values(before)
    assert observe(before, 9) is not before
    assert log_e_values(before) == values


@pytest.mark.parametrize("size", [-1, 1.0, "3", None, True, np.bool_(True), math.nan])
def test_a_size_that_is_no_count_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"size must be an integer >= 0"):
        observe(start(POISSON, dataset_size=100), size)


def test_counts_of_array_libraries_are_counts() -> None:
    assert log_e_values(after(POISSON, 100, [np.int64(9)])) == log_e_values(  # type: ignore[list-item]
        after(POISSON, 100, [9])
    )


@pytest.mark.parametrize("level", [0, 1, -0.1, 2, math.nan, math.inf])
def test_a_level_that_is_no_chance_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\)"):
        verdict(start(POISSON, dataset_size=100), level=level)


@pytest.mark.parametrize("dataset_size", [None, 0, -5, 2.5, True, 10**12 + 1])
def test_a_dataset_size_is_needed(dataset_size: Any) -> None:
    with pytest.raises(
        ValueError, match=r"dataset_size must be an integer in \[1, 1000000000000\]"
    ):
        start(POISSON, dataset_size=dataset_size)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({}, "kind must be one of full, poisson"),
        (dp.unknown(), "kind must be one of full, poisson"),
        ({"kind": "poisson"}, "sampling_probability must be a number in [1e-12, 1]"),
        ({**POISSON, "expected_batch_size": 9.0}, "not both"),
        ({**POISSON, "max_batch_size": 9}, "max_batch_size must not be given with poisson"),
        ({"kind": "poisson", "sampling_probability": 0.0}, "sampling_probability must"),
        ({"kind": "poisson", "sampling_probability": 1.1}, "sampling_probability must"),
        ({"kind": "poisson", "sampling_probability": math.nan}, "sampling_probability must"),
        ({"kind": "poisson", "sampling_probability": True}, "sampling_probability must"),
        ({"kind": "poisson", "sampling_probability": "0.1"}, "sampling_probability must"),
        ({"kind": "poisson", "expected_batch_size": 101}, "must be a number in [1e-06, 100]"),
        ({**CAPPED, "max_batch_size": 0}, "max_batch_size must be an integer in [1, "),
        ({**POISSON, "kind": "truncated_poisson"}, "max_batch_size must be an integer in [1, "),
        ({"kind": "fixed_size"}, "batch_size must be an integer in [1, 100]"),
        ({"kind": "fixed_size", "batch_size": 101}, "batch_size must be an integer in [1, 100]"),
        (
            {"kind": "shuffle", "batch_size": 64.0, "steps_per_pass": 938},
            "batch_size must be an integer in [1, 100]",
        ),
        (
            {"kind": "shuffle", "batch_size": 9, "reshuffle": "never", "steps_per_pass": 6667},
            "reshuffle must",
        ),
        (
            dp.shuffle(batch_size=30, steps_per_pass=5),
            "steps_per_pass must be an integer in [1, 4]",
        ),
        ({"kind": "balls_and_bins"}, "steps_per_pass must be an integer in [1, "),
        ({**BALLS, "participations": 2}, "participations must not be given with balls_and_bins"),
        ({**ALLOCATION, "participations": 11}, "participations must be an integer in [1, 10]"),
        ({**BALLS, "kind": "random_allocation"}, "participations must be an integer in [1, 10]"),
    ],
)
def test_what_cannot_be_tested_is_refused_by_name(sampling: Sampling, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        start(sampling, dataset_size=100)


def test_evidence_shows_nothing() -> None:
    evidence = after(POISSON, 100, [9, 14])
    assert f"{evidence!r} {evidence}" == "Evidence(private) Evidence(private)"


@pytest.mark.parametrize("leak", [pickle.dumps, copy.copy, copy.deepcopy])
def test_evidence_cannot_be_stored(leak: Callable[[Evidence], object]) -> None:
    with pytest.raises(TypeError, match="private"):
        leak(after(POISSON, 100, [9, 14]))


def test_nothing_but_arithmetic_is_imported() -> None:
    arithmetic = {"collections", "dataclasses", "math", "numbers", "operator", "typing"}
    own = "dpledger_client.sampling_check"
    assert arithmetic <= sys.stdlib_module_names
    for path in (CLIENT / "dpledger_client" / "sampling_check").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not isinstance(node, ast.Name) or node.id not in {"print", "open"}
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= arithmetic
            elif isinstance(node, ast.ImportFrom):
                module = str(node.module)
                assert module.split(".")[0] in arithmetic or module.startswith(own)


def test_the_example_of_the_readme_runs() -> None:
    readme = (CLIENT / "README.md").read_text(encoding="utf-8")
    (example,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
        if "sampling_check" in code
    )
    random = np.random.default_rng(0)
    taken: list[range] = []

    def train(batches: list[range]) -> None:
        exec(example, {"batches": batches, "train_on": taken.append})  # noqa: S102

    train([range(size) for size in random.binomial(60_000, 256 / 60_000, 50).tolist()])
    assert len(taken) == 50
    taken.clear()
    with pytest.raises(RuntimeError, match="declared"):
        train([range(256)] * 50)
    assert len(taken) < 10
    assert sampling_check.__doc__ is not None
