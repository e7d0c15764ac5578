"""What is drawn of a dataset's spending and of its family."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from service.guarantees.spending_history import Moment, Spending, SpendingPart
from service.ledger.dataset_settings import SettingsAnswer
from service.web.dashboard import lineage_chart, spending_chart
from service.web.dashboard.lineage_chart import LineageNode

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


def spent(*shares: float | None, in_shares: bool = True) -> Spending:
    moments = tuple(
        Moment(
            at=START + timedelta(days=day),
            spent=share,
            parts=((share or 0) / 2, (share or 0) / 2),
        )
        for day, share in enumerate(shares)
    )
    parts = (SpendingPart(run="run", dataset="data"), SpendingPart(run=None, dataset=None, runs=3))
    return Spending(
        delta=1e-5, in_shares=in_shares, moments=moments, parts=parts, earlier=0, expired=0.0
    )


def limit(epsilon: float | None, day: int, revision: int = 1) -> SettingsAnswer:
    return SettingsAnswer(
        revision=revision,
        epsilon=epsilon,
        delta=1e-5,
        budget_revision=0,
        delta_share=1.0,
        frozen=False,
        accept=[],
        reason="why",
        changed_by="officer",
        requested_by=None,
        sequence=0,
        changed_at=(START + timedelta(days=day)).isoformat(),
    )


def heights(path: str) -> list[float]:
    return [float(point.split()[1]) for point in re.findall(r"[\d.]+ [\d.]+", path)]


def test_layers_stand_on_one_another_and_end_at_the_outline() -> None:
    drawn = spending_chart.draw_spending(
        spent(0.0, 1.0, 2.0), [limit(4.0, 0)], START + timedelta(days=4)
    )
    (_, first), (_, second) = drawn.layers
    assert heights(second)[:4] == heights(drawn.outline)
    assert heights(first)[:4] == list(reversed(heights(second)[4:]))
    assert drawn.outline.endswith(f"L1000 {heights(drawn.outline)[-1]:g}")  # up to the present


def test_the_present_limit_is_level_and_its_changes_are_marked() -> None:
    changes = [limit(None, 0), limit(2.0, 1, 2), limit(2.0, 1, 3), limit(4.0, 2, 4)]
    drawn = spending_chart.draw_spending(spent(0.0, 0.2, 0.5), changes, START + timedelta(days=4))
    (height,) = set(re.findall(r"M250 ([\d.]+)H1000", drawn.limit))
    assert float(height) == pytest.approx(spending_chart.HEIGHT * (1 - 1 / 1.06), abs=0.1)
    assert [(mark.number, mark.x) for mark in drawn.marks] == [(1, 250.0), (2, 500.0)]
    assert [tick.label for tick in drawn.ticks] == ["50\u202f%", "100\u202f%"]
    assert not drawn.limit_is_far


def test_a_limit_far_above_is_not_drawn_but_marked() -> None:
    changes = [limit(1e5, 0), limit(2e5, 2, 2)]
    small = spent(0.0, 1e-5, 2e-5)
    drawn = spending_chart.draw_spending(small, changes, START + timedelta(days=4))
    assert (drawn.limit, drawn.limit_is_far, len(drawn.marks)) == ("", True, 1)
    assert drawn.ticks[-1].label == "0.002\u202f%"


def test_without_a_limit_an_epsilon_is_drawn() -> None:
    found = spent(0.0, 3.0, in_shares=False)
    drawn = spending_chart.draw_spending(found, [limit(None, 0)], START + timedelta(days=4))
    assert (drawn.limit, drawn.limit_is_far) == ("", False)
    assert [tick.label for tick in drawn.ticks] == ["1", "2", "3"]


def test_from_where_nothing_is_proved_it_is_said_so() -> None:
    drawn = spending_chart.draw_spending(
        spent(0.0, 1.0, None), [limit(None, 0)], START + timedelta(days=4)
    )
    assert (drawn.endless, drawn.limit) == (500.0, "")
    never = spending_chart.draw_spending(spent(None), [], START)
    assert (never.layers, never.outline, never.endless) == ((), "", 0.0)


@pytest.mark.parametrize("most", [1e-9, 0.003, 0.7, 1.0, 3.3, 42.0, 1e5, 3e12])
def test_lines_across_are_few_and_round(most: float) -> None:
    drawn = spending_chart.draw_spending(spent(0.0, most), [], START + timedelta(days=2))
    assert 1 <= len(drawn.ticks) <= spending_chart.TICKS + 1
    assert all(0 <= tick.place <= spending_chart.HEIGHT for tick in drawn.ticks)


def test_the_table_is_short_and_ends_with_the_last() -> None:
    found = spent(*(float(day) for day in range(61)))
    drawn = spending_chart.draw_spending(found, [], START + timedelta(days=90))
    assert len(drawn.rows) <= spending_chart.TABLE_ROWS
    assert drawn.rows[-1] == found.moments[-1]


def test_a_large_family_is_drawn_in_part_and_never_without_the_dataset() -> None:
    children = [LineageNode(name=f"child-{n}", generation=1, parents=("data",)) for n in range(20)]
    family = [LineageNode(name="data", generation=0, parents=()), *children]
    drawn = lineage_chart.pedigree(family, "child-19", reached=lambda name: name != "child-0")
    assert drawn.left_out == 12
    assert [box.name for box in drawn.boxes if box.own] == ["child-19"]
    assert sum(box.name is None for box in drawn.boxes) == 1
    assert len(drawn.lines) == len(drawn.boxes) - 1


@pytest.mark.parametrize(
    ("minutes", "written"),
    [(3, "08:0[0-3]:00"), (60, "0[89]:[0-6]0"), (9 * 1440, r"\d\d [A-Z][a-z]{2}")],
)
def test_dates_of_a_chart_differ(minutes: int, written: str) -> None:
    begins = START.replace(hour=8, minute=0, second=0)
    moments = replace(spent(0.0, 1.0).moments[0], at=begins)
    found = replace(spent(0.0, 1.0), moments=(moments,))
    drawn = spending_chart.draw_spending(
        found, [limit(None, 0)], begins + timedelta(minutes=minutes)
    )
    labels = [tick.label for tick in drawn.dates]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(written, label) for label in labels)
