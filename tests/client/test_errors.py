import pickle

import dpledger_client as dp
import pytest
from dpledger_client.errors import error_of


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
