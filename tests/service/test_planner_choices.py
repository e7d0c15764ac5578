"""The planner's four choices for a loader that shuffles."""

import re

import httpx
import pytest

from service.web.dashboard.forms.planner_form import PlannerForm
from service.web.dashboard.snippets import client_snippet
from tests.service.samples import Json
from tests.service.test_planner_page import SMALL, ask

CHOICES = ["as_it_is", "leave_out", "balls_and_bins", "poisson"]
LOADER = {"length": "10", "noise_multiplier": "4", "neighboring_relation": "replace_special"}


def certified(api: httpx.Client, row: Json) -> Json:
    return ask(api, "answer", **dict(httpx.QueryParams(row["query"])))


def test_four_numbers_stand_side_by_side(api: httpx.Client) -> None:
    rows = ask(api, "choices", **LOADER)["choices"]
    assert [row["slug"] for row in rows] == CHOICES
    found = [certified(api, row) for row in rows]
    assert all(one["epsilon"] <= row["epsilon"] for one, row in zip(found, rows, strict=True))
    as_it_is, left_out, balls, poisson = (one["epsilon"] for one in found)
    assert as_it_is > 4 * left_out > 4 * max(balls, poisson)
    assert [one["status"] for one in found[:2]] == ["published", "derived"]
    assert [row["steps"] for row in rows] == [2350, 2340, 2344, 2344]
    page = api.get("/planner/answer", params=LOADER).text
    section = page[page.index("data-choices") : page.index("data-schemes")]
    assert re.findall(r'class="num">([\d.]+)<', section) == [one["epsilon_text"] for one in found]


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"sampling": "shuffle", "last_batch": "used"}, "as_it_is"),
        ({"sampling": "shuffle", "last_batch": "left_out"}, "leave_out"),
        ({"sampling": "shuffle", "last_batch": "dropped"}, None),
        ({"sampling": "balls_and_bins"}, "balls_and_bins"),
        ({}, "poisson"),
    ],
)
def test_the_settings_say_which_is_chosen(
    api: httpx.Client, given: dict[str, str], chosen: str | None
) -> None:
    rows = ask(api, "choices", **SMALL | given)["choices"]
    assert [row["slug"] for row in rows if row["chosen"]] == ([chosen] if chosen else [])


def test_a_whole_batch_is_left_out_where_none_is_smaller() -> None:
    for size, used, dropped, left_out in ((256, 235, 234, 234), (250, 240, 240, 239)):
        for last, length in (("used", used), ("dropped", dropped), ("left_out", left_out)):
            form = PlannerForm(sampling="shuffle", batch_size=size, last_batch=last)
            assert form.pass_length == length


def test_where_no_batch_remains_the_row_says_so(api: httpx.Client) -> None:
    rows = ask(api, "choices", **SMALL | {"batch_size": "1000"})["choices"]
    (row,) = [row for row in rows if row["slug"] == "leave_out"]
    assert row["epsilon"] is None
    assert "say the steps of a pass" in row["reason"]


def test_the_code_takes_the_loader_that_leaves_records_out() -> None:
    form = PlannerForm(sampling="shuffle", last_batch="left_out", length=2, unit="steps")
    code = client_snippet(form)
    assert "batches = dp.shuffled(60000, 256)" in code
    assert "sampling=batches.sampling," in code
    assert "shuffled" not in client_snippet(PlannerForm(sampling="shuffle", last_batch="used"))


def test_a_target_has_no_choices(api: httpx.Client) -> None:
    page = api.get("/planner/answer", params=SMALL | {"find": "noise_multiplier"}).text
    assert re.search(r"data-choices hidden", page)
