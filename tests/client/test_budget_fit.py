"""Before its first step a training is told how much of it fits, and may be made the budget."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from dpledger_client import (
    BudgetExhausted,
    BudgetFit,
    Client,
    Forbidden,
    Run,
    check_budget,
    event,
    gaussian,
    poisson,
    shuffle,
)
from sqlalchemy import Engine

from service.identity.keys import Role
from tests.client.fake_service import FakeService
from tests.service.browsing import make_key

# What PRV calibrates for 400 steps at rate .05 to epsilon 3: the default filter holds 266 of them.
NOISE, SAMPLING = gaussian(noise_multiplier=1.626), poisson(sampling_probability=0.05)
HELD = 266
BUDGET = {"epsilon": 3.0, "delta": 1e-5}
Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


def create(client: Client, name: str = "data", **given: Any) -> None:
    client.create_dataset(
        name,
        **{
            "dataset_size": 60000,
            "neighboring_relation": "add_or_remove_one",
            "privacy_unit": "example",
            "budget": BUDGET,
            **given,
        },
    )


def training(steps: int = 400, noise: Any = NOISE) -> list[dict[str, Any]]:
    return [event(mechanism=noise, sampling=SAMPLING, steps=steps)]


def start(client: Client, name: str = "run", **given: Any) -> Run:
    return client.start_run(name, "data", mechanism=NOISE, sampling=SAMPLING, **given)


def checked(run: Run, events: Any = None, **given: Any) -> BudgetFit:
    found = check_budget(run, training() if events is None else events, **given)
    assert found is not None
    return found


def test_a_calibrated_training_that_the_filter_cuts_short_is_told_of_its_envelope(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    create(client)
    with start(client) as run:
        found = checked(run)
        assert (found.admitted, found.fits, found.changed) == (HELD, False, False)
        assert found.envelope is not None
        assert 2.9 < (found.epsilon_required or 0) <= 3
        said = capsys.readouterr().out
        assert said == "".join(f"dpledger: {line}\n" for line in found.lines)
        assert f"admits {HELD} of the 400 steps" in said
        assert 'dataset_budget="this plan"' in said
        for _ in range(HELD):
            run.step()
        with pytest.raises(BudgetExhausted):
            run.step()


def test_this_plan_runs_to_its_end_and_not_a_step_further(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    create(client)
    with start(client) as run:
        found = checked(run, dataset_budget="this plan")
        assert (found.admitted, found.fits, found.changed) == (400, True, True)
        said = capsys.readouterr().out
        assert "is now an envelope of exactly this training. It admits all 400 steps" in said
        budget = client.dataset("data")["budget"]
        assert (budget["epsilon"], budget["delta"]) == (3.0, 1e-5)
        assert [(one["allowed"], one["name"]) for one in budget["items"]] == [(400, "run")]
        for _ in range(400):
            run.step()
        with pytest.raises(BudgetExhausted):
            run.step()
    assert client.run("run")["steps"] == 400


def test_a_second_start_neither_fails_nor_changes_the_budget(client: Client) -> None:
    create(client)
    for steps, name in ((0, "none"), (10, "run")):
        with start(client, name) as run:
            assert checked(run, dataset_budget="this plan").changed is (name == "none")
            for _ in range(steps):
                run.step()
    revision = client.dataset("data")["revision"]
    with start(client, "run", resume="must") as run:
        assert run.next_step == 10
        again = checked(run, training(), dataset_budget="this plan")
        assert (again.fits, again.admitted, again.changed) == (False, 390, False)
        rest = checked(run, training(390), dataset_budget="this plan")
        assert rest.fits
    assert client.dataset("data")["revision"] == revision


def test_what_fits_as_it_is_leaves_the_budget_as_it_is(client: Client) -> None:
    create(client)
    with start(client) as run:
        found = checked(run, training(250), dataset_budget="this plan")
        assert found.lines[0].endswith("admits all 250 steps of this training.")
        assert not found.changed
    assert client.dataset("data")["revision"] == 1


def test_what_does_not_fit_as_an_envelope_is_refused_before_its_first_step(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    create(client)
    with start(client) as run:
        with pytest.raises(BudgetExhausted, match="No step was taken") as refused:
            checked(run, training(600), dataset_budget="this plan")
        assert refused.value.admissible_steps == HELD
        assert refused.value.failing_scopes == [{"scope": "dataset:data"}]
        said = capsys.readouterr().out
        needed = re.search(r"All 600 steps need epsilon (\d\.\d{4}) at this delta", said)
        assert needed is not None, said
        assert 3 < float(needed[1]) < 4
        would = re.search(
            r"of (\d+) steps or of 600 steps with a noise multiplier of ([\d.]+)", said
        )
        assert would is not None, said
        fewer, louder = (
            training(int(would[1])),
            training(600, gaussian(noise_multiplier=float(would[2]))),
        )
        assert 400 < fewer[0]["steps"] < 410
        assert checked(run, fewer, dataset_budget="this plan").changed
        assert checked(run, louder, dataset_budget="this plan").changed  # nothing was charged yet
    assert client.dataset("data")["budget"]["items"][0]["allowed"] == 600


def test_after_an_answer_the_budget_cannot_become_this_plan(client: Client) -> None:
    create(client)
    with start(client, "first") as run:
        run.step()
    with start(client) as run:
        found = checked(run)
        assert (found.admitted, found.envelope) == (HELD - 1, None)
        assert "was used before" in found.lines[1]
        with pytest.raises(BudgetExhausted):
            checked(run, dataset_budget="this plan")
    assert client.dataset("data")["revision"] == 1


def test_after_a_reservation_that_was_returned_the_budget_stays(
    client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    create(client)
    with start(client, "first") as run:
        run.admit()  # and takes no step
    assert client.dataset("data")["reserved"] == 0
    with start(client) as run:
        with pytest.raises(BudgetExhausted, match="No step was taken"):
            checked(run, dataset_budget="this plan")
        assert "was used before" in capsys.readouterr().out
    assert client.dataset("data")["revision"] == 1


def test_the_budget_of_the_run_counts_too(client: Client) -> None:
    create(client)
    with start(client, budget={"epsilon": 1.0, "delta": 1e-5}) as run:
        found = checked(run, training(250))
        assert found.failing_scopes == ["run:run"]
        assert found.lines[0].startswith("The budget of dataset data (epsilon 3, delta 1e-05) and")
        admitted = found.admitted
        assert admitted is not None
        for _ in range(admitted):
            run.step()
        with pytest.raises(BudgetExhausted):
            run.step()


def test_the_length_may_be_unknown(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    create(client)
    with start(client) as run:
        found = checked(run, training(1), length_known=False)
        assert (found.steps, found.admitted) == (None, HELD)
        assert f"admits {HELD} more steps like the first" in capsys.readouterr().out
        with pytest.raises(ValueError, match="length of the training"):
            checked(run, training(1), length_known=False, dataset_budget="this plan")
        with pytest.raises(ValueError, match="dataset_budget must be"):
            checked(run, dataset_budget="that plan")


def test_without_a_budget_all_is_admitted(client: Client) -> None:
    create(client, budget=None)
    with start(client) as run:
        found = checked(run, dataset_budget="this plan")
        assert (found.fits, found.admitted, found.changed) == (True, None, False)


def test_passes_are_listed_as_passes(client: Client) -> None:
    create(client, neighboring_relation="replace_special", accept=["published", "derived"])
    sampling = shuffle(batch_size=6000, steps_per_pass=10)
    noise = gaussian(noise_multiplier=3.0)
    with client.start_run("run", "data", mechanism=noise, sampling=sampling) as run:
        events = [event(mechanism=noise, sampling=sampling, steps=40)]
        found = checked(run, events)
        if not found.fits:
            found = checked(run, events, dataset_budget="this plan")
        assert found.fits
        for _ in range(40):
            run.step()


def test_a_plan_is_not_held_against_the_budget_twice(client: Client) -> None:
    create(client, accept=["published", "declared", "derived"])
    with start(client, plan=training(200), budget=BUDGET) as run:
        assert check_budget(run, training()) is None


def test_a_service_that_is_away_stops_nothing(service: FakeService, tmp_path: Path) -> None:
    with Client(transport=httpx.MockTransport(service), retries=0) as client:
        run = client.start_run("run", "data", mode="observe", dataset_size=60000)
        service.away = True
        assert check_budget(run, training()) is None
        assert check_budget(run, training(), dataset_budget="this plan") is None
        service.away = False
        run.finish()


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_hear_whether_the_plan_became_the_budget(client: Client, rank: int) -> None:
    create(client)
    said: list[int] = []

    def broadcast(number: int) -> int:
        said.append(number)
        return 0

    run = start(client, rank=rank, world_size=2, broadcast=broadcast)
    found = check_budget(run, training(), dataset_budget="this plan")
    assert (found is None, said) == (bool(rank), [0])
    run.finish()


def test_a_trainer_is_told_what_an_admin_has_to_send(
    serve: Serve, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    officer = make_key(engine, "officer", Role.ADMIN)
    trainer = make_key(engine, "trainer", Role.TRAINER)
    with serve() as address, Client(address, officer) as admin, Client(address, trainer) as client:
        create(admin)
        with start(client) as run:
            with pytest.raises(Forbidden, match="may not set the budget of dataset data"):
                checked(run, dataset_budget="this plan")
            assert run.next_step == 0
            said = capsys.readouterr().out
            path, etag, body = re.findall(
                r"PATCH (\S+).*If-Match: (\S+)'.*--data '(.*)'", said, re.S
            )[0]
            answer = httpx.patch(
                path, json=json.loads(body),
                headers={"Authorization": f"Bearer {officer}", "If-Match": etag},
            )  # fmt: skip
            assert answer.status_code == 200, answer.text
            assert checked(run, dataset_budget="this plan").fits  # the same script, once more
            for _ in range(400):
                run.step()


def test_a_change_whose_answer_was_lost_is_found(client: Client) -> None:
    create(client)
    with start(client) as run:
        patch = run._transport.patch

        def twice(*given: Any, **options: Any) -> dict[str, Any]:
            patch(*given, **options)
            return patch(*given, **options)

        run._transport.patch = twice  # type: ignore[method-assign]
        assert checked(run, dataset_budget="this plan").fits
    assert client.dataset("data")["revision"] == 2
