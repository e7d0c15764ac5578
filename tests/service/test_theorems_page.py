"""The registry as people read it: filtered by address, each theorem with all it rests on."""

import re

import httpx
import pytest

import accounting
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from service.web.dashboard.glossary import ASSUMPTIONS, RELATIONS, STATUSES
from service.web.dashboard.pages.theorems import FAMILIES, family_of, theory_page_of, theory_pages
from service.web.dashboard.theory_markdown import title_of

PAGE_BYTES_MAX = 150_000
_LISTED = re.compile(r'<div class="theorem-name"><a href="/theorems/([a-z0-9-]+)">')


def listed(api: httpx.Client, **given: str) -> list[str]:
    answer = api.get("/theorems", params=given)
    assert answer.status_code == 200
    assert len(answer.content) < PAGE_BYTES_MAX
    return _LISTED.findall(answer.text)


def test_every_word_of_a_guarantee_is_explained() -> None:
    assert set(ASSUMPTIONS) == set(Assumption)
    assert set(STATUSES) == set(Status)
    assert set(RELATIONS) == set(NeighboringRelation)


def test_every_theorem_is_listed_once_by_its_family(api: httpx.Client) -> None:
    ids = [theorem.id for theorem in accounting.THEOREMS]
    assert sorted(listed(api)) == sorted(ids)
    by_family = {family.slug: listed(api, family=family.slug) for family in FAMILIES}
    assert sorted(name for found in by_family.values() for name in found) == sorted(ids)
    for theorem in accounting.THEOREMS:
        assert theorem.id in by_family[family_of(theorem).slug]


def test_filters_leave_what_they_say(api: httpx.Client) -> None:
    refuted = {one.id for one in accounting.THEOREMS if one.status is Status.REFUTED}
    assert set(listed(api, status="refuted")) == refuted
    relation = NeighboringRelation.REPLACE_ONE
    held = {one.id for one in accounting.THEOREMS if relation in one.relations}
    assert set(listed(api, relation=relation)) == held
    assert set(listed(api, q="Canonne Steinke")) == {"renyi-to-epsilon", "renyi-to-delta"}
    assert set(listed(api, q="canonne", status="refuted")) == set()


def test_a_search_without_a_hit_says_what_to_do(api: httpx.Client) -> None:
    answer = api.get("/theorems", params={"q": '"><script>alert(1)</script>'})
    assert "No theorem matches" in answer.text
    assert "<script>alert" not in answer.text
    assert api.get("/theorems", params={"q": "x" * 101}).status_code == 422


def test_every_theorem_has_a_page_with_all_it_rests_on(api: httpx.Client) -> None:
    for theorem in accounting.THEOREMS:
        answer = api.get(f"/theorems/{theorem.id}")
        assert answer.status_code == 200, theorem.id
        assert len(answer.content) < PAGE_BYTES_MAX
        text = answer.text
        assert STATUSES[theorem.status][0].replace("'", "&#39;") in text
        for assumption in theorem.assumptions:
            assert ASSUMPTIONS[assumption].replace("'", "&#39;") in text
        assert f'href="/docs/theory/{theory_page_of(theorem)}"' in text
        assert ("Evidence against it" in text) == bool(theorem.counterexample)


def test_formulas_are_typeset_and_links_lead_somewhere(api: httpx.Client) -> None:
    text = api.get("/theorems/poisson-gaussian").text
    assert "<math>" in text
    pages = api.get("/docs/theory").text
    for name in re.findall(r'href="/docs/theory/([a-z_]+)"', pages):
        assert api.get(f"/docs/theory/{name}").status_code == 200, name


def test_every_proof_is_on_a_page_that_is_served(api: httpx.Client) -> None:
    for name, text in theory_pages().items():
        answer = api.get(f"/docs/theory/{name}")
        assert answer.status_code == 200
        assert len(answer.content) < PAGE_BYTES_MAX, name
        assert f"<h1>{title_of(text)}</h1>" in answer.text


@pytest.mark.parametrize(
    "path", ["/theorems/no-such", "/docs/theory/no-such", "/docs/theory/..%2fREADME"]
)
def test_what_is_not_there_is_told_as_a_page(api: httpx.Client, path: str) -> None:
    answer = api.get(path, headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "text/html" in answer.headers["content-type"]


def test_every_page_links_the_glossary(api: httpx.Client) -> None:
    for path in ("/", "/theorems", "/sign-in"):
        assert '<a href="/docs/theory/glossary">' in api.get(path).text
    page = api.get("/docs/theory/glossary")
    assert page.status_code == 200
    assert "<td>one iteration over the data, in one order</td>" in page.text
    assert "glossary.md" not in page.text
