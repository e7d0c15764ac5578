"""Forms with what no text has: each is refused, on both databases, and nothing is recorded."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Engine

from tests.service.browsing import csrf_of
from tests.service.dumps import dump
from tests.service.test_form_faults import FIELDS, office

__all__ = ["office"]
Office = tuple[httpx.Client, dict[str, str]]
FORMS = FIELDS | {
    "/planner/budget": {"settings": ["dataset=data"], "reason": ["x"]},
    "/datasets/data/ask": {"epsilon": ["2"], "delta": ["1e-5"], "reason": ["x"]},
    "/sign-in": {"key": ["x"], "next": ["/"]},
}
FORM = {"content-type": "application/x-www-form-urlencoded"}
# As an address has them: NUL in front, inside and alone, half a surrogate pair, a byte of none.
NO_TEXT = ("%00", "a%00", "%00a", "%ED%A0%80", "%FF")


def bodies(fields: dict[str, list[str]], csrf: str) -> Iterator[str]:
    """The form with each of its fields, and one that it does not have, as no text is."""
    plain = {name: quote(texts[-1]) for name, texts in fields.items()}
    for name in (*fields, "other", "o%00"):
        for value in NO_TEXT:
            given = {"csrf": csrf, "revision": "1"} | plain | {name: value}
            yield "&".join(f"{key}={text}" for key, text in given.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_form_with_what_is_no_text_is_refused(office: Office, engine: Engine, form: str) -> None:
    browser, places = office
    csrf, before = csrf_of(browser), dump(engine)
    for body in bodies(FORMS[form], csrf):
        answer = browser.post(places.get(form, form), content=body, headers=FORM)
        assert 400 <= answer.status_code < 500, (body, answer.status_code)
    assert dump(engine) == before


@pytest.mark.parametrize("field", ["dataset", "assignee", "incident", "after", "kind", "state"])
@pytest.mark.parametrize("value", [*NO_TEXT, "x"])
def test_a_list_that_a_form_carries_is_the_plain_one_if_it_is_no_text(
    office: Office, field: str, value: str
) -> None:
    browser, places = office
    form = {"csrf": csrf_of(browser), "action": "comment", "back": f"{field}={value}"}
    answer = browser.post(places["INCIDENT"], data=form)
    assert answer.status_code in ((422, 404) if field == "incident" else (422,)), answer.text
