"""Calibrate and bound on the command line: the safe side, or one line of cause."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import accounting
from service.cli.calculations import evaluate_theorem
from tests.service.samples import GAUSSIAN, POISSON, Json
from tests.service.test_cli import DOCUMENT, cause, command

NOISE, STEPS, RATE = "noise_multiplier", "steps", "sampling_probability"


@pytest.fixture
def ledger(tmp_path: Path) -> Callable[[Json], Path]:
    def write(content: Json) -> Path:
        file = tmp_path / "ledger.json"
        file.write_text(json.dumps(content))
        return file

    return write


def document(*events: Json, **given: object) -> Json:
    return DOCUMENT | {"events": list(events)} | given


def part(steps: int = 1000, noise: float = 1.1, sampling: Json = POISSON) -> Json:
    return {"steps": steps, "mechanism": GAUSSIAN | {NOISE: noise}, "sampling": sampling}


def calibrate(file: Path, parameter: str, *words: object, epsilon: float = 2.0) -> Json:
    result = command(
        "calibrate", file, "--epsilon", epsilon, "--delta", 1e-5, "--for", parameter, "--json",
        *words,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    answer: Json = json.loads(result.stdout)
    assert answer["epsilon"] <= epsilon
    assert answer["solved"]["parameter"] == parameter
    return answer


def epsilon(file: Path) -> float:
    result = command("epsilon", file, "--delta", 1e-5, "--json")
    return float(json.loads(result.stdout)["epsilon"])


@pytest.mark.parametrize(
    ("parameter", "riskier"),
    [(NOISE, 1 / 1.000002), (STEPS, None), (RATE, 1.000002)],
)
def test_the_value_keeps_to_the_target_and_hardly_more_does(
    ledger: Callable[[Json], Path], parameter: str, riskier: float | None
) -> None:
    found = calibrate(ledger(document(part())), parameter)
    value = found["solved"]["value"]

    def at(value: float) -> Path:
        if parameter == NOISE:
            return ledger(document(part(noise=value)))
        if parameter == STEPS:
            return ledger(document(part(steps=int(value))))
        return ledger(document(part(sampling=POISSON | {RATE: value})))

    assert epsilon(at(value)) == found["epsilon"]
    assert epsilon(at(value * riskier if riskier else value + 1)) > 2.0


def test_different_noises_keep_their_ratio(ledger: Callable[[Json], Path]) -> None:
    file = ledger(document(part(noise=2.0), part(noise=1.0), part(noise=3.0)))
    value = calibrate(file, NOISE)["solved"]["value"]
    result = command("calibrate", file, "--epsilon", 2, "--delta", 1e-5, "--for", NOISE)
    lines = result.stdout.splitlines()
    assert lines[0] == f"noise_multiplier {value!r}"
    shown = [float(line.split()[1]) for line in lines[1:4]]
    assert shown == pytest.approx([2 * value, value, 3 * value])
    assert "events[2].mechanism.noise_multiplier" in lines[3]
    assert "(upper bound)" in result.stdout


def test_equal_noises_are_one_value(ledger: Callable[[Json], Path]) -> None:
    file = ledger(document(part(), part(sampling={"kind": "full"}, steps=1)))
    result = command("calibrate", file, "--epsilon", 9, "--delta", 1e-5, "--for", NOISE)
    assert "events[" not in result.stdout
    assert "epsilon_lower" in result.stdout


def test_the_steps_are_those_of_the_last_event(ledger: Callable[[Json], Path]) -> None:
    found = calibrate(ledger(document(part(steps=500), part(steps=7))), STEPS)
    assert found["steps"] == 500 + found["solved"]["value"]


def test_any_accountant_may_calibrate(ledger: Callable[[Json], Path]) -> None:
    file = ledger(document(part()))
    looser = calibrate(file, NOISE, "--accountant", "rdp")
    assert looser["accountant"] == "rdp"
    assert looser["solved"]["value"] > calibrate(file, NOISE)["solved"]["value"]


BRANCH: Json = {"name": "b", "from_step": 0, "events": []}
NONE: Json = {"steps": 1, "mechanism": {"kind": "none"}, "sampling": {"kind": "full"}}


@pytest.mark.parametrize(
    ("content", "words", "named"),
    [
        (document(part()), ["--for", "delta"], "--for: must be one of"),
        (document(part()), ["--for", NOISE, "--epsilon", "0"], "--epsilon: must lie in"),
        (document(part()), ["--for", NOISE, "--epsilon", "nan"], "--epsilon: must lie in"),
        (document(part()), ["--for", NOISE, "--delta", "1"], "--delta: must lie in"),
        (document(part()), ["--for", NOISE, "--accountant", "clt"], "--accountant: must be"),
        (document(part(), NONE), ["--for", NOISE], "--epsilon: cannot be kept to"),
        (document(NONE), ["--for", NOISE], "events: none has noise_multiplier"),
        (document(NONE), ["--for", RATE], "events: none has sampling_probability"),
        (document(), ["--for", STEPS], "events: none has steps"),
        (document(part(), branches=[BRANCH]), ["--for", STEPS], "branches: a plan has none"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_in_one_line(
    ledger: Callable[[Json], Path], content: Json, words: list[str], named: str
) -> None:
    given = ["--epsilon", "2", "--delta", "1e-5", *words]
    assert named in cause(command("calibrate", ledger(content), *given))


@pytest.mark.parametrize(
    ("bound", "params"),
    [
        ("gaussian-profile", {"epsilon": 1, "mu": 1.0}),
        ("gaussian-renyi", {"noise_multiplier": 1.0, "sensitivity": 1.0, "orders": [2.0, 3]}),
        (
            "poisson-gaussian",
            {NOISE: 1.0, RATE: 0.01, "orders": [2.0, 8.0], "direction": "remove"},
        ),
        ("gdp-composition", {"mus": [1.0, 0.5], "counts": [1, 4]}),
        ("renyi-to-epsilon", {"rdp": [1.0, 2.0], "orders": [2.0, 4.0], "delta": 1e-5}),
        (
            "trade-off-of-profile",
            {"epsilons": [0.0], "deltas": [0.5], "false_positive_rates": [0.1, 0.2]},
        ),
        ("membership-advantage", {"epsilons": [1.0], "deltas": [0.0]}),
        ("gaussian-epsilon", {"delta": 0.5, "mu": 1e200}),
    ],
)
def test_a_bound_is_evaluated(bound: str, params: Json) -> None:
    result = command("bound", bound, "--params", json.dumps(params))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == evaluate_theorem(bound, params)


def test_an_infinite_value_is_a_word() -> None:
    assert evaluate_theorem("gaussian-epsilon", {"delta": 0.5, "mu": 1e200}) == "inf"


@pytest.mark.parametrize(
    ("bound", "params", "named"),
    [
        ("unknown", "{}", "no such bound"),
        ("gaussian-profile", "[]", "--params: must be a JSON object"),
        ("gaussian-profile", "{", "--params: not JSON"),
        ("gaussian-profile", '{"epsilon": 1, "epsilon": 1}', "repeats a key"),
        ("gaussian-profile", '{"epsilon": 1}', "--params.mu: must be given"),
        ("gaussian-profile", '{"epsilon": 1, "mu": 1, "x": 1}', "--params.x: the bound has no"),
        ("gaussian-profile", '{"epsilon": true, "mu": 1}', "--params.epsilon: must be a number"),
        ("gaussian-profile", '{"epsilon": 1e999, "mu": 1}', "--params.epsilon: must be a number"),
        ("gaussian-profile", '{"epsilon": -1, "mu": 1}', "the bound refuses them"),
        ("gdp-composition", '{"mus": [1], "counts": [1.5]}', "--params.counts[0]: must be a whole"),
        ("gdp-composition", '{"mus": 1, "counts": [1]}', "--params.mus: cannot be given"),
        ("gdp-composition", '{"mus": [1], "counts": []}', "the bound refuses them"),
        (
            "gaussian-renyi",
            '{"noise_multiplier": 1, "sensitivity": 1, "orders": 2}',
            "--params.orders: must be a list",
        ),
        (
            "poisson-gaussian",
            '{"noise_multiplier": 1, "sampling_probability": 0.1, "orders": [2], "direction": "x"}',
            "--params.direction: must be one of",
        ),
        ("pld-profile", '{"units": [1], "epsilon": 1}', "--params.units[0]: cannot be given"),
    ],
)
def test_parameters_at_fault_are_named_in_one_line(bound: str, params: str, named: str) -> None:
    assert named in cause(command("bound", bound, "--params", params))


def test_every_bound_names_a_parameter_it_is_not_given() -> None:
    for theorem in accounting.THEOREMS:
        assert "--params" in cause(command("bound", theorem.id, "--params", "{}"))
