"""Incidents against the acts that they tell of: what somebody should look at is still listed."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, bindparam, or_, select

from service.adoption import ADOPTED
from service.incidents import Kind
from service.tables import incidents, runs
from service.verification.names import UNREADABLE
from service.verification.report import Rank, shown
from service.verification.rows import every
from service.verification.walk import Walk

# An overdraft's incident has an act that equals it, and is compared with the facts.
_KINDS: Final = (
    Kind.CORRECTION, Kind.REOPENED, Kind.SAMPLING_CONTRADICTED, Kind.RANKS_DISAGREE,
    Kind.BATCH_SIZES_REFUTED,
)  # fmt: skip
_OF_DATASET: Final = (
    select(incidents.c.kind, runs.c.name.label("run"), incidents.c.sequence)
    .join(runs, runs.c.id == incidents.c.run_id)
    .where(
        incidents.c.dataset_id == bindparam("dataset"),
        or_(*(incidents.c.kind == kind.value for kind in _KINDS)),
    )
)
_SAID: Final = frozenset({"correction", "run_state", "finding"})
Told = tuple[Any, Any, Any]  # its kind, its run, and the latest entry


def require_incidents(connection: Connection, walk: Walk, dataset_id: int) -> None:
    """Require the incident of every act that had one, of a dataset whose log has been walked."""
    expected = Counter(_expected(walk))
    found = every(connection, _OF_DATASET, dataset=dataset_id) if expected else ()
    there = Counter((one["kind"], one["run"], one["sequence"]) for one in found)
    walk.report.checked["incidents"] += expected.total()
    for kind, run, sequence in (expected - there).elements():
        what = f"the incident {kind} of run {shown(run)} after entry {shown(sequence)}"
        walk.broken(Rank.DERIVED, (what, None), "is missing, though an act says that it was", None)


def _expected(walk: Walk) -> Iterator[Told]:
    """The incidents that acts speak of.

    Acts that an older ledger's log began with were made of its rows all at once: when each of them
    happened, and whether there were incidents then, they do not say.
    """
    adopted = {act["acted_at"] for act in walk.acts if act["kind"] == ADOPTED}
    claims: dict[Any, set[Any]] = defaultdict(set)  # of ranks, by branch
    for act in walk.acts:
        if act["kind"] not in _SAID:
            continue
        try:
            content = json.loads(act["content"])
            kind = _kind_of(act["kind"], content, claims)
            told = kind, content["run"], act["after_sequence"]
            hash(told)
        except UNREADABLE:  # which is said of the act itself
            continue
        if kind is not None and act["acted_at"] not in adopted:
            yield told


def _kind_of(said: str, content: Any, claims: dict[Any, set[Any]]) -> Kind | None:
    if said == "correction":
        return Kind.CORRECTION
    if said == "run_state":
        return Kind.REOPENED if content["state"] == "reopened" else None
    kind, claim = content["of_kind"], content["claim"]
    if kind == "rank":  # one that says what none before it did, while there was another
        before = claims[content["run"], content["branch"]]
        differs = bool(before) and claim not in before
        before.add(claim)
        return Kind.RANKS_DISAGREE if differs else None
    return {
        ("sampling", "contradicted"): Kind.SAMPLING_CONTRADICTED,
        ("batch_sizes", "refuted"): Kind.BATCH_SIZES_REFUTED,
    }.get((kind, claim))
