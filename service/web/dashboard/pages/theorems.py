"""Show theorems by family, each with the page that proves or explains it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

import accounting
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status, Theorem
from service.errors import NotFoundError
from service.web.dashboard.glossary import ASSUMPTIONS, RELATIONS, STATUSES
from service.web.dashboard.rendering import PageRoute, render
from service.web.dashboard.theory_markdown import PAGES, TheoryRenderer, title_of
from service.web.dashboard.viewer import PageViewer

_NAMED: Final = re.compile(r"docs/theory/([a-z_]+)\.md")
HOME: Final = "README"  # the theory page that lists the others
SEARCH_MAX: Final = 100
router = APIRouter(route_class=PageRoute, include_in_schema=False)


@dataclass(frozen=True, slots=True)
class Family:
    """Theorems about one thing."""

    slug: str
    title: str
    about: str
    pages: tuple[tuple[str, str], ...]  # (beginning of modules' names, theory page)


FAMILIES: Final = (
    Family(
        "gaussian",
        "Gaussian releases",
        "Noise on a sum of all records: exact, in closed form.",
        (("accounting.gaussian", "gaussian"),),
    ),
    Family(
        "renyi",
        "Rényi curves",
        "What one step costs at every order, and how orders become an epsilon.",
        (
            ("accounting.renyi.passes", "passes"),
            ("accounting.renyi.allocation", "allocation"),
            ("accounting.renyi", "renyi"),
            ("accounting.literature.subsampled_renyi", "renyi"),
            ("accounting.accountants.composed_bounds", "renyi"),
        ),
    ),
    Family(
        "sampling",
        "Sampled batches",
        "Batches drawn afresh each step: fixed size, with a cap, with replacement, by weight.",
        (("accounting.subsampling", "subsampling"), ("accounting.bounds.dominating_pairs", "pld")),
    ),
    Family(
        "shuffling",
        "Shuffled and allocated passes",
        "Records whose step within a pass is random, and secret.",
        (
            ("accounting.shuffling.partial", "partial_shuffle"),
            ("accounting.shuffling.allocation", "allocation"),
            ("accounting.literature.local_randomizers", "local_models"),
            ("accounting.literature.shuffled_responses", "local_models"),
            ("accounting.literature.toy_shuffle", "shuffle"),
            ("accounting.shuffling", "shuffle"),
        ),
    ),
    Family(
        "correlated-noise",
        "Correlated noise",
        "Passes whose steps share noise: strategies and their sensitivity. Used by name only.",
        (("accounting.correlated_noise", "correlated_noise"),),
    ),
    Family(
        "pld",
        "Privacy loss distributions",
        "How pairs of distributions are composed, with every numerical error inside.",
        (("accounting.pld", "pld"), ("accounting.accountants.event_grouping", "pld")),
    ),
    Family(
        "filters",
        "Filters and odometers",
        "What holds a budget while each step is chosen after seeing the last.",
        (("accounting.filters.odometers", "odometers"), ("accounting.filters", "filters")),
    ),
    Family(
        "curves",
        "Trade-offs",
        "What an epsilon means for an attacker.",
        (("accounting.privacy_profile", "curves"),),
    ),
    Family(
        "audits",
        "Audits",
        "What counts of right guesses about canaries say against an epsilon.",
        (("accounting.auditing", "audits"),),
    ),
    Family(
        "composition",
        "Composition by hand",
        "Basic, advanced and optimal composition, total variation, tests. Used by name only.",
        (
            ("accounting.composition", "composition"),
            ("accounting.literature.total_variation", "composition"),
            ("accounting.literature.hypothesis_testing", "composition"),
        ),
    ),
    Family(
        "local",
        "Local models",
        "Randomized response, sampled and shuffled. Used by name only.",
        (("accounting.literature.local_dp", "local_models"),),
    ),
    Family(
        "last-iterate",
        "Hidden iterates",
        "Runs that show only what they end with, and declare what no event shows.",
        (
            ("accounting.last_iterate.lipschitz", "last_iterate"),
            ("accounting.last_iterate.shift", "last_iterate"),
            ("accounting.last_iterate.closed_forms", "last_iterate"),
            ("accounting.literature.contraction.order_rdp", "random_order"),
            ("accounting.last_iterate.random_order", "random_order"),
            ("accounting.last_iterate.sampled", "sampled_last_iterate"),
            ("accounting.literature.contraction.output_perturbation", "output_perturbation"),
            ("accounting.literature.contraction.affine", "affine"),
            ("accounting.literature.contraction", "contraction"),
        ),
    ),
    Family(
        "quarantine",
        "Set aside",
        "Conjectures, and what was retracted or refuted. Kept by name; nothing rests on them.",
        (("accounting.literature.refuted", "errata"),),
    ),
)


def family_of(theorem: Theorem[..., Any]) -> Family:
    """The family of a theorem."""
    return next(family for family in FAMILIES if _page_in(family, theorem))


def theory_page_of(theorem: Theorem[..., Any]) -> str:
    """The theory page of a theorem: the one that its source names, else its family's."""
    named = _NAMED.search(theorem.source) or _NAMED.search(theorem.counterexample)
    page = named[1] if named else _page_in(family_of(theorem), theorem)
    return str(page)


def _page_in(family: Family, theorem: Theorem[..., Any]) -> str | None:
    module = theorem.function.__module__
    return next((page for start, page in family.pages if module.startswith(start)), None)


