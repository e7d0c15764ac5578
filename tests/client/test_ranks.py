"""Jobs of several processes: all stop at the same step, one reports, and none may differ."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client, Run
from dpledger_client.training import distributed

from tests.client.conftest import Waiter
from tests.client.fake_service import FakeService, answering, problem
from tests.client.samples import FAIL, LOUD, MAIN, QUIET, SAMPLING, start, step

WORLD = 3


class Collective:
    """Gives every rank the number of rank 0, and waits for all of them, as a real one does."""

    def __init__(self) -> None:
        self.calls = 0
        self._barrier = Barrier(WORLD, timeout=60)
        self._said = 0

    def of(self, rank: int) -> Callable[[int], int]:
        """As one rank calls it."""

        def broadcast(number: int) -> int:
            if rank == 0:
                self._said = number
                self.calls += 1
            self._barrier.wait()
            said = self._said
            self._barrier.wait()
            return said

        return broadcast


def job(client: Client, **options: Any) -> tuple[list[Run], Collective]:
    """The runs of all ranks."""
    collective = Collective()
    runs = [
        start(client, rank=rank, world_size=WORLD, broadcast=collective.of(rank), **options)
        for rank in range(WORLD)
    ]
    return runs, collective


def together(runs: list[Run], work: Callable[[Run], Any]) -> list[Any]:
    """What each rank's work returns, or what it raised."""

    def outcome(run: Run) -> Any:
        try:
            return work(run)
        except dp.DPLedgerError as error:
            return error

    with ThreadPoolExecutor(WORLD) as pool:
        return list(pool.map(outcome, runs))


@pytest.mark.parametrize("mode", ["leased", "strict"])
def test_all_ranks_stop_at_the_same_step(service: FakeService, client: Client, mode: str) -> None:
    service.steps_max = 83
    runs, _ = job(client, mode=mode)

    def train(run: Run) -> int:
        for taken in range(200):
            try:
                step(run)
            except dp.BudgetExhausted:
                return taken
        return -1

    assert together(runs, train) == [83] * WORLD
    assert [run.next_step for run in runs] == [83] * WORLD
    together(runs, lambda run: run.finish())
    assert (service.recorded, service.held) == (83, 0)


def test_ranks_meet_once_a_lease_and_not_once_a_step(service: FakeService, client: Client) -> None:
    runs, collective = job(client, lease_steps=50)

    def train(run: Run) -> None:
        for _ in range(50):
            step(run)

    together(runs, train)
    assert collective.calls == 1
    together(runs, step)
    assert collective.calls == 2


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem("unsupported-event", 422), dp.UnsupportedEvent),
        (problem("unauthorized", 401), dp.Unauthorized),
        (None, dp.Unavailable),
    ],
)
def test_whatever_stops_rank_0_stops_all(
    service: FakeService, client: Client, answer: Any, kind: type[dp.DPLedgerError]
) -> None:
    runs, _ = job(client)
    service.faulty = "/reservations"
    service.faults.extend(FAIL if answer is None else [answering(answer)])
    raised = together(runs, step)
    assert type(raised[0]) is kind
    assert all("Rank 0" in str(error) for error in raised[1:])
    assert [run.next_step for run in runs] == [0] * WORLD
    assert together(runs, step) == [None] * WORLD


