"""The second example: what each message and each group of trainers can tell, and the ledger."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations, product
from multiprocessing import Pipe, active_children
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import httpx
import numpy as np
import pytest
from dpledger_client import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from examples.secure_sum import protocol, train, trainer
from examples.secure_sum.protocol import ProtocolError, secure_sum
from examples.secure_sum.ring import Ring, Words
from examples.secure_sum.trainer import MAX_GRAD_NORM, RING, UNITS, Plan
from tests.conftest import free_port

ROOT = Path(__file__).parents[2]
SMALL = Plan(trainers=3, records=40, features=5, steps=6)


def words(*values: int) -> Words:
    return np.array(values, dtype=np.uint64)


# The real protocol, with a thread for each trainer and an ear on each link


@dataclass
class Tapped:
    """A link's end that keeps what it sent."""

    end: Connection
    sent: list[tuple[int, ...]] = field(default_factory=list)

    def send_bytes(self, message: bytes) -> None:
        self.sent.append(tuple(np.frombuffer(message, dtype=np.uint64).tolist()))
        self.end.send_bytes(message)

    def recv_bytes(self) -> bytes:
        return self.end.recv_bytes()

    def poll(self, seconds: float) -> bool:
        return self.end.poll(seconds)


@dataclass(frozen=True)
class Scripted(Ring):
    """A ring whose masks are told beforehand."""

    masks: Iterator[int] = field(kw_only=True)

    def uniform(self, size: int) -> Words:
        return words(*(next(self.masks) for _ in range(size)))


Messages = dict[tuple[int, int], list[tuple[int, ...]]]


def summed(values: Sequence[Words], rings: Sequence[Ring]) -> tuple[list[Words], Messages]:
    """What each trainer learns, and all messages from one to another."""
    trainers = len(values)
    links: list[dict[int, Tapped]] = [{} for _ in values]
    for one, other in combinations(range(trainers), 2):
        here, there = Pipe()
        links[one][other], links[other][one] = Tapped(here), Tapped(there)

    def run(me: int) -> Words:
        mine = cast("dict[int, Connection]", links[me])
        return secure_sum(values[me], me=me, links=mine, ring=rings[me])

    with ThreadPoolExecutor(trainers) as pool:
        totals = list(pool.map(run, range(trainers)))
    said = {(one, other): end.sent for one in range(trainers) for other, end in links[one].items()}
    for end in (end for ends in links for end in ends.values()):
        end.end.close()
    return totals, said


@pytest.mark.parametrize("trainers", [3, 4, 7])
def test_everybody_learns_the_exact_sum(trainers: int) -> None:
    rng = np.random.default_rng(1)
    top = 2**63 // trainers - 1  # the largest parts that cannot leave the ring
    values = [rng.integers(-top, top, size=2000, endpoint=True) for _ in range(trainers)]
    for value in values:
        value[:2] = (-top, top)
    totals, said = summed([RING.of(value) for value in values], [RING] * trainers)
    exact = np.sum(values, axis=0)
    assert all(np.array_equal(RING.integers(total), exact) for total in totals)
    # A mask each way between two; 2 n - 2 messages around the ring.
    assert sum(map(len, said.values())) == trainers * (trainers - 1) + 2 * trainers - 2


def test_every_message_before_the_sum_is_uniform_whatever_is_summed() -> None:
    # All 64 choices of the six masks of three trainers, one bit each: the protocol's whole law.
    for values in ((0, 0, 0), (1, 0, 0), (0, 1, 1), (1, 1, 1)):
        heard: Counter[tuple[tuple[int, int], int, int]] = Counter()
        for masks in product(range(2), repeat=6):
            rings = [Scripted(1, masks=iter(masks[2 * me : 2 * me + 2])) for me in range(3)]
            totals, said = summed([words(value) for value in values], rings)
            assert {int(total[0]) for total in totals} == {sum(values) % 2}
            for link, messages in said.items():
                for place, (message,) in enumerate(messages):
                    heard[link, place, message] += 1
        # The masks, then the partial sums of trainers 0 and 1; then, to everybody, the sum.
        last = {((2, 0), 1), ((0, 1), 2)}
        for (link, place, message), times in heard.items():
            if (link, place) in last:
                assert (message, times) == (sum(values) % 2, 64)
            else:
                assert times == 32, (link, place)
        assert len(heard) == 6 * 2 + 2 * 2 + 2  # masks and partial sums are 0 or 1


def test_a_trainer_hears_the_same_for_all_values_of_the_others_with_the_same_sum() -> None:
    def heard_by_1(values: tuple[int, ...]) -> Counter[tuple[object, ...]]:
        heard: Counter[tuple[object, ...]] = Counter()
        for masks in product(range(2), repeat=6):
            rings = [Scripted(1, masks=iter(masks[2 * me : 2 * me + 2])) for me in range(3)]
            _, said = summed([words(value) for value in values], rings)
            heard[tuple(tuple(said[link]) for link in sorted(said) if 1 in link)] += 1
        return heard

    assert heard_by_1((0, 1, 1)) == heard_by_1((1, 1, 0)) != heard_by_1((1, 1, 1))


