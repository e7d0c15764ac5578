"""Sweeps: charged before a number is drawn, silent while trials go on, exact in their number."""

import math
import random
import time
from collections import Counter
from decimal import Context, Decimal
from typing import Any

import pytest
from dpledger_client import (
    BudgetExhausted,
    Client,
    ReportTooLate,
    Run,
    TrialOver,
    Unavailable,
    gaussian,
    negative_binomial_trials,
    poisson,
    poisson_trials,
)
from dpledger_client.sweeps import Trials, laws, trials

from accounting.events import NegativeBinomialTrials
from accounting.renyi.selection import negative_binomial_of_mean
from tests.client.fake_service import FakeService

NOISE = gaussian(noise_multiplier=1.0)
RATE = poisson(sampling_probability=0.01)
LAW = negative_binomial_trials(shape=1.0, halting_probability=0.1)


def begin(client: Client, **given: Any) -> Run:
    return client.start_run("run", "data", **{"mode": "strict", **given})


def sweep(run: Run, **given: Any) -> Trials:
    asked: dict[str, Any] = {
        "repetitions": LAW, "mechanism": NOISE, "sampling": RATE, "steps": 3,
        "candidates": [0.1, 0.2], "trial_count_secret": True,
    }  # fmt: skip
    return run.selection(**asked | given)


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of trials, which a test may set; and where it is drawn."""
    chosen = [4]
    monkeypatch.setattr(trials, "draw_trials", lambda law: chosen[0])
    return chosen


def test_the_best_of_all_trials_is_known_at_the_end(client: Client, number: list[int]) -> None:
    scores = iter([0.1, 0.7, 0.7, math.nan])
    with begin(client) as run:
        with sweep(run) as found:
            for index, trial in enumerate(found):
                assert trial.candidate in (0.1, 0.2)
                assert list(trial.steps()) == [0, 1, 2]
                trial.finish(score=next(scores), output=index)
                with pytest.raises(RuntimeError, match="every trial"):
                    _ = found.best
        best = found.best
        assert best is not None
        assert (best.output, best.score) == (1, 0.7)  # of equal ones the first
        run.step(mechanism=NOISE, sampling=RATE)


def test_the_whole_sweep_is_charged_before_its_number_is_drawn(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def drawn(law: Any) -> int:
        seen.append(service.contents())
        return 1

    monkeypatch.setattr(trials, "draw_trials", drawn)
    with begin(client) as run, sweep(run) as found:
        for trial in found:
            trial.finish(score=1.0)
    base = {"mechanism": NOISE, "sampling": RATE, "steps": 3}
    whole = {"kind": "selection", "repetitions": LAW, "base": base}
    assert seen == [[[whole, {"kind": "full"}]]]


@pytest.mark.parametrize("fault", ["refused", "away"])
def test_a_sweep_that_was_not_admitted_draws_nothing(
    client: Client, service: FakeService, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(trials, "draw_trials", lambda law: pytest.fail("drawn"))
    run = begin(client, wait_seconds=0.0)
    service.steps_max, service.away = 0, fault == "away"
    with pytest.raises(Unavailable if fault == "away" else BudgetExhausted), sweep(run):
        pytest.fail("it ran")
    service.away = False
    assert run.finish() is not None  # the run itself goes on


def test_nothing_is_told_or_asked_while_trials_go_on(
    client: Client, service: FakeService, number: list[int]
) -> None:
    with begin(client, flush_seconds=0.001) as run:
        with sweep(run) as found:
            before = len(service.requests)
            for trial in found:
                for ask in (
                    lambda: run.step(mechanism=NOISE, sampling=RATE), run.flush, run.guarantee,
                    run.release, run.finish, lambda: run.epsilon,
                ):  # fmt: skip
                    with pytest.raises(RuntimeError, match="A sweep is on"):
                        ask()
                time.sleep(0.01)
                trial.finish(score=1.0)
            assert len(service.requests) == before
        run.flush()


def test_a_trial_ends_at_its_last_step_and_takes_no_other(
    client: Client, number: list[int]
) -> None:
    number[0] = 1
    with begin(client) as run, sweep(run) as found:
        for trial in found:
            with pytest.raises(ValueError, match="no less of its noise"):
                trial.step(mechanism=gaussian(noise_multiplier=0.99))
            with pytest.raises(ValueError, match="no less of its noise"):
                trial.step(mechanism={"kind": "laplace", "noise_multiplier": 2.0})
            with pytest.raises(ValueError, match="samples as"):
                trial.step(sampling=poisson(sampling_probability=0.001))
            trial.step(mechanism=gaussian(noise_multiplier=1.5), sampling=RATE)
            trial.step(mechanism=NOISE)
            trial.step()
            with pytest.raises(TrialOver):
                trial.step()
            assert list(trial.steps()) == []


def test_a_trial_that_fails_ranks_last(client: Client, number: list[int]) -> None:
    with begin(client) as run, sweep(run) as found:
        for index, trial in enumerate(found):
            with trial:
                trial.finish(score=100.0 - index, output=index)
                if index != 2:
                    raise OverflowError
    assert found.best is not None
    assert found.best.output == 2


def interrupted(found: Trials) -> None:
    with found:
        for trial in found:
            with trial:
                trial.finish(score=1.0)
                raise KeyboardInterrupt


def whole(found: Trials) -> None:
    with found:
        for trial in found:
            trial.finish(score=1.0)


def test_an_interrupt_ends_the_sweep_without_a_result(
    client: Client, service: FakeService, number: list[int]
) -> None:
    run = begin(client)
    found = sweep(run)
    with pytest.raises(KeyboardInterrupt):
        interrupted(found)
    with pytest.raises(RuntimeError, match="every trial"):
        _ = found.best
    assert len(service.contents()) == 1  # the charge stands
    with pytest.raises(RuntimeError, match="charged once"), found:
        pytest.fail("it went on")
    run.finish()


def test_a_sweep_that_was_left_early_shows_nothing(client: Client, number: list[int]) -> None:
    with begin(client) as run, sweep(run) as found:
        for index, trial in enumerate(found):
            trial.finish(score=1.0)
            if index == 3:  # the last
                break
    with pytest.raises(RuntimeError, match="every trial"):
        _ = found.best


def test_without_a_trial_there_is_no_best(client: Client, number: list[int]) -> None:
    number[0] = 0
    with begin(client) as run, sweep(run, repetitions=poisson_trials(mean=1)) as found:
        assert list(found) == []
    assert found.best is None


def test_a_result_is_shown_at_its_moment_or_never(
    client: Client, number: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    given = {"report_at": 2000.0, "trial_count_secret": False}
    with begin(client) as run:
        whole(found := sweep(run, **given))
        assert now == [2000.0]
        assert found.best is not None
        late = sweep(run, **given)
        now[0] = 2000.5
        with pytest.raises(ReportTooLate):
            whole(late)
        with pytest.raises(RuntimeError, match="every trial"):
            _ = late.best


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"trial_count_secret": False}, "report_at"),
        ({"report_at": 5.0}, "not both"),
        ({"steps": 0}, "at least one step"),
        ({"candidates": []}, "has candidates"),
        ({"weights": [1.0]}, "one weight"),
        ({"weights": [1.0, -1.0]}, "one weight"),
        ({"weights": [0.0, 0.0]}, "one weight"),
        ({"weights": [1.0, math.nan]}, "one weight"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    client: Client, given: dict[str, Any], text: str
) -> None:
    with begin(client) as run, pytest.raises(ValueError, match=text):
        sweep(run, **given)


@pytest.mark.parametrize("mode", ["leased", "observe"])
def test_a_sweep_needs_a_strict_run(client: Client, mode: str) -> None:
    with begin(client, mode=mode) as run, pytest.raises(ValueError, match="strict"):
        sweep(run)


def test_candidates_are_drawn_anew_from_their_weights(client: Client, number: list[int]) -> None:
    number[0] = 4000
    drawn: Counter[float] = Counter()
    with begin(client) as run, sweep(run, weights=[0.2, 0.8]) as found:
        for trial in found:
            drawn[trial.candidate] += 1
            trial.finish(score=0.0)
    assert abs(drawn[0.2] / 4000 - 0.8) < 0.05


LAWS = [
    LAW,
    negative_binomial_trials(shape=0.0, halting_probability=0.05),
    negative_binomial_trials(shape=-0.9, halting_probability=0.3),
    negative_binomial_trials(shape=1e-18, halting_probability=0.3),
    poisson_trials(mean=3.5),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_numbers_follow_their_law(law: dict[str, Any]) -> None:
    source = random.Random(7)
    drawn = Counter(laws.draw_trials(law, source.getrandbits) for _ in range(4000))
    context = Context(prec=60)
    for number, chance in laws._chances(law, context):
        expected = 4000 * float(chance)
        assert abs(drawn[number] - expected) < 6 * math.sqrt(expected + 1)
        if number > 20:
            break


def test_bits_on_a_border_are_followed_by_more() -> None:
    # Of the logarithmic law P(K = 1) is no double: 128 bits may leave two numbers possible.
    law = LAWS[1]
    context = Context(prec=200)
    _, chance = next(laws._chances(law, context))
    exact = int(context.multiply(chance, Decimal(2**256)))
    border, rest = divmod(exact, 2**128)
    for further, number in ((rest - 1, 1), (rest + 1, 2)):
        given = iter([border, further])
        assert laws.draw_trials(law, lambda count, given=given: next(given)) == number  # type: ignore[misc]
        assert list(given) == []
    for first, number in ((border - 1, 1), (border + 1, 2)):
        assert laws.draw_trials(law, lambda count, first=first: first) == number  # type: ignore[misc]
    assert laws.draw_trials(LAW, lambda count: 0) == 1
    assert laws.draw_trials(poisson_trials(mean=1.0), lambda count: 0) == 0


@pytest.mark.parametrize(("shape", "mean"), [(0.0, 10.0), (0.5, 10.0), (1.0, 10.0), (-0.5, 3.0)])
def test_the_client_solves_a_mean_as_the_service_does(shape: float, mean: float) -> None:
    law = negative_binomial_trials(shape=shape, mean=mean)
    assert NegativeBinomialTrials(
        shape=shape, halting_probability=law["halting_probability"]
    ) == negative_binomial_of_mean(shape=shape, mean=mean)


@pytest.mark.parametrize(
    "given",
    [{"shape": 1.0}, {"shape": 1.0, "mean": 5, "halting_probability": 0.1},
     {"shape": -1.0, "mean": 5}, {"shape": 1.0, "mean": 1.0}, {"shape": -0.99, "mean": 10},
     {"shape": 1.0, "halting_probability": 1.0}, {"shape": math.nan, "mean": 5},
     {"shape": 1.0, "halting_probability": math.nan}, {"shape": 1.0, "mean": math.nan}],
)  # fmt: skip
def test_a_law_that_is_none_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|exactly one"):
        negative_binomial_trials(**given)


def test_a_poisson_mean_below_one_is_refused() -> None:
    for mean in (0.5, 0.0, math.nan, 1e7):
        with pytest.raises(ValueError, match="mean must be at least 1"):
            poisson_trials(mean=mean)
