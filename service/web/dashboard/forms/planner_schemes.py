"""Ways to choose batches that the planner knows."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """A way to choose who joins a step."""

    slug: str
    title: str
    about: str
    extra: tuple[str, ...] = ()  # fields that it alone has


LEFT_OUT: Final = "left_out"  # some record, of each pass
LAST_BATCH: Final = ("last_batch",)  # needed if batches are cut from an order
SCHEMES: Final = {
    scheme.slug: scheme
    for scheme in (
        SchemeChoice("poisson", "Poisson", "Every record joins each step independently."),
        SchemeChoice(
            "truncated_poisson",
            "Poisson with a cap",
            "As Poisson; of a batch above the cap a uniform part is kept.",
            ("max_batch_size",),
        ),
        SchemeChoice("fixed_size", "Fixed size", "A uniform subset, drawn anew for each step."),
        SchemeChoice(
            "with_replacement", "With replacement", "Independent draws, anew for each step."
        ),
        SchemeChoice(
            "shuffle", "Shuffled", "A random order, drawn anew for each pass.", LAST_BATCH
        ),
        SchemeChoice(
            "shuffle_once",
            "Shuffled once",
            "A random order, drawn once for all passes.",
            LAST_BATCH,
        ),
        SchemeChoice("cyclic", "Fixed order", "The same order, pass after pass.", LAST_BATCH),
        SchemeChoice(
            "balls_and_bins",
            "Balls and bins",
            "Each record joins one uniformly drawn step of each pass.",
        ),
        SchemeChoice(
            "random_allocation",
            "Random allocation",
            "Each record joins a uniform set of steps of each pass.",
            ("participations",),
        ),
        SchemeChoice(
            "non_uniform",
            "By weight",
            "One record a step, drawn by weights that do not depend on the data.",
            ("max_weight",),
        ),
        SchemeChoice("full", "All records", "Every record joins every step: no amplification."),
        SchemeChoice("unknown", "Not known", "Unknown sampling counts as if all records joined."),
    )
}
