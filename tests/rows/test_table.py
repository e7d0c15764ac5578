"""Every row is listed once, with a verdict that agrees with its theorems, and has one test."""

import re

import pytest

from accounting import THEOREMS, Status
from accounting.guarantees import ACCEPTABLE
from accounting.literature.documents import ROWS, Row, Verdict
from tests.rows.table import PAGE, ROOT, is_path, places_of_tests, slug, table

STATUSES = {one.id: one.status for one in THEOREMS}
EACH = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)


def statuses(row: Row) -> set[Status]:
    return {STATUSES[place] for place in row.lives if not is_path(place)}


def test_there_are_seventy_five_rows_of_five_documents() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS) == 75
    assert {row.id[:4] for row in ROWS} == {"000-", "001-", "002-", "003-", "004-", "X-C9", "X-A8"}


@EACH
def test_a_row_has_one_test_and_says_what_it_states_in_a_line(row: Row) -> None:
    assert len(places_of_tests()[slug(row.id)]) == 1
    assert 10 < len(row.statement) < 100
    assert "\n" not in row.statement


def test_every_test_of_a_row_is_that_of_a_row() -> None:
    assert set(places_of_tests()) == {slug(row.id) for row in ROWS}


@EACH
def test_where_a_row_lives_exists(row: Row) -> None:
    assert row.lives
    for place in row.lives:
        assert (ROOT / place).exists() if is_path(place) else place in STATUSES, place


@EACH
def test_the_verdict_of_a_row_agrees_with_its_theorems(row: Row) -> None:
    found = statuses(row)
    match row.verdict:
        case Verdict.WRONG:
            assert Status.REFUTED in found
        case Verdict.RETRACTED:
            assert Status.RETRACTED in found
        case Verdict.CONJECTURE:
            assert Status.CONJECTURE in found
        case Verdict.PROVEN:
            assert found & ACCEPTABLE or all(is_path(place) for place in row.lives)
        case _:
            assert Status.RETRACTED not in found
    if row.verdict not in (Verdict.WRONG, Verdict.RETRACTED, Verdict.CONJECTURE):
        return
    # What is not to be used has something in its place, or says that there is nothing.
    assert found & ACCEPTABLE or any(is_path(place) for place in row.lives) or "online" in row.id


def test_every_erratum_is_shown_by_a_test_and_everything_quarantined_is_an_erratum() -> None:
    page = (ROOT / "docs" / "theory" / "errata.md").read_text(encoding="utf-8")
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 40
    assert named <= set(re.findall(r"def (test_\w+)\(", "".join(files)))
    unproved = {Status.CONJECTURE, Status.RETRACTED, Status.REFUTED}
    words = set(re.findall(r"`([\w-]+)`", page))
    assert {one for one, status in STATUSES.items() if status in unproved} <= words


def test_the_page_is_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == table()
