"""Curves of a run: what their tables say holds at the places that they name."""

from playwright.sync_api import Page

from tests.browser.looking import settled

MISSED = "false_negative_rate"
LESS = 1 - 1e-12  # what divisions by 100 may be off
ROWS = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"


def rows_of(page: Page, chart: str) -> list[list[str]]:
    """The cells of a chart's table, once it is opened."""
    page.locator(f"#{chart} details summary").click()
    rows = page.locator(f"#{chart} tbody tr")
    rows.first.wait_for()  # they are written when the browser tells that it was opened
    found: list[list[str]] = rows.evaluate_all(ROWS)
    return found


def number(text: str) -> float:
    return float(text.replace(",", "").replace("\u202f%", ""))


def test_deltas_hold_at_the_epsilons_beside_them(story: str, page: Page) -> None:
    with page.expect_response(lambda answer: "/meaning" in answer.url) as waited:
        page.goto(f"{story}/runs/steady")
    profile = waited.value.json()["curve"]["profile"]
    settled(page)
    rows = rows_of(page, "profile")
    assert len(rows) > 5
    for place, most, least in rows:
        epsilon = number(place)
        assert any(one["epsilon"] <= epsilon and one["delta"] <= number(most) for one in profile), (
            place,
            most,
        )
        assert number(least) == 0 or any(
            one["epsilon"] >= epsilon and one["delta_lower"] >= number(least) for one in profile
        ), (place, least)


def test_no_more_is_found_at_the_rates_beside_it(story: str, page: Page) -> None:
    with page.expect_response(lambda answer: "/meaning" in answer.url) as waited:
        page.goto(f"{story}/runs/steady")
    curve = waited.value.json()["curve"]
    settled(page)
    known = [
        (one["false_positive_rate"], one.get("true_positive_rate", 1) - one.get(MISSED, 0))
        for one in (*curve["trade_off"], *curve["true_positive_rates"])
    ]
    rows = rows_of(page, "trade-off")
    assert len(rows) > 5
    for place, found, _ in rows:
        rate, most = number(place) / 100 * LESS, number(found) / 100
        assert any(rate <= one and most >= share * LESS for one, share in known), place
