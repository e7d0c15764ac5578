"""A sweep: charged whole before it begins, silent while it runs, and its best trial alone shown.

docs/guide/selection.md says what a trainer must keep to.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import SystemRandom
from types import TracebackType
from typing import Any, Final, Protocol, Self

from dpledger_client.schemas import full
from dpledger_client.sweeps.laws import draw_trials

_RANDOM: Final = SystemRandom()
_BUSY: Final = "A sweep is on: nothing is told, asked or counted until it has ended."


class TrialOver(Exception):  # noqa: N818 - no fault: the trial ends here
    """The trial has taken every step that was charged for it; take no more."""


class ReportTooLate(Exception):  # noqa: N818 - named after the moment it names
    """The sweep ran beyond `report_at`: its result would tell how long it took."""


class Sweepable(Protocol):
    """What a sweep needs of a run."""

    _writer: Any

    @property
    def world_size(self) -> int:
        """How many processes the run has."""

    def step(self, *, mechanism: Mapping[str, Any], sampling: Mapping[str, Any]) -> None:
        """Count a step."""


class _Silent:
    """In the place of a run's writer while trials go on: whatever is asked of it is refused."""

    def __init__(self, writer: Any) -> None:
        self.opening: Final = writer.opening
        self.next_step: Final = writer.next_step
        self.mode: Final = writer.mode
        self.path: Final = writer.path
        self.reply: Final = writer.reply
        self.trouble: Final = writer.trouble

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(_BUSY)


@dataclass(frozen=True, slots=True)
class Best:
    """The best trial: its candidate and its output."""

    candidate: Any
    output: Any
    score: float