def test_a_full_disk_of_rank_0_stops_all(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, _ = job(client)

    def full(spool: object, line: object) -> None:
        raise OSError(28, "No space left on device")

    def work(run: Run) -> Any:
        try:
            step(run)
        except OSError as error:
            return error
        return None

    with monkeypatch.context() as patch:
        patch.setattr("dpledger_client.recording.write_ahead_file.Spool.append", full)
        raised = together(runs, work)
    assert isinstance(raised[0], OSError)
    assert all(isinstance(error, dp.DPLedgerError) for error in raised[1:])


def test_an_interrupt_of_rank_0_stops_all() -> None:
    said: list[int] = []

    def broadcast(number: int) -> int:
        said.append(number)
        return number

    def interrupted() -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        distributed.agree(broadcast, 0, interrupted)
    assert said == [distributed.STOPPED]


def test_a_refused_change_leaves_no_rank_with_what_was_admitted_before(
    service: FakeService, client: Client
) -> None:
    service.steps_max = 10
    runs, _ = job(client, lease_steps=10)
    together(runs, step)
    service.steps_max = 1
    refused = together(runs, lambda run: step(run, LOUD))
    assert all(isinstance(error, dp.BudgetExhausted) for error in refused)
    refused = together(runs, step)
    assert all(isinstance(error, dp.BudgetExhausted) for error in refused)
    assert [run.next_step for run in runs] == [1] * WORLD


def test_only_rank_0_writes(service: FakeService, client: Client, spool: Path) -> None:
    runs, _ = job(client)
    together(runs, lambda run: step(run, steps=3))
    together(runs, lambda run: run.release())
    together(runs, lambda run: run.flush())
    assert len(list(spool.iterdir())) == 1
    assert [run.spool is None for run in runs] == [False, True, True]
    assert together(runs, lambda run: run.finish())[1:] == [None, None]
    assert len(service.steps[MAIN]) == 3
    assert service.releases == [("run", "main", 2)]
    assert sum(path == "/v1/runs" for path in service.paths) == 1
    with pytest.raises(dp.RunFinished):
        step(runs[1])


def test_without_a_collective_the_others_only_count(service: FakeService, client: Client) -> None:
    run = start(client, rank=1, world_size=2)
    for _ in range(100):
        step(run)
    run.flush()
    run.finish()
    assert run.next_step == 100
    assert (run.unsent_steps, run.trouble, run.epsilon) == (0, None, None)
    assert all("events" not in path and "reservations" not in path for path in service.paths)


def test_each_rank_says_once_how_it_is_configured(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    runs, _ = job(client)
    for _ in range(3):
        together(runs, step)
    together(runs, lambda run: step(run, LOUD))
    runs[0].flush()
    eventually(lambda: len(service.findings) == WORLD)
    told = sorted(service.findings, key=lambda each: int(each["rank"]))
    assert [each["rank"] for each in told] == [0, 1, 2]
    assert len({each["fingerprint"] for each in told}) == 1
    assert {(each["kind"], each["world_size"], each["branch"]) for each in told} == {
        ("rank", WORLD, "main")
    }
    assert set(told[0]) == {"kind", "rank", "world_size", "fingerprint", "branch"}


@pytest.mark.parametrize(
    "other",
    [
        {"noise": LOUD}, {"sampling": dp.full()}, {"mode": "observe"},
    ],
)  # fmt: skip
def test_a_rank_that_is_configured_otherwise_has_another_fingerprint(
    service: FakeService, client: Client, eventually: Waiter, other: dict[str, Any]
) -> None:
    given = {"noise": QUIET, "sampling": SAMPLING, "mode": "leased"}
    for rank, options in enumerate((given, {**given, **other})):
        run = start(client, mode=options["mode"], rank=rank, world_size=2)
        run.step(mechanism=options["noise"], sampling=options["sampling"])
        run.flush()
    eventually(lambda: len(service.findings) == 2)
    one, two = service.findings
    assert one["fingerprint"] != two["fingerprint"]


def test_the_only_process_of_a_job_says_nothing_of_its_rank(
    service: FakeService, client: Client
) -> None:
    run = start(client)
    step(run)
    run.finish()
    assert service.findings == []


def test_a_fingerprint_waits_for_rank_0_to_register_the_run(
    service: FakeService, client: Client, eventually: Waiter, waits: list[float]
) -> None:
    late = start(client, rank=1, world_size=2)
    step(late)
    eventually(lambda: waits)
    run = start(client, rank=0, world_size=2)
    step(run)
    run.flush()
    eventually(lambda: len(service.findings) == 2 or len(waits) >= distributed.TRIES)
    assert distributed.TRY_SECONDS in waits


def test_a_refused_fingerprint_is_logged_and_stops_nothing(
    service: FakeService, client: Client, eventually: Waiter, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(client, rank=1, world_size=2)
    service.faults.append(answering(problem("invalid-request", 422)))
    step(run)
    eventually(lambda: "configuration of a rank was refused" in caplog.text)
    step(run)


def test_all_ranks_resume_on_the_branch_of_rank_0(
    service: FakeService, client: Client, eventually: Waiter
) -> None:
    runs, _ = job(client)
    together(runs, lambda run: step(run, steps=5))
    state = runs[0].state_dict()
    together(runs, lambda run: run.finish())
    again, collective = job(client, state=state)
    assert len({run.branch for run in again}) == WORLD
    together(again, step)
    assert {run.branch for run in again} == {again[0].branch}
    assert again[0].branch in {branch for _, branch in service.steps}
    assert collective.calls == 2  # for the name, and for the step
    again[0].flush()
    eventually(lambda: len(service.findings) == 2 * WORLD)
    assert {each["branch"] for each in service.findings} == {"main", again[0].branch}


def test_all_ranks_rewind_together(service: FakeService, client: Client) -> None:
    runs, _ = job(client, lease_steps=50)
    together(runs, lambda run: step(run, steps=5))
    states = [runs[0].state_dict()] * WORLD
    together(runs, lambda run: step(run, steps=5))

    def rewind(run: Run) -> None:
        run.load_state_dict(states[run.rank])
        step(run)

    assert together(runs, rewind) == [None] * WORLD
    assert [run.next_step for run in runs] == [6] * WORLD
    # A state of where rank 0 is changes nothing, and no rank waits for another in vain.
    states = [runs[0].state_dict()] * WORLD
    assert together(runs, rewind) == [None] * WORLD
    together(runs, lambda run: run.finish())
    assert (service.recorded, service.held) == (12, 0)


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, (None, None), (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "4"}, (None, None), (0, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (2, None), (2, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, (0, 1), (0, 1)),
        ({"WORLD_SIZE": "4"}, (3, None), (3, 4)),
        ({}, (3, None), (3, 4)),
    ],
)
def test_the_place_of_a_process_is_given_or_that_of_its_job(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    given: tuple[int | None, int | None],
    expected: tuple[int, int],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert distributed.place(*given, None) == expected


def test_a_rank_that_only_the_environment_names_needs_a_collective(
    monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="reports nothing"):
        start(client)  # as in an array of jobs that have nothing to do with each other
    assert distributed.place(None, None, lambda number: number) == (1, 2)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 1), (1, 1), (0, 0), (4, 2)])
def test_there_is_no_rank_beyond_the_job(rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        distributed.place(rank, world_size, None)
