"""How numbers are written on pages: no upper bound is told less, no lower bound more."""

import math
import re
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import formatting
from service.clock import now
from service.errors import BudgetExhaustedError
from service.formatting import (
    NO_BOUND,
    ago,
    all_digits,
    at_most,
    charged_of,
    charged_share,
    count,
    days,
    down,
    moment,
    percent_up,
    plain,
    up,
    words,
)
from service.guarantees.statements.statement_text import budget_remarks
from service.schemas.plan_response import PlanEnvelope
from service.schemas.responses import BudgetAnswer
from service.web.dashboard.pages.act_sentences import act_sentence
from service.web.dashboard.pages.planning.planner_budget import envelope_limit

POSITIVE = st.floats(min_value=0, max_value=1e300, allow_nan=False)


def read(text: str) -> Fraction:
    return Fraction(text.replace(",", ""))


@given(value=POSITIVE, digits=st.integers(1, 8))
def test_an_upper_bound_is_never_told_less(value: float, digits: int) -> None:
    # The shortest text that is read back as the value stands for it.
    assert float(read(up(value, digits))) >= value


@given(value=POSITIVE, digits=st.integers(1, 8))
def test_a_lower_bound_is_never_told_more(value: float, digits: int) -> None:
    assert float(read(down(value, digits))) <= value


@given(value=st.floats(min_value=1e-6, max_value=1e6))
def test_both_are_near(value: float) -> None:
    for text in (up(value), down(value), plain(value)):
        assert abs(float(read(text)) - value) <= 1.01e-3 * value


@pytest.mark.parametrize(
    ("value", "upper", "lower"),
    [
        (0.0, "0", "0"),
        (3.0, "3", "3"),
        (0.1, "0.1", "0.1"),
        (1.23451, "1.235", "1.234"),
        (0.123456, "0.1235", "0.1234"),
        (12.3456, "12.35", "12.34"),
        (1234.5, "1,235", "1,234"),
        (99_999.5, "100,000", "99,999"),
        (9.9999, "10.000", "9.999"),
        (1.1899, "1.190", "1.189"),
        (0.99999, "1.0000", "0.9999"),
        (1e-5, "1e-5", "1e-5"),
        (2.00001e-7, "2.001e-7", "2.000e-7"),
        (9.9999e-7, "1.000e-6", "9.999e-7"),
        (1e16, "1e16", "1e16"),
        (math.inf, "no finite bound", "∞"),
        (None, "—", "—"),
        (math.nan, "—", "—"),
    ],
)
def test_numbers_are_short(value: float | None, upper: str, lower: str) -> None:
    assert (up(value), down(value)) == (upper, lower)


def test_what_is_used_up_is_rounded_up() -> None:
    assert percent_up(0.50001) == "50.1\u202f%"
    assert percent_up(0.5) == "50\u202f%"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.0, "under an hour"), (0.99, "23 hours"), (1.0, "1 day"), (1.99, "1 day"),
     (45.9, "45 days"), (1e9, "over 10 years")],
)  # fmt: skip
def test_what_lasts_lasts_no_longer_than_is_said(value: float | None, text: str) -> None:
    assert days(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "just now"), (60, "1 minute ago"), (7200, "2 hours ago"), (2 * 86_400, "2 days ago")],
)
def test_times_are_told_from_now(monkeypatch: pytest.MonkeyPatch, seconds: int, text: str) -> None:
    present = now()
    monkeypatch.setattr(formatting, "now", lambda: present)
    assert ago(present - timedelta(seconds=seconds)) == text
    assert ago(None) == "—"


def test_times_are_in_utc_however_they_come() -> None:
    assert moment("2026-11-22T07:00:59+02:00") == "2026-11-22 05:00 UTC"
    assert moment(None) == "—"


def test_counts_and_kinds_are_readable() -> None:
    assert (count(1_234_567), count(None)) == ("1,234,567", "—")
    assert words("sampling_contradicted") == "Sampling contradicted"


@pytest.mark.parametrize(
    ("share", "alone", "of_it"),
    [
        (None, "no finite bound", "no finite bound of it"),
        (math.inf, "no finite bound", "no finite bound of it"),
        (0.0, "0\u202f%", "0\u202f% of it"),
        (0.7512, "75.2\u202f%", "75.2\u202f% of it"),
        (10.0, "1,000\u202f%", "1,000\u202f% of it"),
        (697.1501, "698 times", "698 times it"),
    ],
)
def test_a_charged_share_is_told_in_percent_or_in_times_and_never_less(
    share: float | None, alone: str, of_it: str
) -> None:
    assert charged_share(share) == alone
    assert charged_of(share, "it") == of_it