class Trial:
    """One trial: its own candidate, and the steps that were charged for it.

    As a context it takes an error of its own to be a trial that ranks last.
    """

    def __init__(self, candidate: Any, base: Mapping[str, Any]) -> None:
        self.candidate: Final = candidate
        self._base = base
        self._taken = 0
        self._found: tuple[float, Any] | None = None

    def step(
        self,
        *,
        mechanism: Mapping[str, Any] | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        """Meter a step that is about to be taken. When it raises, do not take it.

        Args:
            mechanism: by default the base's; with as much noise or more.
            sampling: by default the base's, which it must be.

        Raises:
            TrialOver: no step is left.
            ValueError: the base does not cover it; nothing was counted.
        """
        if sampling is not None and dict(sampling) != self._base["sampling"]:
            raise ValueError("A trial samples as its sweep was charged: declare that in the base.")
        if mechanism is not None and not _covered(mechanism, self._base["mechanism"]):
            raise ValueError("A trial needs the mechanism of the base, and no less of its noise.")
        if self._taken >= self._base["steps"]:
            raise TrialOver
        self._taken += 1

    def steps(self) -> Iterator[int]:
        """The trial's steps, each metered before it is taken; it ends at the last."""
        while self._taken < self._base["steps"]:
            self.step()
            yield self._taken - 1

    def finish(self, *, score: float, output: Any = None) -> None:
        """Say how good the trial was; the best one is kept, and of equal ones the first.

        Args:
            score: from public data, or from steps of the trial; what is no number ranks last.
            output: what is released if this trial is the best.
        """
        number = float(score)
        self._found = (-math.inf if math.isnan(number) else number, output)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is not None:
            self._found = None
        return isinstance(error, Exception)


def _covered(mechanism: Mapping[str, Any], base: Mapping[str, Any]) -> bool:
    if mechanism == base:
        return True
    noisy = mechanism.get("kind") == base["kind"] and base["kind"] in ("gaussian", "laplace")
    return noisy and float(mechanism["noise_multiplier"]) >= base["noise_multiplier"]


class Trials:
    """The trials of a sweep, by `run.selection`: `with ... as trials: for trial in trials:`."""

    def __init__(
        self,
        run: Sweepable,
        *,
        repetitions: Mapping[str, Any],
        base: Mapping[str, Any],
        candidates: Sequence[Any],
        weights: Sequence[float] | None,
        report_at: float | None,
    ) -> None:
        self._run = run
        self._repetitions = dict(repetitions)
        self._base = base
        self._candidates = list(candidates)
        self._weights = weights
        self._report_at = report_at
        self._writer: Any = None
        self._left: int | None = None  # trials; None before the sweep was charged and after it
        self._best: tuple[float, Any, Any] | None = None
        self._whole = False  # whether every trial has ended
        self._ended = False  # and the sweep, so that its best may be shown

    def __enter__(self) -> Self:
        """Charge the whole sweep, and draw the number of its trials after that.

        Raises:
            BudgetExhausted, UnsupportedEvent: it does not fit. Nothing ran.
            DPLedgerError: it is not known to be charged. Nothing ran.
            RuntimeError: it was entered before.
        """
        if self._writer is not None:
            raise RuntimeError("A sweep is charged once: make another one.")
        mechanism = {"kind": "selection", "repetitions": self._repetitions, "base": self._base}
        self._run.step(mechanism=mechanism, sampling=full())
        self._writer = self._run._writer
        self._writer.hush(True)
        self._run._writer = _Silent(self._writer)
        self._left = draw_trials(self._repetitions)
        return self

    def __iter__(self) -> Iterator[Trial]:
        """Each trial in turn, with a candidate that is drawn anew; how many is told to none."""
        while self._left:
            self._left -= 1
            (candidate,) = _RANDOM.choices(self._candidates, self._weights)
            trial = Trial(candidate, self._base)
            yield trial
            found = trial._found or (-math.inf, None)
            if self._best is None or found[0] > self._best[0]:
                self._best = (found[0], candidate, found[1])
        self._whole = self._left == 0

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        whole, self._left = self._whole, None
        late = False
        if error is None and self._report_at is not None:
            late = time.time() > self._report_at
            while (wait := self._report_at - time.time()) > 0:
                time.sleep(wait)
        self._run._writer = self._writer
        self._writer.hush(False)
        self._ended = whole and error is None and not late
        if late:
            raise ReportTooLate("The sweep is charged, and nothing of it may be shown.")

    @property
    def best(self) -> Best | None:
        """The best trial, once all trials have ended; None where the law drew none.

        Raises:
            RuntimeError: the sweep is still on, or ended before its last trial: nothing is shown.
        """
        if not self._ended:
            raise RuntimeError("The best trial is known when every trial of the sweep has ended.")
        if self._best is None:
            return None
        score, candidate, output = self._best
        return Best(candidate, output, score)


def selection(
    run: Sweepable,
    *,
    repetitions: Mapping[str, Any],
    mechanism: Mapping[str, Any],
    sampling: Mapping[str, Any],
    steps: int,
    candidates: Sequence[Any],
    weights: Sequence[float] | None = None,
    report_at: float | None = None,
    trial_count_secret: bool = False,
) -> Trials:
    """A sweep that costs as one private selection. Nothing is charged before it is entered.

    Args:
        run: in mode strict and of one process.
        repetitions: by `negative_binomial_trials` or `poisson_trials`.
        mechanism: of each step of a trial, with the least noise of any candidate.
        sampling: of each step of a trial.
        steps: of a trial, at most.
        candidates: what each trial draws one of, anew.
        weights: of the candidates, fixed now; equal ones if missing.
        report_at: seconds since 1970 at which the result is shown, whenever the trials end; or
        trial_count_secret: you attest that no reader of the result learns how long it took.

    Raises:
        ValueError: an argument is out of range, or the run is in another mode or of several
            processes.
    """
    if run.world_size != 1 or run._writer.mode != "strict":
        raise ValueError("A sweep needs a run of one process: start_run(mode='strict').")
    if (report_at is None) != trial_count_secret:
        raise ValueError("Give report_at, or attest trial_count_secret=True; not both.")
    if not steps >= 1 or not candidates:
        raise ValueError("A sweep has candidates, and at least one step a trial.")
    if weights is not None and (
        len(weights) != len(candidates)
        or not all(0 <= one < math.inf for one in weights)
        or not sum(weights) > 0
    ):
        raise ValueError("Each candidate has one weight, at least 0 and not all of them 0.")
    base = {"mechanism": dict(mechanism), "sampling": dict(sampling), "steps": int(steps)}
    return Trials(
        run,
        repetitions=repetitions,
        base=base,
        candidates=candidates,
        weights=weights,
        report_at=report_at,
    )
