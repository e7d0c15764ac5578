"""The ledger under Flower's own strategies: real ClientApps in its simulation of ten nodes."""

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from dpledger_client import Client, Run, gaussian
from dpledger_client.integrations.flower import LedgerAccountant, LedgerStrategy
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.server.strategy import DifferentialPrivacyServerSideFixedClipping as LegacyClipping
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.serverapp import (
    Grid,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
    ServerApp,
)
from flwr.serverapp.exception import AggregationError, PrivacyBudgetExhausted
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedXgbCyclic,
)
from flwr.simulation import run_simulation
from ray import cloudpickle
from sklearn.datasets import load_digits

pytestmark = [
    # Ray leaves its processes' files and sockets to the end of the interpreter.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # Flower's servicers use an event loop policy that a later Python removes.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:flwr.*"),
]
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import a test

CLIENTS = 10
DELTA = 1e-3
NOISE_MULTIPLIER = 2.0
CLIPPING_NORM = 0.5
ROOT = Path(__file__).parents[3]
START_SECONDS = 120.0
ROUND_SECONDS = 300.0


class InOrder:
    """A grid whose replies come in the order of the nodes: sums of floats depend on it."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.sent = 0  # messages to clients

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], **options: Any) -> list[Message]:
        asked = list(messages)
        self.sent += len(asked)
        replies = self._grid.send_and_receive(asked, **options)
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)


def train(message: Message, context: Context) -> Message:
    """A pass of softmax regression over the client's part of the digits."""
    part = int(context.node_config["partition-id"])
    config = message.content["config"]
    if config.get("broken") == part and config["server-round"] == config.get("broken-round"):
        raise RuntimeError("This client fails.")
    broken = config.get("not-finite") == part and config["server-round"] == 2
    pixels, digits = load_digits(return_X_y=True)
    features, labels = pixels[part::CLIENTS] / 16, np.eye(10)[digits[part::CLIENTS]]
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    scores = np.exp(features @ weights)
    slope = features.T @ (scores / scores.sum(axis=1, keepdims=True) - labels)
    weights = weights - slope / len(features)
    if broken:
        weights[0, 0] = np.nan
    answer = RecordDict(
        {
            "arrays": ArrayRecord([weights]),
            "metrics": MetricRecord({"num-examples": 1}),  # equal weights: no client counts more
        }
    )
    return Message(content=answer, reply_to=message)


def clipped_if_asked(message: Message, context: Context, train: Any) -> Message:
    """Flower's clipping on the client, in the rounds whose strategy leaves it to clients."""
    if "clipping_norm" in message.content["config"]:
        return fixedclipping_mod(message, context, train)
    answer: Message = train(message, context)
    return answer


@pytest.fixture(scope="module")
def grid() -> Iterator[InOrder]:
    """Of Flower's simulation: ten nodes, each with a ClientApp of its own."""
    app, server = ClientApp(mods=[clipped_if_asked]), ServerApp()
    app.train()(train)
    grids: Queue[Grid] = Queue()
    done = Event()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        grids.put(grid)
        done.wait()

    resources = {"client_resources": {"num_cpus": 1}}
    options = {"num_supernodes": CLIENTS, "backend_config": resources}
    simulation = Thread(target=run_simulation, args=(server, app), kwargs=options)
    simulation.start()
    try:
        yield InOrder(grids.get(timeout=START_SECONDS))
    finally:
        done.set()
        simulation.join()


def initial() -> ArrayRecord:
    return ArrayRecord([np.zeros((64, 10))])


def weights_of(arrays: ArrayRecord | None) -> np.ndarray:
    assert arrays is not None
    (weights,) = arrays.to_numpy_ndarrays()
    return weights


def fedavg(clients: int = CLIENTS) -> FedAvg:
    return FedAvg(
        fraction_train=clients / CLIENTS,
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=CLIENTS,
    )


def clipping(clients: int = CLIENTS, *, kind: Any = None, accountant: Any = None) -> Any:
    kind = kind or DifferentialPrivacyServerSideFixedClipping
    options = {} if accountant is None else {"accountant": accountant}
    return kind(fedavg(clients), NOISE_MULTIPLIER, CLIPPING_NORM, clients, **options)


def trained(strategy: Any, grid: InOrder, rounds: int, **config: Any) -> ArrayRecord:
    """The model after rounds with the same coins and the same noise each time."""
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 (Flower draws its noise there)
    result = strategy.start(
        grid, initial(), num_rounds=rounds, timeout=ROUND_SECONDS, train_config=ConfigRecord(config)
    )
    arrays: ArrayRecord = result.arrays
    return arrays


