"""Fuzz what reads strangers' bytes, and the HTTP interface by its own OpenAPI document.

    python benchmarks/fuzz.py all --executions 1000000
    python benchmarks/fuzz.py lines --executions 100000 --seed 7
    python benchmarks/fuzz.py schemathesis --requests 20000

An execution fails that raises anything but a refusal, takes longer than a second, or breaks a
property of what was accepted: what is read is read the same from its canonical form. An input that
fails is written to tests/fuzz/regressions, which every run of the tests reads again.
"""

import argparse
import hashlib
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.fuzz_targets import TARGETS, Target
from benchmarks.mutations import mutated

REGRESSIONS: Final = Path(__file__).resolve().parents[1] / "tests" / "fuzz" / "regressions"
SECONDS_MAX: Final = 1.0  # of processor time, for one input
_FAILED: Final = "failed: "
KEPT_MAX: Final = 2000  # inputs with an outcome of their own, from which others are made
GROWTH_MAX: Final = 64.0  # MiB, between a tenth of the executions and the last one
FAILURES_MAX: Final = 20


@dataclass(slots=True)
class Found:
    """What came of a target's executions."""

    executions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[bytes, str]] = field(default_factory=list)
    slowest: float = 0.0  # seconds of processor time
    seconds: float = 0.0
    growth: float = 0.0  # MiB of memory


def fuzz(target: Target, *, executions: int, seed: int) -> Found:
    """Execute a target on inputs that follow from the seed alone.

    Inputs that led to an outcome not seen before are kept, and others are made from them.
    """
    chance, found, began = random.Random(seed), Found(), time.perf_counter()
    first = target.first()
    seeds, early = list(first), 0.0
    for number in range(executions):
        if number == executions // 10:
            early = _memory()
        body = first[number] if number < len(first) else mutated(chance, seeds)
        outcome = execute(target, body, found)
        if outcome not in found.outcomes and len(seeds) < KEPT_MAX:
            seeds.append(body)
        found.outcomes[outcome] += 1
        if len(found.failures) >= FAILURES_MAX:
            break
    found.growth = _memory() - early
    found.seconds = time.perf_counter() - began
    return found


def execute(target: Target, body: bytes, found: Found) -> str:
    """What a target says of an input; a failure is noted."""
    found.executions += 1
    outcome, spent = _run(target, body)
    if spent > SECONDS_MAX:  # machines are shared: what takes long does so each time
        spent = min(spent, *(_run(target, body)[1] for _ in range(2)))
    if outcome.startswith(_FAILED) and outcome not in found.outcomes:
        found.failures.append((body, outcome))
    found.slowest = max(found.slowest, spent)
    if spent > SECONDS_MAX:
        found.failures.append((body, f"took {spent:.1f} s"))
    return outcome


def _run(target: Target, body: bytes) -> tuple[str, float]:
    """(what a target says of an input, seconds of processor time)."""
    start = time.thread_time()
    try:
        outcome = target.run(body)
    except Exception as error:
        outcome = f"{_FAILED}{type(error).__name__}: {str(error)[:80]}"
    return outcome, time.thread_time() - start


def _memory() -> float:
    """MiB that are in use now; what one input took for a moment is no growth."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def _keep(name: str, failures: Sequence[tuple[bytes, str]]) -> None:
    for body, outcome in failures:
        file = REGRESSIONS / name / hashlib.sha256(body).hexdigest()[:12]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        print(f"  {outcome}\n  kept as {file.relative_to(REGRESSIONS.parents[2])}")


def main() -> None:
    """Fuzz a target, or all of them, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("target", choices=[*TARGETS, "all", "schemathesis"])
    parser.add_argument("--executions", type=int, default=1_000_000, help="for each target")
    parser.add_argument("--requests", type=int, default=20_000, help="on both databases together")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.target == "schemathesis":
        from benchmarks.exploration import campaign

        sys.exit(campaign(requests=given.requests, seed=given.seed))
    failed = False
    print(f"{'target':10} {'executions':>10} {'outcomes':>8} {'accepted':>9} {'failures':>8} "
          f"{'slowest':>10} {'grew':>8} {'time':>8}")  # fmt: skip
    for name in TARGETS if given.target == "all" else [given.target]:
        found = fuzz(TARGETS[name], executions=given.executions, seed=given.seed)
        accepted = sum(n for what, n in found.outcomes.items() if what.startswith("accepted"))
        print(
            f"{name:10} {found.executions:10} {len(found.outcomes):8} {accepted:9} "
            f"{len(found.failures):8} {found.slowest * 1000:7.1f} ms {found.growth:5.1f} MiB "
            f"{found.seconds:6.0f} s",
            flush=True,
        )
        _keep(name, found.failures)
        failed |= bool(found.failures) or found.growth > GROWTH_MAX
    sys.exit(failed)


if __name__ == "__main__":
    main()