# What groups know, by trying every mask


def masked_values(
    ring: Ring, values: Sequence[int], masks: dict[tuple[int, int], int]
) -> list[int]:
    """What each trainer shows, given the mask of every ordered pair."""
    others = [[other for other in range(len(values)) if other != me] for me in range(len(values))]
    return [
        int(
            ring.masked(
                words(value),
                sent=[words(masks[me, other]) for other in others[me]],
                received=[words(masks[other, me]) for other in others[me]],
            )[0]
        )
        for me, value in enumerate(values)
    ]


def views(ring: Ring, values: Sequence[int], group: set[int]) -> Counter[tuple[int, ...]]:
    """All that a group may see, and how many choices of masks show it: its own masks, those that
    it was sent, and everybody's masked values, of which partial sums are functions."""
    pairs = [(one, other) for one in range(len(values)) for other in range(len(values))]
    pairs = [pair for pair in pairs if pair[0] != pair[1]]
    seen: Counter[tuple[int, ...]] = Counter()
    for drawn in product(range(2**ring.bits), repeat=len(pairs)):
        masks = dict(zip(pairs, drawn, strict=True))
        known = [mask for pair, mask in masks.items() if group & set(pair)]
        seen[(*known, *masked_values(ring, values, masks))] += 1
    return seen


@pytest.mark.parametrize(
    ("bits", "group", "one", "other"),
    [
        (2, set(), (1, 2, 0), (3, 3, 1)),
        (2, {1}, (1, 2, 0), (3, 2, 2)),
        (1, {0, 1}, (1, 0, 0, 1), (1, 0, 1, 0)),
        (1, {0, 2}, (1, 0, 0, 0), (1, 1, 0, 1)),
    ],
)
def test_a_group_sees_the_same_for_all_values_of_the_others_with_the_same_sum(
    bits: int, group: set[int], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    ring = Ring(bits)
    assert sum(one) % 2**bits == sum(other) % 2**bits
    assert all(one[me] == other[me] for me in group)
    assert views(ring, one, group) == views(ring, other, group)


def test_all_but_one_know_the_last_ones_value_whatever_the_masks() -> None:
    # The limit of any sum: it is told in the example's page, and colluders are fewer.
    one, other = views(Ring(1), (0, 1, 0), {0, 1}), views(Ring(1), (0, 1, 1), {0, 1})
    assert not set(one) & set(other)


@given(
    values=st.lists(st.integers(-(2**60), 2**60), min_size=3, max_size=6),
    bits=st.sampled_from([1, 7, 64]),
)
@settings(max_examples=30, deadline=None)
def test_masks_cancel_exactly(values: list[int], bits: int) -> None:
    ring, pairs = Ring(bits), range(len(values))
    masks = {(i, j): int(ring.uniform(1)[0]) for i in pairs for j in pairs if i != j}
    of = [int(ring.of(np.array([value]))[0]) for value in values]
    assert sum(masked_values(ring, of, masks)) % 2**bits == sum(values) % 2**bits


# The ring


@given(value=st.integers(-(2**63), 2**63 - 1), bits=st.integers(1, 64))
def test_an_integer_that_fits_comes_back(value: int, bits: int) -> None:
    ring = Ring(bits)
    there = ring.of(np.array([value]))
    assert int(there[0]) == value % 2**bits
    back = int(ring.integers(there)[0])
    assert -(2 ** (bits - 1)) <= back < 2 ** (bits - 1)
    assert (back - value) % 2**bits == 0


def test_masks_fill_the_ring() -> None:
    drawn = Ring(3).uniform(8000)
    assert np.bincount(drawn.astype(int)).shape == (8,)
    assert np.bincount(drawn.astype(int)).min() > 800  # 1000 expected; below it is 7 deviations
    assert int(RING.uniform(1000).max()) > 2**63


@pytest.mark.parametrize("bits", [0, 65])
def test_a_ring_that_words_cannot_hold_is_refused(bits: int) -> None:
    with pytest.raises(ValueError, match="bits"):
        Ring(bits)


# A trainer's part


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
    "given_",
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
    given_: dict[str, int],
) -> None:
    with pytest.raises(ValueError, match=r"trainers|collude|records"):
        Plan(**given_)


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
    assert (run["steps"], run["state"]) == (3, "aborted")
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


def test_the_command_trains_against_a_service_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.secure_sum.train", "--quick"],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
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
    monkeypatch.setattr(sys, "argv", ["train", "--url", f"http://127.0.0.1:{free_port()}"])
    with pytest.raises(SystemExit) as leaving:
        train.main()
    assert str(leaving.value).startswith("dpledger: The service did not answer")


def test_too_many_colluders_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", "--trainers", "3", "--colluders", "2"])
    with pytest.raises(SystemExit) as leaving:
        train.main()
    assert leaving.value.code == 2
    assert "collude" in capsys.readouterr().err