def rdp_accountant() -> RdpAccountant:
    return RdpAccountant(
        PrivacyConfig(
            target_delta=DELTA,
            population_size=CLIENTS,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
    )


def events_of(client: Client, run: Run) -> list[dict[str, Any]]:
    run.flush()
    events: list[dict[str, Any]] = client.ledger(run.name)["events"]
    return events


def test_each_round_is_a_step_and_the_model_is_the_same_without_the_ledger(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    runs = [start() for _ in range(2)]
    strategies = [
        clipping(),
        clipping(accountant=rdp_accountant()),
        clipping(accountant=LedgerAccountant(runs[0], delta=DELTA)),
        LedgerStrategy(clipping(), runs[1], delta=DELTA),
    ]
    models = [weights_of(trained(strategy, grid, 3)) for strategy in strategies]
    assert all(np.array_equal(models[0], model) for model in models[1:])
    assert np.any(models[0] != 0)
    for run in runs:
        (event,) = events_of(client, run)
        assert (run.next_step, event["steps"]) == (3, 3)
        assert event["mechanism"] == gaussian(noise_multiplier=NOISE_MULTIPLIER)
        assert event["sampling"] == {"kind": "fixed_size", "batch_size": CLIENTS}


def test_client_side_clipping_is_counted_like_server_side_clipping(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    run, kind = start(), DifferentialPrivacyClientSideFixedClipping
    plain = trained(clipping(kind=kind), grid, 2)
    counted = trained(LedgerStrategy(clipping(kind=kind), run, delta=DELTA), grid, 2)
    assert np.array_equal(weights_of(plain), weights_of(counted))
    assert [event["steps"] for event in events_of(client, run)] == [2]


def test_a_refused_round_asks_no_client_and_leaves_the_model_of_the_last_one(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    epsilon = 4.0  # four rounds; the next would pass it
    by_strategy, by_accountant = start(epsilon=epsilon), start(epsilon=epsilon)
    four_rounds = trained(clipping(), grid, 4)
    strategy, before = LedgerStrategy(clipping(), by_strategy, delta=DELTA), grid.sent
    with pytest.raises(PrivacyBudgetExhausted):
        trained(strategy, grid, 10)
    assert grid.sent - before == 4 * CLIENTS
    assert np.array_equal(weights_of(strategy.arrays), weights_of(four_rounds))
    assert strategy.accountant.num_releases == 4
    with pytest.raises(PrivacyBudgetExhausted):
        trained(clipping(accountant=LedgerAccountant(by_accountant, delta=DELTA)), grid, 10)
    assert grid.sent - before == 8 * CLIENTS
    for run in (by_strategy, by_accountant):
        assert [event["steps"] for event in events_of(client, run)] == [4]
        assert run.verdict == "within"
        assert run.guarantee()["epsilon"] <= epsilon


def test_a_round_in_which_a_client_fails_releases_nothing_and_is_not_counted(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    lenient, strict = start(), start()
    broken = {"broken": 3, "broken-round": 2}
    model = trained(LedgerStrategy(clipping(), lenient, delta=DELTA), grid, 3, **broken)
    attested = LedgerStrategy(clipping(), strict, delta=DELTA, every_client_answers=True)
    with pytest.raises(AggregationError, match="every_client_answers"):
        trained(attested, grid, 3, **broken)
    assert np.any(weights_of(model) != 0)
    assert [event["steps"] for event in events_of(client, lenient)] == [2]
    assert [event["steps"] for event in events_of(client, strict)] == [1]
    assert not np.array_equal(weights_of(model), weights_of(attested.arrays))


def test_an_update_that_is_not_finite_releases_nothing_and_is_not_counted(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    run = start()
    one_round = trained(clipping(), grid, 1)
    strategy = LedgerStrategy(clipping(), run, delta=DELTA)
    with pytest.raises(AggregationError, match="not finite"):
        trained(strategy, grid, 3, **{"not-finite": 4})
    assert np.array_equal(weights_of(strategy.arrays), weights_of(one_round))
    assert [event["steps"] for event in events_of(client, run)] == [1]


def test_a_sample_of_clients_counts_at_its_rate_only_where_the_trainer_vouches_for_it(
    client: Client, start: Callable[..., Run], grid: InOrder
) -> None:
    plain, vouched, larger = start(), start(), start(clients=CLIENTS + 2)
    one = trained(LedgerStrategy(clipping(5), plain, delta=DELTA), grid, 2)
    secret_sample = LedgerStrategy(clipping(5), vouched, delta=DELTA, every_client_answers=True)
    other = trained(secret_sample, grid, 2)
    assert np.array_equal(weights_of(one), weights_of(other))
    before = grid.sent
    missing = LedgerStrategy(clipping(5), larger, delta=DELTA, every_client_answers=True)
    with pytest.raises(ValueError, match="10 nodes are connected"):
        trained(missing, grid, 1)
    assert grid.sent == before
    (told,), (secret,) = events_of(client, plain), events_of(client, vouched)
    assert told["sampling"] == {"kind": "fixed_size", "batch_size": CLIENTS}
    assert secret["sampling"] == {"kind": "fixed_size", "batch_size": 5}
    assert events_of(client, larger) == []


def replies(updates: list[np.ndarray]) -> list[Message]:
    """As clients would send them; to be made inside a simulation, where messages have a sender."""
    asked = [Message(RecordDict(), node + 1, "train") for node in range(len(updates))]
    contents = [
        RecordDict({"arrays": ArrayRecord([one]), "metrics": MetricRecord({"num-examples": 1})})
        for one in updates
    ]
    return [Message(content, reply_to=one) for one, content in zip(asked, contents, strict=True)]


def released(strategy: Any, updates: list[np.ndarray]) -> np.ndarray:
    strategy.current_arrays = ArrayRecord([np.zeros_like(updates[0])])
    return weights_of(strategy.aggregate_train(1, replies(updates))[0])


@pytest.mark.usefixtures("grid")
def test_flowers_arithmetic_is_what_the_adapter_says_of_it() -> None:
    fixed = DifferentialPrivacyServerSideFixedClipping
    up, many = np.array([9.0]), 200_000
    # A client that leaves moves the mean by two norms over m: hence fixed_size, never full.
    with_it = released(fixed(FedAvg(), 1e-300, 1.0, 10), [up] * 9 + [-up])
    without = released(fixed(FedAvg(), 1e-300, 1.0, 10), [up] * 9)
    assert abs(with_it - without).item() == pytest.approx(2 * 1.0 / 10)
    # The noise of the mean, times m, over the norm, is the ledger's noise multiplier.
    noise = released(fixed(FedAvg(), 1.5, 1.0, 4), [np.full(many, 1e-9)] * 4)
    assert np.std(noise) * 4 / 1.0 == pytest.approx(1.5, rel=0.02)
    # One coordinate that is no number keeps the others from being clipped: hence that refusal.
    spoilt = [np.array([np.nan, 1000.0]), np.full(2, 1e-9)]
    assert released(fixed(FedAvg(), 1e-300, 1.0, 2), spoilt)[1] == pytest.approx(500.0)
    # Adaptive clipping states one noise multiplier and has another: hence the refusal.
    adaptive = DifferentialPrivacyServerSideAdaptiveClipping(
        FedAvg(), 0.5, 10, initial_clipping_norm=1.0, clip_norm_lr=2.0, clipped_count_stddev=0.6
    )
    np.random.seed(3)  # noqa: NPY002 (Flower draws its noise there)
    adapted = released(adaptive, [np.ones(many)] * 10)
    assert np.std(adapted) * 10 / 1.0 < 0.8 * adaptive.noise_multiplier


def test_strategies_whose_noise_is_not_known_are_refused(start: Callable[..., Run]) -> None:
    run = start()
    silent = DifferentialPrivacyServerSideFixedClipping(fedavg(), 0.0, 0.5, CLIENTS)
    adam = DifferentialPrivacyServerSideFixedClipping(FedAdam(), 1.0, 0.5, CLIENTS)
    refused: list[tuple[Any, str]] = [
        (fedavg(), "FedAvg is not one of"),
        (LegacyClipping(LegacyFedAvg(), 1.0, 0.5, CLIENTS), "is not one of"),
        (DifferentialPrivacyServerSideAdaptiveClipping(fedavg(), 0.5, CLIENTS), "next round"),
        (DifferentialPrivacyClientSideAdaptiveClipping(fedavg(), 0.5, CLIENTS), "next round"),
        (clipping(accountant=rdp_accountant()), "already has an accountant"),
        (silent, "must be positive"),
        (adam, "FedAvg.aggregate_train"),
    ]
    for strategy, words in refused:
        with pytest.raises(ValueError, match=words):
            LedgerStrategy(strategy, run, delta=DELTA)


def test_a_rate_is_refused_for_clients_that_are_not_sampled_uniformly(
    start: Callable[..., Run],
) -> None:
    class Ordered(FedAvg):
        configure_train = FedXgbCyclic.configure_train

    strategy = DifferentialPrivacyServerSideFixedClipping(Ordered(), 1.0, 0.5, CLIENTS)
    LedgerStrategy(strategy, start(), delta=DELTA)
    with pytest.raises(ValueError, match="uniformly"):
        LedgerStrategy(strategy, start(), delta=DELTA, every_client_answers=True)


def test_the_example_trains_and_stops_at_its_budget(service_url: str, spool: Path) -> None:
    words = [sys.executable, "-m", "examples.flower_digits.train", "--url", service_url]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (epsilon,) = re.findall(r"^epsilon ([\d.]+) of a budget of 15, ", done.stdout, re.MULTILINE)
    assert 0 < float(epsilon) <= 15
    assert re.search(r"^After 9 rounds: ", done.stdout, re.MULTILINE)
    assert re.search(r"^9 rounds$", done.stdout, re.MULTILINE)
    (accuracy,) = re.findall(r"^accuracy ([\d.]+)% ", done.stdout, re.MULTILINE)
    assert float(accuracy) > 50
