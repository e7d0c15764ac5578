"""The ledger as Flower's accountant, beside Flower's own: epsilon, checkpoints and refusals."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dpledger_client import Client, Run
from dpledger_client.integrations.flower import LedgerAccountant
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)
from flwr.serverapp.exception import PrivacyBudgetExhausted
from flwr.supercore import telemetry

# The service's log stays open until it is collected.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

CLIENTS = 10
DELTA = 1e-3
NOISE_MULTIPLIER = 2.0
EVENT = {"noise_multiplier": 2.0, "sample_size": CLIENTS, "population_size": CLIENTS}
# Three rounds, then the state of the accountant, as a script would save it.
FIRST_PROCESS = f"""
import json, sys
from dpledger_client import Client
from dpledger_client.integrations.flower import LedgerAccountant
from flwr.serverapp import GaussianPrivacyEvent
run = Client().start_run("first-" + sys.argv[1], sys.argv[1])
accountant = LedgerAccountant(run, delta={DELTA})
accountant.compose(GaussianPrivacyEvent({NOISE_MULTIPLIER}, {CLIENTS}, {CLIENTS}), 3)
print(json.dumps(accountant.state_dict()))
"""


def rdp_accountant() -> RdpAccountant:
    return RdpAccountant(
        PrivacyConfig(
            target_delta=DELTA,
            population_size=CLIENTS,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
    )


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Of a Gaussian release: the privacy profile's closed form, solved by halving."""

    def profile(epsilon: float) -> float:
        def below(x: float) -> float:
            return 0.5 * math.erfc(-x / math.sqrt(2))

        shift = epsilon / mu
        return below(mu / 2 - shift) - math.exp(epsilon) * below(-mu / 2 - shift)

    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_epsilon_is_between_the_exact_value_and_what_flower_reports(
    start: Callable[..., Run], rounds: int
) -> None:
    flower, ledger = rdp_accountant(), LedgerAccountant(start(), delta=DELTA)
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    for accountant in (flower, ledger):
        accountant.compose(event, rounds)
    exact = gaussian_epsilon(math.sqrt(rounds) / NOISE_MULTIPLIER, DELTA)
    reported = ledger.get_privacy_spent()
    guarantee = ledger.run.guarantee(delta=DELTA)
    assert guarantee["epsilon_lower"] <= exact <= reported.epsilon
    assert reported.epsilon <= flower.get_epsilon(DELTA)
    assert reported.epsilon == guarantee["epsilon"]
    assert reported.num_releases == rounds
    # The other way round: a closed form, so it agrees up to rounding.
    assert ledger.get_delta(exact) == pytest.approx(DELTA, rel=1e-6)


def test_under_add_or_remove_one_the_ledger_counts_what_flower_leaves_out(
    start: Callable[..., Run],
) -> None:
    flower = rdp_accountant()
    ledger = LedgerAccountant(start(relation="add_or_remove_one"), delta=DELTA)
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    for accountant in (flower, ledger):
        accountant.compose(event, 7)
    twice_as_far = gaussian_epsilon(2 * math.sqrt(7) / NOISE_MULTIPLIER, DELTA)
    assert ledger.get_epsilon(DELTA) >= twice_as_far > flower.get_epsilon(DELTA)


def test_a_checkpoint_goes_on_where_it_was_and_a_rewind_takes_nothing_back(
    client: Client, start: Callable[..., Run]
) -> None:
    run = start()
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    before = LedgerAccountant(run, delta=DELTA)
    before.compose(event, 2)
    state = json.loads(json.dumps(before.state_dict()))
    # The same keys as Flower's own state, whose accountant reads the events.
    flower = rdp_accountant()
    assert set(flower.state_dict()) - {"orders"} == set(state) - {"run"}
    flower.load_state_dict({**flower.state_dict(), "compositions": state["compositions"]})
    assert flower.num_releases == 2

    before.compose(event)
    before.load_state_dict(state)  # a rewind of one round
    assert (before.num_releases, run.next_step) == (2, 2)
    before.compose(event)
    assert run.guarantee()["steps"] == 4


def test_another_process_goes_on_from_a_checkpoint_on_a_branch_of_its_own(
    client: Client, dataset: Callable[..., str], spool: Path
) -> None:
    data = dataset(dataset_size=CLIENTS, relation="replace_special")
    words = [sys.executable, "-c", FIRST_PROCESS, data]
    state = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    resumed = client.start_run(f"first-{data}", data, state=state["run"])
    branch = resumed.branch
    accountant = LedgerAccountant(resumed, delta=DELTA)
    accountant.load_state_dict(state)
    accountant.compose(GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS))
    assert (accountant.num_releases, resumed.branch, resumed.next_step) == (4, branch, 4)
    assert resumed.guarantee(delta=DELTA)["steps"] == 4
    resumed.finish()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"backend": "rdp"}, "state_dict"),
        ({"schema_version": 2}, "state_dict"),
        ({"config": {}}, "another delta"),
        ({"run": None}, "lacks"),
        ({"compositions": [{"count": 1}]}, "composition"),
        ({"compositions": [{"event": {"noise_multiplier": 1.0}, "count": 1}]}, "composition"),
        ({"compositions": [{"event": EVENT, "count": 0}]}, "count of at least 1"),
        ({"compositions": [{"event": EVENT, "count": True}]}, "count of at least 1"),
    ],
)
def test_a_state_of_something_else_is_refused(
    start: Callable[..., Run], change: dict[str, Any], words: str
) -> None:
    accountant = LedgerAccountant(start(), delta=DELTA)
    with pytest.raises(ValueError, match=words):
        accountant.load_state_dict({**accountant.state_dict(), **change})


def test_what_the_accountant_cannot_answer_is_refused(start: Callable[..., Run]) -> None:
    accountant = LedgerAccountant(start(), delta=DELTA)
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    with pytest.raises(ValueError, match="budget of the ledger"):
        accountant.would_exceed(event, max_epsilon=1.0)
    with pytest.raises(ValueError, match="another number of clients"):
        accountant.compose(GaussianPrivacyEvent(NOISE_MULTIPLIER, 5, 20))
    assert accountant.run.next_step == 0


def test_a_composition_that_the_budget_refuses_is_not_counted(start: Callable[..., Run]) -> None:
    accountant = LedgerAccountant(start(epsilon=4.0), delta=DELTA)
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    assert not accountant.would_exceed(event)
    assert accountant.would_exceed(event, count=5)
    with pytest.raises(PrivacyBudgetExhausted):
        accountant.compose(event, 5)
    assert (accountant.num_releases, accountant.run.next_step) == (0, 0)


def test_epsilon_is_infinite_while_the_service_is_away(
    service_url: str, dataset: Callable[..., str], spool: Path, service: Any
) -> None:
    impatient = Client(service_url, retries=1)
    name = dataset(dataset_size=CLIENTS, relation="replace_special")
    run = impatient.start_run(f"{name}-run", name, delta=DELTA)
    accountant = LedgerAccountant(run, delta=DELTA)
    event = GaussianPrivacyEvent(NOISE_MULTIPLIER, CLIENTS, CLIENTS)
    accountant.compose(event)
    service.kill()
    try:
        accountant.compose(event)  # under its lease: nobody is asked
        assert accountant.get_privacy_spent().epsilon == math.inf
    finally:
        service.start()
    run.flush()
    assert run.guarantee()["steps"] == 2
    run.finish()
    impatient.close()


def test_flower_tells_nothing_to_anybody_outside_this_machine() -> None:
    assert telemetry.FLWR_TELEMETRY_ENABLED == "0"
