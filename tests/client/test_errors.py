import math
import pickle
import traceback

import dpledger_client as dp
import pytest
from dpledger_client.errors import error_of
from dpledger_client.rounding import down, percent_up, up

from tests.client.fake_service import FakeService


@pytest.mark.parametrize(
    ("slug", "status", "kind"),
    [
        ("budget-exhausted", 409, dp.BudgetExhausted),
        ("unsupported-event", 422, dp.UnsupportedEvent),
        ("conflict", 409, dp.Conflict),
        ("run-exists", 409, dp.RunExists),
        ("branch-exists", 409, dp.BranchExists),
        ("out-of-sequence", 409, dp.OutOfSequence),
        ("run-finished", 409, dp.RunFinished),
        ("not-found", 404, dp.NotFound),
        ("unauthorized", 401, dp.Unauthorized),
        ("forbidden", 403, dp.Forbidden),
        ("invalid-request", 422, dp.InvalidRequest),
        ("malformed-body", 400, dp.InvalidRequest),
        ("unsupported-media-type", 415, dp.InvalidRequest),
        ("body-too-large", 413, dp.InvalidRequest),
        ("unavailable", 503, dp.Unavailable),
        ("never-heard-of", 418, dp.DPLedgerError),
    ],
)
def test_a_problem_type_is_its_class(slug: str, status: int, kind: type[dp.DPLedgerError]) -> None:
    error = error_of({"type": f"https://ledger.example/problems/{slug}", "title": "No"}, status)
    assert type(error) is kind
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, dp.Unauthorized),
        (404, dp.NotFound),
        (502, dp.Unavailable),
        (500, dp.Unavailable),
        (429, dp.Unavailable),
        (418, dp.DPLedgerError),
    ],
)
def test_without_a_problem_type_the_status_decides(
    status: int, kind: type[dp.DPLedgerError]
) -> None:
    assert type(error_of({}, status)) is kind


def test_the_message_is_title_and_detail() -> None:
    assert str(dp.Conflict({"title": "Taken", "detail": "by another"}, 409)) == "Taken: by another"
    assert str(dp.Conflict({"title": "Taken"}, 409)) == "Taken"
    assert str(dp.DPLedgerError({}, 500)) == "HTTP status 500"


@pytest.mark.parametrize(
    ("title", "detail"),
    [
        ("The steps do not fit in the budget", "The steps do not fit in the budget of run:a."),
        ("The run was closed.", "The run was closed; record what still happened in it."),
        ("", "Only a detail."),
    ],
)
def test_a_detail_that_says_what_the_title_does_is_told_alone(title: str, detail: str) -> None:
    assert str(dp.Conflict({"title": title, "detail": detail}, 409)) == detail


def test_errors_carry_what_the_problem_says() -> None:
    exhausted = dp.BudgetExhausted(
        {"failing_scopes": [{"scope": "run:a"}], "admissible_steps": 3}, 409
    )
    assert exhausted.failing_scopes == [{"scope": "run:a"}]
    assert exhausted.admissible_steps == 3
    assert dp.OutOfSequence({"expected_step": 7}, 409).expected_step == 7
    assert dp.OutOfSequence({}, 409).expected_step is None


def test_errors_travel_between_processes() -> None:
    error = dp.BudgetExhausted({"title": "No", "admissible_steps": 3}, 409)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - made in the line itself
    assert (type(copy), copy.problem, copy.status) == (type(error), error.problem, error.status)


SCOPE = {"scope": "dataset:a", "limit": 2.0, "spent": 1.98761, "reserved": 0.0, "delta": 1e-5}
TOLD = "dataset:a has spent 1.9877 of 2. None of them would fit."


@pytest.mark.parametrize(
    ("scope", "admissible", "message"),
    [
        (SCOPE, 0, "Run r has taken 101 steps; no more steps fit: dataset a has a limit of 2, and "
         "1.9877 is charged. Count at order 14."),
        (SCOPE | {"reserved": 0.01}, 1, "Run r has taken 101 steps; 1 more step fits: dataset a "
         "has a limit of 2, and 1.9877 is charged and 0.01 reserved. Count at order 14."),
        (SCOPE | {"spent": None}, 3, "Run r has taken 101 steps; 3 more steps fit: dataset a has "
         "a limit of 2, and infinity is charged. Count at order 14."),
        (SCOPE | {"would_fit": "less noise"}, 0, f"{TOLD} Count at order 14. Run r has taken 101 "
         "steps; no more steps fit."),
    ],
)  # fmt: skip
def test_an_exhausted_budget_is_told_in_one_line(
    scope: dict[str, object], admissible: int, message: str
) -> None:
    problem = {"detail": f"{TOLD} Count at order 14.", "failing_scopes": [scope]}
    told = {"admissible_steps": admissible, "run": "r", "steps_taken": 101}
    assert str(dp.BudgetExhausted(problem | told, 409)) == message


@pytest.mark.parametrize("state", ["finished", "active"])
def test_a_run_that_exists_is_told_with_its_state(state: str) -> None:
    detail = f"Run r exists: {state}, 3 steps. Go on with it."
    told = str(dp.RunExists({"title": "T", "detail": detail, "run_state": state}, 409))
    assert told.startswith(detail)
    assert told.endswith("choose another name; None makes one.")
    assert ("Another process may have it open." in told) == (state == "active")


def test_a_run_that_exists_names_the_other_choice_once() -> None:
    detail = "Run r exists: finished, 3 steps. Go on with it, or choose another name."
    told = str(dp.RunExists({"title": "T", "detail": detail, "run_state": "finished"}, 409))
    assert told == f"{detail[:-1]}; None makes one."


def test_a_refusal_of_a_budget_shows_few_frames_of_the_client(
    service: FakeService, client: dp.Client
) -> None:
    service.steps_max = 1
    run = client.start_run(
        "run", "letters", mechanism=dp.no_noise(), sampling=dp.full(), mode="strict"
    )
    with pytest.raises(dp.BudgetExhausted) as refused:
        run.step(steps=2)
    frames = traceback.extract_tb(refused.tb)
    assert [one.name for one in frames][1:] == ["step", "_admit"]
    assert refused.value.__suppress_context__
    run.finish()


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        (math.nextafter(0.1234, 1), "0.1235"),
        (1234567.8912345, "1234567.8913"),
        (20.0, "20"),
        (1e6, "1000000"),
    ],
)
def test_what_is_charged_is_never_told_less(spent: float, told: str) -> None:
    problem = {"failing_scopes": [SCOPE | {"spent": spent}], "detail": TOLD}
    error = dp.BudgetExhausted(problem | {"admissible_steps": 0, "run": "r", "steps_taken": 1}, 409)
    assert f"and {told} is charged" in str(error)


@pytest.mark.parametrize(
    ("value", "upper", "lower"),
    [
        (math.nextafter(0.1234, 1), "0.1235", "0.1234"),
        (math.nextafter(0.1234, 0), "0.1234", "0.1233"),
        (3.0, "3.0000", "3.0000"),
        (1e300, f"{10**300}.0000", f"{10**300}.0000"),
    ],
)
def test_bounds_are_told_on_their_side(value: float, upper: str, lower: str) -> None:
    assert (up(value), down(value)) == (upper, lower)


@pytest.mark.parametrize(
    ("share", "told"), [(0.25, "25 %"), (0.12300000000000001, "12.4 %"), (1.0, "100 %")]
)
def test_a_share_is_never_told_less(share: float, told: str) -> None:
    assert percent_up(share) == told
