"""Strangers' bytes: some thousand inputs for each target, and each that ever failed."""

from pathlib import Path

import pytest

from benchmarks.fuzz import REGRESSIONS, Found, execute, fuzz
from benchmarks.fuzz_targets import TARGETS, Broken, Target

EXECUTIONS = 1000  # benchmarks/fuzz.py makes as many as one likes
SEED = 8
KEPT = sorted(path for path in REGRESSIONS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_or_refuses_whatever_it_reads(name: str) -> None:
    found = fuzz(TARGETS[name], executions=EXECUTIONS, seed=SEED)
    assert [(outcome, body[:200]) for body, outcome in found.failures] == []
    assert found.executions == EXECUTIONS
    assert len(found.outcomes) >= 8  # the inputs reach further than the first refusal


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_as_it_should_be_is_accepted(name: str) -> None:
    outcomes = [TARGETS[name].run(seed) for seed in TARGETS[name].first()]
    assert name == "query" or any(outcome.startswith("accepted") for outcome in outcomes)


@pytest.mark.parametrize("path", [pytest.param(p, id=f"{p.parent.name}/{p.name}") for p in KEPT])
def test_an_input_that_failed_before_is_accepted_or_refused(path: Path) -> None:
    found = Found()
    execute(TARGETS[path.parent.name], path.read_bytes(), found)
    assert found.failures == []


def test_the_fuzzer_tells_a_crash_a_lost_step_and_a_hang() -> None:
    def failing(body: bytes) -> str:
        if body == b"\x00":
            raise KeyError("unexpected")
        if body == b"\x01":
            raise Broken("steps are lost")
        return "accepted"

    found = Found()
    for body in (b"\x00", b"\x01", b"\x02"):
        execute(Target(run=failing, seeds=(b"",)), body, found)
    assert [body for body, _ in found.failures] == [b"\x00", b"\x01"]


def test_an_input_that_takes_long_each_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def reading(body: bytes) -> str:
        read.append(body)
        return "read"

    found = Found()
    monkeypatch.setattr("benchmarks.fuzz.SECONDS_MAX", -1.0)
    execute(Target(run=reading, seeds=(b"",)), b"x", found)
    assert [outcome for _, outcome in found.failures] == ["took 0.0 s"]
    assert read == [b"x"] * 3


def test_the_same_seed_makes_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        inputs: list[bytes] = []

        def reading(body: bytes, to: list[bytes] = inputs) -> str:
            to.append(body)
            return "read"

        target = Target(run=reading, seeds=(b"[1, 2]",))
        fuzz(target, executions=200, seed=3)
        seen.append(inputs)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 100
