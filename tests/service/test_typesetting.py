"""Formulas: read for certain and typeset, or refused and shown as they are."""

import xml.etree.ElementTree as ET

import pytest

import accounting
from service.web.dashboard.pages.theorems import page_of, setter_of_pages, theory_pages
from service.web.dashboard.theory_markdown import Setter, Share, statement_html
from service.web.dashboard.theory_pages import theory_html
from service.web.dashboard.typesetting import typeset

ALPHA, SIGMA, MINUS = "\u03b1", "\u03c3", "\u2212"
LEAST_SHARE = 0.97  # of formulas in statements; on theory pages a little less
LEAST_SHARE_OF_PAGES = 0.94
PAGE_BYTES_MAX = 100_000


def parsed(text: str, *, alone: bool = False) -> ET.Element:
    made = typeset(text, alone=alone)
    assert made is not None, text
    return ET.fromstring(made)  # noqa: S314 (our own)


def told(text: str) -> str:
    """What a reader of a formula reads, from left to right."""
    return "".join(parsed(text).itertext())


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("mu = sensitivity / noise_multiplier", "μ=sensitivity/noise_multiplier"),
        ("alpha >= 1", f"{ALPHA}≥1"),
        ("e^-epsilon", f"e{MINUS}ε"),
        ("N(0, sigma^2)", f"N\N{FUNCTION APPLICATION}(0,{SIGMA}2)"),
        ("sum_{j>=3} g^j", "∑j≥3gj"),
        ("1e-5", f"10{MINUS}5"),
        ("|Sigma|^(alpha-1)", f"|Σ|{ALPHA}{MINUS}1"),
        ("P || Q", "P∥Q"),
        ("R(y|x)", "R\N{FUNCTION APPLICATION}(y|x)"),
        ("floor(T/k)", "⌊T/k⌋"),
        ("V+ = s^2", "V+=s2"),
    ],
)
def test_a_formula_reads_as_it_is_written(text: str, reads: str) -> None:
    assert told(text) == reads


def test_fractions_are_built_up_only_on_a_line_of_their_own() -> None:
    assert parsed("mu/2 - epsilon/mu").find(".//mfrac") is None
    alone = parsed("mu/2 - epsilon/mu", alone=True)
    assert len(alone.findall(".//mfrac")) == 2
    assert alone.get("display") == "block"
    assert parsed("e^(epsilon/2)", alone=True).find(".//mfrac") is None  # too small up there


def test_a_slash_binds_as_its_spaces_say() -> None:
    tight = parsed("alpha/2 x", alone=True)
    assert [part.text for part in tight.iter("mi")] == [ALPHA, "x"]
    assert [part.text for part in tight.find(".//mfrac") or []] == [ALPHA, "2"]
    loose = parsed("alpha x / 2", alone=True).find(".//mfrac")
    assert loose is not None
    assert "".join(loose[0].itertext()).replace("\N{INVISIBLE TIMES}", "") == f"{ALPHA}x"


@pytest.mark.parametrize(
    "text",
    [
        "a / b c",
        "a / b / c",
        "a/b/c",
        "x^y^z",
        "(1 + 2",
        "1 +",
        "",
        "q = the rate",
        "sum over j",
        "§",
    ],
)
def test_what_could_be_read_in_two_ways_or_none_is_refused(text: str) -> None:
    assert typeset(text) is None


def test_brackets_without_end_are_refused_and_take_no_stack() -> None:
    assert typeset("(" * 5000 + "x" + ")" * 5000) is None


def test_words_are_never_taken_for_formulas() -> None:
    setter = Setter()
    text = "A pass is a step of a kind, e.g. a Poisson-sampled one; the sum and the end."
    assert setter.line(text) == text.replace("'", "&#39;")
    assert setter.share.found == 0


def test_an_article_stays_one_and_a_letter_is_a_symbol() -> None:
    assert Setter().line("a mu for which") == "a <math><mi>μ</mi></math> for which"
    assert "<mi>a</mi>" in Setter().line("for a >= 1")


def test_what_cannot_be_typeset_is_shown_as_code() -> None:
    share = Share()
    assert Setter(share=share).line("so delta = delta* + 1 here") == (
        "so <code>delta = delta* + 1</code> here"
    )
    assert (share.found, share.typeset) == (1, 0)


def test_markup_in_a_text_stays_text() -> None:
    for text in ("<script>x</script>", "x = <b> & y", "`<i>`", "[<u>](renyi.md)"):
        made = Setter(pages=frozenset({"renyi"})).line(text)
        assert not {"<script", "<b>", "<i>", "<u>"} & set(made.replace("><", "> <").split())
        assert "<script>" not in made


def test_names_are_linked_where_they_are_known() -> None:
    made = setter_of_pages().line("analytic-gaussian and docs/theory/renyi.md, not no-such-name")
    assert '<a href="/theorems/analytic-gaussian">' in made
    assert '<a href="/docs/theory/renyi">' in made
    assert made.count("<a ") == 2


def test_nearly_every_formula_of_every_statement_is_typeset() -> None:
    setter = setter_of_pages()
    for theorem in accounting.THEOREMS:
        ET.fromstring(f"<div>{statement_html(theorem.statement, setter)}</div>")  # noqa: S314
    share = setter.share
    print(f"{share.typeset} of {share.found} formulas; not {share.refused}")  # noqa: T201
    assert share.found > 500
    assert share.typeset / share.found >= LEAST_SHARE


def test_theory_pages_are_well_formed_small_and_nearly_all_typeset() -> None:
    setter = setter_of_pages()
    for name, text in theory_pages().items():
        made = theory_html(text, setter)
        assert len(made.encode()) < PAGE_BYTES_MAX, name
        ET.fromstring(f"<div>{made}</div>")  # noqa: S314 (our own)
    assert setter.share.typeset / setter.share.found >= LEAST_SHARE_OF_PAGES


def test_every_theorem_has_a_page_in_docs() -> None:
    pages = theory_pages()
    assert len(pages) > 20
    assert {page_of(theorem) for theorem in accounting.THEOREMS} <= set(pages)