@lru_cache(maxsize=1)
def theory_pages() -> dict[str, str]:
    """The theory pages and the glossary by name, in Markdown; in a checkout and in a package."""
    package = Path(__file__).parents[3]
    docs = package.parent / "docs"
    in_checkout = [*docs.glob("theory/*.md"), *docs.glob("glossary.md")]
    files = list(package.glob("theory_pages/*.md")) or in_checkout
    return {file.stem: file.read_text(encoding="utf-8") for file in sorted(files)}


@dataclass(frozen=True, slots=True)
class TheoremEntry:
    """A theorem as pages tell it."""

    id: str
    family: Family
    page: str
    source: str
    status: Status
    relations: tuple[NeighboringRelation, ...]
    assumptions: tuple[Assumption, ...]
    parameters: tuple[str, ...]
    counterexample: str
    summary: Markup  # the statement's first line
    rest: str  # of the statement, as the docstring has it
    arguments: str
    text: str  # what a search looks in


@lru_cache(maxsize=1)
def entries() -> dict[str, TheoremEntry]:
    """Every theorem by its id, in the registry's order."""
    return {theorem.id: _entry(theorem) for theorem in accounting.THEOREMS}


@lru_cache(maxsize=1024)
def _statement(name: str) -> tuple[Markup, Markup]:
    """(a theorem's statement after its first line, the counterexample to it), as HTML."""
    entry = entries()[name]
    return renderer().statement(entry.rest), renderer().line(entry.counterexample)


@lru_cache(maxsize=1)
def renderer() -> TheoryRenderer:
    """Renders theory pages and statements with links to theorems and to theory pages."""
    links = {}
    for theorem in accounting.THEOREMS:
        links[theorem.function.__name__] = links[theorem.id] = f"/theorems/{theorem.id}"
    return TheoryRenderer(links, frozenset(theory_pages()))


def _entry(theorem: Theorem[..., Any]) -> TheoremEntry:
    summary, _, behind = theorem.statement.partition("\n\n")
    rest, _, arguments = behind.partition("Args:\n")
    return TheoremEntry(
        id=theorem.id,
        family=family_of(theorem),
        page=theory_page_of(theorem),
        source=theorem.source,
        status=theorem.status,
        relations=theorem.relations,
        assumptions=theorem.assumptions,
        parameters=theorem.parameters,
        counterexample=theorem.counterexample,
        summary=renderer().line(" ".join(summary.split())),
        rest=rest,
        arguments=f"Args:\n{arguments.rstrip()}" if arguments else "",
        text=f"{theorem.id} {theorem.statement} {theorem.source}".lower(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TheoremFilter:
    """Which theorems are asked for; what is empty asks for all."""

    q: str = ""
    family: str = ""
    status: str = ""
    relation: str = ""

    def admits(self, entry: TheoremEntry) -> bool:
        """Whether a theorem is one of them."""
        return (
            self.family in ("", entry.family.slug)
            and self.status in ("", entry.status)
            and (not self.relation or self.relation in entry.relations)
            and all(word in entry.text for word in self.q.lower().split())
        )


@router.get("/theorems")
def theorems(
    request: Request,
    viewer: PageViewer,
    q: Annotated[str, Query(max_length=SEARCH_MAX)] = "",
    family: Annotated[str, Query(max_length=SEARCH_MAX)] = "",
    status: Annotated[str, Query(max_length=SEARCH_MAX)] = "",
    relation: Annotated[str, Query(max_length=SEARCH_MAX)] = "",
) -> Response:
    """Every theorem, or those that a filter leaves."""
    wanted = TheoremFilter(q=q, family=family, status=status, relation=relation)
    found = [entry for entry in entries().values() if wanted.admits(entry)]
    return render(
        request,
        "theorems.html",
        viewer=viewer,
        wanted=wanted,
        groups=list(_group_by_family(found)),
        count=len(found),
        total=len(entries()),
        families=FAMILIES,
        statuses=STATUSES,
        relations=RELATIONS,
    )


def _group_by_family(found: list[TheoremEntry]) -> Iterator[tuple[Family, list[TheoremEntry]]]:
    for family in FAMILIES:
        of_it = [entry for entry in found if entry.family is family]
        if of_it:
            yield family, of_it


@router.get("/theorems/{bound}")
def theorem(request: Request, viewer: PageViewer, bound: str) -> Response:
    """One theorem."""
    entry = entries().get(bound)
    if entry is None:
        raise NotFoundError("There is no such theorem.")
    statement, against = _statement(bound)
    return render(
        request,
        "theorem.html",
        viewer=viewer,
        entry=entry,
        page_title=title_of(theory_pages().get(entry.page, "")),
        page_address=PAGES + entry.page,
        statement=statement,
        against=against,
        statuses=STATUSES,
        relations=RELATIONS,
        assumptions=ASSUMPTIONS,
    )


@lru_cache(maxsize=64)
def _render_page(page: str) -> Markup:
    return renderer().page(theory_pages()[page])


@router.get("/docs/theory")
def theory_home(request: Request, viewer: PageViewer) -> Response:
    """What theory pages there are."""
    return theory_page(request, viewer, HOME)


@router.get(PAGES + "{page}")
def theory_page(request: Request, viewer: PageViewer, page: str) -> Response:
    """A page of proofs."""
    if page not in theory_pages():
        raise NotFoundError("There is no such page.")
    here = [entry for entry in entries().values() if entry.page == page]
    return render(
        request,
        "theory.html",
        viewer=viewer,
        title=title_of(theory_pages()[page]),
        page=page,
        home=HOME,
        body=_render_page(page),
        here=here,
        statuses=STATUSES,
    )
