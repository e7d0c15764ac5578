"""Theory pages and statements as HTML: formulas are MathML, words stay words, markup stays text."""

import re
import xml.etree.ElementTree as ET

import pytest

import accounting
from service.web.dashboard.pages.theorems import renderer, theory_page_of, theory_pages
from service.web.dashboard.theory_markdown import TheoryRenderer, mathml

ALPHA, SIGMA, MINUS = "\u03b1", "\u03c3", "\u2212"
PAGE_BYTES_MAX = 100_000
PLAIN = TheoryRenderer({}, frozenset({"renyi"}))
# What a formula has and English has not; names with hyphens and references are words.
LEFT_OVER = re.compile(r"\^|<=|>=|!=|\bsqrt\b|\bsum_|\$|\b(?:alpha|epsilon|sigma)\b")


def parsed(html: str) -> ET.Element:
    return ET.fromstring(f"<div>{html}</div>")  # noqa: S314 (our own)


def reads(html: str) -> str:
    """What a reader reads, from left to right."""
    return "".join(parsed(html).itertext())


def words(html: str) -> str:
    """What is neither formula nor code."""
    return re.sub(r"<math.*?</math>|<code>.*?</code>|<[^>]*>", "", html, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("mu = sensitivity / noise_multiplier", "μ=sensitivity/noise_multiplier"),
        ("alpha >= 1", f"{ALPHA}≥1"),
        ("e^-epsilon", f"e{MINUS}ε"),
        ("N(0, sigma^2)", f"N(0,{SIGMA}2)"),
        ("sum_{j>=3} g^j", "∑j≥3gj"),
        ("sum over j = 1 .. k of g^j", "∑j=1…kgj"),
        ("|Sigma|^(alpha-1)", f"|Σ|{ALPHA}{MINUS}1"),
        ("P || Q", "P∥Q"),
        ("R(y|x)", "R(y|x)"),
        ("delta <= 1e-5", f"δ≤10{MINUS}5"),
        ("floor(T/k)", "⌊T/k⌋"),
        ("h(<a, x>)", "h(⟨a,x⟩)"),
        ("V+ = s^2", "V+=s2"),
        ("(1 - x)+ <= y", f"(1{MINUS}x)+≤y"),
        ("e^r(2) - 1", f"er(2){MINUS}1"),
        ("delta* + O(1/n)", "δ*+O(1/n)"),
    ],
)
def test_a_formula_of_a_statement_reads_as_it_is_written(text: str, read: str) -> None:
    made = PLAIN.line(text)
    assert made.count("<math>") == 1
    assert reads(made) == read


def test_a_power_takes_what_it_binds() -> None:
    power = parsed(PLAIN.line("e^r(2) - 1")).find(".//msup")
    assert power is not None
    assert "".join(power.itertext()) == "er(2)"
    square = parsed(PLAIN.line("Phi^-1(x)")).find(".//msup")
    assert square is not None
    assert "".join(square.itertext()) == f"Φ{MINUS}1"
    root = parsed(PLAIN.line("sqrt(x + 1) y")).find(".//msqrt")
    assert root is not None
    assert "".join(root.itertext()) == "x+1"


def test_a_formula_that_is_a_paragraph_stands_alone() -> None:
    made = PLAIN.statement(
        "Summary.\n\nrdp(alpha) = alpha / 2.\n\nWith alpha > 1.\n\nArgs:\n    a: b"
    )
    assert made.count('<math display="block">') == 1
    assert made.count("<p>") == 2
    assert "b" not in words(made).replace("Summary", "")


@pytest.mark.parametrize("text", ["(1 + 2", "1 +", "f((x)", "[0, 1"])
def test_what_is_no_whole_formula_loses_nothing(text: str) -> None:
    assert reads(PLAIN.line(text)).replace(" ", "") == text.replace(" ", "")


def test_brackets_without_end_are_text_and_take_no_stack() -> None:
    for text in ("(" * 500 + "x", "(" * 100 + "x" + ")" * 100):
        assert reads(PLAIN.line(text)).replace(" ", "") == text


def test_words_are_never_taken_for_formulas() -> None:
    text = "A pass is a step of a kind, e.g. a Poisson-sampled one; the sum and the end."
    assert PLAIN.line(text) == text


def test_an_article_stays_one_and_a_letter_is_a_symbol() -> None:
    made = PLAIN.line("a mu for which")
    assert reads(made) == "a μ for which"
    assert words(made) == "a  for which"
    assert "<mi>a</mi>" in PLAIN.line("for a >= 1")


def test_latex_of_a_page_is_typeset() -> None:
    made = PLAIN.page("# Title\n\nFor $\\alpha > 1$\n\n$$\n\\frac{\\mu}{2}\n$$\n")
    assert "Title" not in made
    assert made.count("<math>") == made.count('<math display="block">') == 1
    assert parsed(made).find(".//mfrac") is not None
    assert parsed(mathml(r"\mathrm{rdp}(\alpha)", display="inline")).findtext(".//mi") == "rdp"


def test_markup_in_a_text_stays_text() -> None:
    texts = (
        "<script>x</script>", "x = <b> & y", "`<i>`", "[<u>](renyi.md)", "$\\text{<s>}$",
        "![<em>](https://a.b)", "<https://a.b>", "[x](javascript:alert)", "[x](https://a.b)",
    )  # fmt: skip
    for text in texts:
        for made in (PLAIN.page(text), PLAIN.line(text), PLAIN.statement(text)):
            assert not {"<script", "<b>", "<i>", "<u>", "<s>", "<img"} & set(
                re.findall(r"<[a-z]+>?", made)
            )
            assert "javascript:" not in re.sub(r">[^<]*<", "><", f">{made}<")
            assert 'href="https:' not in made


def test_names_are_linked_where_they_are_known() -> None:
    made = renderer().line("analytic-gaussian and docs/theory/renyi.md, not no-such-name")
    assert '<a href="/theorems/analytic-gaussian">' in made
    assert '<a href="/docs/theory/renyi">' in made
    assert made.count("<a ") == 2
    page = renderer().page("`analytic-gaussian`, [a page](renyi.md), [none](no_such.md), `none`")
    assert page.count("<a ") == 2
    assert "<code>analytic-gaussian</code></a>" in page


def test_every_formula_of_every_statement_is_typeset() -> None:
    found, left = 0, []
    for theorem in accounting.THEOREMS:
        made = renderer().statement(theorem.statement) + renderer().line(theorem.counterexample)
        parsed(made)
        found += made.count("<math")
        left += [(theorem.id, one) for one in LEFT_OVER.findall(words(made))]
    assert found > 500
    assert left == []


def test_theory_pages_are_well_formed_small_and_typeset() -> None:
    for name, text in theory_pages().items():
        made = renderer().page(text)
        parsed(made)
        assert len(made.encode()) < PAGE_BYTES_MAX, name
        assert "style=" not in made, name  # the policy of contents allows no style
        commands = re.findall(r"<m[ion][^>]*>(\\[^<]*)<", made)
        assert commands == [], name  # LaTeX that the library does not know
        if name != "glossary":  # whose words are the names of symbols
            assert LEFT_OVER.findall(words(made)) == [], name


def test_every_theorem_has_a_page_in_docs() -> None:
    pages = theory_pages()
    assert len(pages) > 20
    assert {theory_page_of(theorem) for theorem in accounting.THEOREMS} <= set(pages)
