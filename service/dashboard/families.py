"""Which family a theorem is of, and which page proves or explains it."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from accounting.theorem import Theorem

_NAMED: Final = re.compile(r"docs/theory/([a-z_]+)\.md")


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
            ("accounting.answers", "renyi"),
        ),
    ),
    Family(
        "sampling",
        "Sampled batches",
        "Batches drawn afresh each step: fixed size, with a cap, with replacement, by weight.",
        (("accounting.subsampling", "subsampling"), ("accounting.domination", "pld")),
    ),
    Family(
        "shuffling",
        "Shuffled and allocated passes",
        "Records whose step within a pass is random, and secret.",
        (
            ("accounting.shuffling.partial", "partial_shuffle"),
            ("accounting.shuffling.allocation", "allocation"),
            ("accounting.shuffling.randomizers", "local_models"),
            ("accounting.shuffling.responses", "local_models"),
            ("accounting.shuffling", "shuffle"),
        ),
    ),
    Family(
        "pld",
        "Privacy loss distributions",
        "How pairs of distributions are composed, with every numerical error inside.",
        (("accounting.pld", "pld"), ("accounting.coarsening", "pld")),
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
        "What an epsilon means to whoever attacks.",
        (("accounting.curves", "curves"),),
    ),
    Family(
        "composition",
        "Composition by hand",
        "Basic, advanced and optimal composition, total variation, tests. Used by name only.",
        (
            ("accounting.composition", "composition"),
            ("accounting.total_variation", "composition"),
            ("accounting.hypothesis_testing", "composition"),
        ),
    ),
    Family(
        "local",
        "Local models",
        "Randomized response, sampled and shuffled. Used by name only.",
        (("accounting.local", "local_models"),),
    ),
    Family(
        "last-iterate",
        "Hidden iterates",
        "Runs that show only what they end with, and declare what no event shows.",
        (
            ("accounting.last_iterate.lipschitz", "last_iterate"),
            ("accounting.last_iterate.shift", "last_iterate"),
            ("accounting.last_iterate.closed_forms", "last_iterate"),
            ("accounting.last_iterate.order", "random_order"),
            ("accounting.last_iterate.random_order", "random_order"),
            ("accounting.last_iterate.sampled", "sampled_last_iterate"),
            ("accounting.last_iterate.output_perturbation", "output_perturbation"),
            ("accounting.last_iterate.affine", "affine"),
            ("accounting.last_iterate", "contraction"),
        ),
    ),
    Family(
        "quarantine",
        "Set aside",
        "Conjectures, and what was retracted or refuted. Kept by name; nothing rests on them.",
        (("accounting.quarantine", "errata"),),
    ),
)


def family_of(theorem: Theorem[..., Any]) -> Family:
    """The family of a theorem."""
    return next(family for family in FAMILIES if _page_in(family, theorem))


def page_of(theorem: Theorem[..., Any]) -> str:
    """The theory page of a theorem: the one that its source names, else its family's."""
    named = _NAMED.search(theorem.source) or _NAMED.search(theorem.counterexample)
    page = named[1] if named else _page_in(family_of(theorem), theorem)
    return str(page)


def _page_in(family: Family, theorem: Theorem[..., Any]) -> str | None:
    module = theorem.function.__module__
    return next((page for start, page in family.pages if module.startswith(start)), None)


@lru_cache(maxsize=1)
def theory_pages() -> dict[str, str]:
    """The theory pages by name, in Markdown; in a checkout and in an installed package."""
    package = Path(__file__).parent.parent
    for folder in (package / "theory_pages", package.parent / "docs" / "theory"):
        if folder.is_dir():
            files = sorted(folder.glob("*.md"))
            return {file.stem: file.read_text(encoding="utf-8") for file in files}
    return {}
