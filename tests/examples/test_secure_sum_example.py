"""The second example: a trainer's part of a sum, its processes, and the ledger."""

import math
import subprocess
import sys
from collections.abc import Sequence
from multiprocessing import Pipe, active_children
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import numpy as np
import pytest
from dpledger_client import Client
from scipy.special import ndtr

from benchmarks.servers import free_port
from examples.secure_sum import protocol, train, trainer
from examples.secure_sum.protocol import ProtocolError
from examples.secure_sum.ring import Words
from examples.secure_sum.trainer import MAX_GRAD_NORM, UNITS, Plan

ROOT = Path(__file__).parents[2]
SMALL = Plan(trainers=3, records=40, features=5, steps=6)


def words(*values: int) -> Words:
    return np.array(values, dtype=np.uint64)


def test_no_record_is_longer_than_the_norm_on_the_grid() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((2000, 7)) * rng.choice([1e-3, 1.0, 1e3], size=(2000, 1))
    units = trainer.fixed_point(trainer.clipped_gradients(rows, rng.standard_normal(7)))
    exact = [sum(int(value) ** 2 for value in row) for row in units]
    assert max(exact) <= int(MAX_GRAD_NORM * UNITS) ** 2
    assert max(exact) > 0.999 * (MAX_GRAD_NORM * UNITS) ** 2
    # This gradient, (1, 2^-32), is on the grid, and longer than 1 by less than floats can tell.
    edge = trainer.clipped_gradients(np.array([[-2.0, -(2.0**-31)]]), np.zeros(2))
    assert sum(int(value) ** 2 for value in trainer.fixed_point(edge)[0]) <= int(UNITS) ** 2


def test_records_join_by_their_own_chance_and_the_shares_leave_the_noise_for_colluders() -> None:
    plan = Plan(trainers=5, colluders=2, features=4000, records=1, noise_multiplier=1.5)
    assert plan.noise_share**2 * (plan.trainers - plan.colluders) == pytest.approx(1.5**2)
    coins, noise = np.random.default_rng(3), np.random.default_rng(4)
    rows, weights = np.zeros((1, 4000)), np.zeros(4000)
    honest = [
        trainer.contribution(rows, weights, plan, coins=coins, noise=noise)
        for _ in range(plan.trainers - plan.colluders)
    ]
    assert np.std(np.sum(honest, axis=0) / UNITS) == pytest.approx(1.5 * MAX_GRAD_NORM, rel=0.05)
    small = Plan(features=1, records=10_000, noise_multiplier=1e-6, sampling_probability=0.3)
    part = trainer.contribution(np.ones((10_000, 1)), np.zeros(1), small, coins=coins, noise=noise)
    assert -float(part[0]) / UNITS / 0.5 == pytest.approx(3000, abs=6 * math.sqrt(2100))


def test_the_sum_of_rounded_shares_is_one_gaussian_rounded() -> None:
    # Three shares of deviation 2 units (in the example it is billions), each rounded, against a
    # Gaussian of the whole variance, to which two uniform numbers are added before it is rounded.
    # What is done to a Gaussian release afterwards costs nothing.
    share, cells = 2.0, np.arange(-40, 41)
    rounded = ndtr((cells + 0.5) / share) - ndtr((cells - 0.5) / share)
    three = np.convolve(np.convolve(rounded, rounded), rounded)
    where = np.arange(-120, 121)
    nodes, weights = np.polynomial.legendre.leggauss(12)
    nodes, weights = nodes / 2, weights / 2
    shift = (nodes[:, None] + nodes[None, :]).ravel()
    weight = np.outer(weights, weights).ravel()
    whole = share * math.sqrt(3)
    upper, lower = (where[:, None] + shift + 0.5) / whole, (where[:, None] + shift - 0.5) / whole
    one = (ndtr(upper) - ndtr(lower)) @ weight
    assert np.abs(three - one).max() < math.exp(-(math.pi**2) * share**2 / 2)


def test_a_part_that_does_not_fit_is_refused() -> None:
    plan = Plan(noise_multiplier=1e8)
    rng = np.random.default_rng(5)
    with pytest.raises(OverflowError):
        trainer.contribution(np.zeros((1, 20)), np.zeros(20), plan, coins=rng, noise=rng)