def test_what_has_no_finite_bound_is_always_called_so() -> None:
    assert at_most(None) == up(math.inf) == percent_up(math.inf) == NO_BOUND
    assert at_most(1.23451) == up(1.23451)
    assert up(None) == percent_up(None) == "—"  # nothing is known


WRITTEN = re.compile(r"""(['"])no finite bound\1|>no finite bound<|∞""")


def test_no_page_has_words_of_its_own_for_an_infinite_bound() -> None:
    root = Path(formatting.__file__).parent
    files = [*root.rglob("*.html"), *root.rglob("*.py")]
    assert len(files) > 100
    found = {one.name for one in files if WRITTEN.search(one.read_text())}
    assert found == {"formatting.py"}
    charts = (root / "web/dashboard/static/charts.js").read_text()
    assert f'value > 0 ? "{NO_BOUND}"' in charts


def test_the_reason_for_no_bound_names_nothing_of_code() -> None:
    said = formatting.bound_reason(
        "Under add_or_remove_one a by_slot pass has no bound. Use replace_special or replace_one."
    )
    assert said.startswith("Under “add or remove one” a by slot pass has no bound. The dataset's")
    assert "only a new dataset can use “replace one”" in said
    assert "_" not in said


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        (math.nextafter(0.1234, 1), "0.1235"),
        (1234567.8912345, "1234567.8913"),
        (20.0, "20"),
        (math.inf, "infinity"),
    ],
)
def test_a_refusal_never_tells_less_than_is_spent(spent: float, told: str) -> None:
    scope = {"scope": "dataset:a", "limit": 2.0, "spent": spent, "reserved": 0.0}
    refusal = BudgetExhaustedError([scope], admissible_steps=0)
    assert f"has spent {told} of 2" in str(refusal)


@pytest.mark.parametrize(
    ("delta", "told"), [(1e-5, "1e-5"), (1.2345678e-7, "1.2345678e-7"), (0.05, "0.05")]
)
def test_a_delta_beside_both_bounds_is_told_to_the_last_digit(delta: float, told: str) -> None:
    assert all_digits(delta) == told


def test_an_envelope_of_the_planner_is_not_below_what_is_certified() -> None:
    certified = math.nextafter(0.1234, 1)
    plan = PlanEnvelope(epsilon=certified, delta=1e-5, filter="envelope", envelope=[])
    assert envelope_limit(plan) == 0.1235


def test_no_limit_and_no_delta_is_told_to_the_nearest_digit() -> None:
    """A limit is decided on, a delta stands beside bounds, and after "≤" stands a bound."""
    folder = Path(formatting.__file__).parent / "web" / "dashboard" / "templates"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.html")}
    told = [re.findall(r"[\w.]*(?:epsilon|delta) \| plain", text) for text in texts.values()]
    assert [one for found in told for one in found] == []
    bounds = [re.findall(r"≤ \{\{[^}]*\}\}", text) for text in texts.values()]
    assert sum(map(len, bounds)) > 3
    assert [one for found in bounds for one in found if "| plain" in one] == []


@given(st.floats(1e-300, 1e6) | st.floats(1e-12, 1.0))
def test_a_limit_is_told_to_the_last_digit(value: float) -> None:
    assert float(all_digits(value).replace(",", "")) == value


def test_a_limit_that_a_person_decides_on_is_not_rounded() -> None:
    assert [all_digits(one) for one in (3.0, 8.0004, 1234.50049, 1e-5, 1.00004e-5)] == [
        "3", "8.0004", "1,234.50049", "1e-5", "1.00004e-5",
    ]  # fmt: skip
    assert (all_digits(None), all_digits(math.inf), all_digits(0.0)) == ("—", "∞", "0")
    budget = BudgetAnswer.model_construct(
        epsilon=8.0000004, delta=1.00004e-5, spent=1.0, share=0.1, overdrawn=False
    )
    (told,) = budget_remarks(budget, "dataset")
    assert "budget of epsilon 8.0000004 at delta 1.00004e-5" in told.text
    given = {"budget_epsilon": 8.00004, "budget_delta": 1.00004e-5, "frozen": False, "revision": 1}
    sentence = act_sentence("settings", given)
    assert sentence == "Limit ε 8.00004 at δ = 1.00004e-5 from the beginning."
    scope = {"scope": "dataset:data", "spent": 8.0, "reserved": 0, "limit": 8.0000004}
    assert "has spent 8 of 8.0000004." in BudgetExhaustedError([scope], 0).detail