@pytest.mark.parametrize(
    "wrong",
    [
        {"trainers": 2},
        {"trainers": 1001},
        {"colluders": -1},
        {"colluders": 3},
        {"records": 0},
        {"records": 2**20 + 1},
    ],
)
def test_groups_that_the_ring_or_the_noise_is_not_made_for_are_refused(
    wrong: dict[str, int],
) -> None:
    with pytest.raises(ValueError, match=r"trainers|collude|records"):
        Plan(**wrong)


# Processes and the ledger


class LosesReplies(httpx.BaseTransport):
    """The service gets every request, and of two answers to an append one gets lost."""

    def __init__(self) -> None:
        self.inner = httpx.HTTPTransport()
        self.appends = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        if request.url.path.endswith("/events"):
            self.appends += 1
            if self.appends % 2:
                response.read()
                raise httpx.ReadTimeout("The answer was lost.", request=request)
        return response

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries do not wait."""
    monkeypatch.setattr("dpledger_client.transport.sleep", lambda seconds: None)


@pytest.mark.usefixtures("at_once")
def test_each_step_is_in_the_ledger_once_though_it_was_told_twice(address: str) -> None:
    transport = LosesReplies()
    with Client(address, transport=transport) as client:
        outcome = train.coordinate(client, SMALL)
        assert transport.appends == 2 * SMALL.steps
        (run,) = client.runs()
        assert (run["steps"], run["state"]) == (SMALL.steps, "finished")
        (event,) = client.ledger(outcome.name)["events"]
    assert (event["first_step"], event["steps"]) == (0, SMALL.steps)
    assert event["mechanism"] == {"kind": "gaussian", "noise_multiplier": 1.5}
    assert event["sampling"] == {"kind": "poisson", "sampling_probability": 0.05}
    assert outcome.guarantee["status"] == "published"
    assert np.linalg.norm(outcome.weights) > 0


def test_a_trainer_that_dies_ends_the_run_and_no_step_is_missing(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Words] = []
    real = train.opened

    def watched(controls: Sequence[Connection], plan: Plan) -> Words:
        if len(opened) == 2:
            active_children()[0].kill()
        opened.append(real(controls, plan))
        return opened[-1]

    monkeypatch.setattr(train, "opened", watched)
    with Client(address) as client:
        with pytest.raises(ProtocolError, match="gone"):
            train.coordinate(client, SMALL)
        (run,) = client.runs()
    assert len(opened) == 2
    # The third was counted before it was tried.
    assert (run["steps"], run["state"]) == (3, "interrupted")
    assert active_children() == []


def test_trainers_who_do_not_agree_stop_the_run() -> None:
    ends = [Pipe() for _ in range(3)]
    for number, (_, there) in enumerate(ends):
        there.send_bytes(words(number // 2).tobytes())
    with pytest.raises(ProtocolError, match="agree"):
        train.opened([here for here, _ in ends], Plan(trainers=3, features=1))


def test_a_message_that_is_short_or_does_not_come_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "WAIT_SECONDS", 0.01)
    here, there = Pipe()
    with pytest.raises(ProtocolError, match="nothing"):
        protocol.receive(here, 2)
    there.send_bytes(words(1).tobytes())
    with pytest.raises(ProtocolError, match="length"):
        protocol.receive(here, 2)
    there.close()
    with pytest.raises(ProtocolError, match="gone"):
        protocol.receive(here, 2)
    with pytest.raises(ProtocolError, match="gone"):
        protocol.send(here, words(1))


def test_the_command_trains_against_a_service_of_its_own(own_environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.secure_sum.train", "--quick"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
        env=own_environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 steps, each in the ledger once" in done.stdout
    assert "epsilon  0.83" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_trains_against_a_service_that_runs(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--url", address, "--quick", "--trainers", "3"])
    train.main()
    assert capsys.readouterr().out.startswith("3 trainers")
    with Client(address) as client:
        assert [run["steps"] for run in client.runs()] == [20]


@pytest.mark.usefixtures("at_once")
def test_a_service_that_does_not_answer_ends_the_example_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setattr(sys, "argv", ["train", "--url", url])
    with pytest.raises(SystemExit) as leaving:
        train.main()
    assert str(leaving.value).startswith(f"dpledger: {url} did not answer")


def test_too_many_colluders_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--trainers", "3", "--colluders", "2"])
    with pytest.raises(SystemExit) as leaving:
        train.main()
    assert leaving.value.code == 2
    assert "collude" in capsys.readouterr().err
