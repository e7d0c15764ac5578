"""What the planner answers, with every number written out: uppers rounded up, lowers down."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from accounting.accountants.best_bound import BEST, best_bound
from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Bound, Status
from accounting.work_limit import attempt
from service import formatting
from service.errors import LedgerError, UnsupportedEventError
from service.guarantees import fit_suggestions, plan
from service.guarantees.fit_suggestions import Remedies, Wanted
from service.guarantees.plan import Plan
from service.identity.access import datasets_within
from service.identity.authentication import Caller
from service.ledger.append.admission import reason_unbounded
from service.ledger.lookups import find_dataset
from service.ledger.views import dataset_answer
from service.schemas.plan_response import PlanAnswer
from service.schemas.requests import accepted_statuses
from service.storage.tables import datasets
from service.web.dashboard.forms.planner_form import EPSILON, PlannerForm
from service.web.dashboard.forms.planner_schemes import LEFT_OUT, SCHEMES
from service.web.dashboard.glossary import ASSUMPTIONS, RELATIONS, STATUSES
from service.web.dashboard.pages.planning.planner_budget import can_become_budget, for_dataset
from service.web.dashboard.pages.planning.planner_words import plan_words
from service.web.dashboard.snippets import client_snippet

_ACCOUNTANTS: Final[Mapping[str, str]] = {
    "rdp": "Rényi",
    "gdp": "Gaussian DP",
    "pld": "privacy loss distribution",
}
_DATASETS_MAX: Final = 500  # offered by name
_SHORT: Final[Mapping[str, str]] = {"rdp": "Rényi", "gdp": "Gaussian DP", "pld": "PLD"}
# Asked in this order for a quick answer, for some 30, 60 and 250 ms of processor time.
# Only draws with replacement come to the last one.
QUICK_TRIES: Final = ((BEST, 6_000_000), ("rdp", 16_000_000), (BEST, 60_000_000))
_UNAMPLIFIED: Final = frozenset({"gaussian-dp", "gaussian-renyi"})
_WIDEST: Final = (0.01, 1000.0)  # epsilons at the ends of a bar
_SLOW: Final = "No bound is found quickly; the certified answer may have one."
_ACCEPTABLE: Final = "Our own proofs can be accepted, under “More settings”."
_SOLVED: Final = "It is found together with the certified answer."

# A shuffled loader, and what can stand in its place at the same cost.
_CHOICES: Final[Mapping[str, tuple[str, str, Mapping[str, Any]]]] = {
    "as_it_is": (
        "Shuffled, all records used",
        "DataLoader(shuffle=True): each pass uses all records.",
        {"sampling": "shuffle", "last_batch": "used"},
    ),
    "leave_out": (
        "Shuffled, at least one record left out",
        "dpledger_client.shuffled(): other records are left out of each pass.",
        {"sampling": "shuffle", "last_batch": LEFT_OUT},
    ),
    "balls_and_bins": (
        "Balls and bins", SCHEMES["balls_and_bins"].about, {"sampling": "balls_and_bins"}
    ),
    "poisson": ("Poisson", SCHEMES["poisson"].about, {"sampling": "poisson"}),
}  # fmt: skip
_OF_A_SCHEME: Final = (
    "quick", "epsilon", "epsilon_text", "epsilon_lower_text", "accountant_short", "status_text",
    "amplified", "reason", "share", "steps", "steps_text",
)  # fmt: skip

# What every answer has, whether it is known or not.
_NOTHING: Final[Mapping[str, Any]] = {
    "epsilon": None,
    "epsilon_text": formatting.NO_NUMBER,
    "epsilon_lower": None,
    "epsilon_lower_text": None,
    "smaller_text": None,
    "accountant_name": None,
    "accountant_short": None,
    "bound": None,
    "status": None,
    "status_text": "",
    "status_kind": "quiet",
    "status_about": "",
    "amplified": True,
    "assumptions": [],
    "unamplified_text": formatting.NO_NUMBER,
    "poisson_would_say_text": None,
    "reason": None,
    "share": 0.0,
    "solved": None,
    "words": [],
}

_OFFERED: Final = (
    select(datasets.c.name)
    .where(datasets.c.budget_epsilon.is_not(None))
    .order_by(datasets.c.name)
    .limit(_DATASETS_MAX)
)


def quick_answer(form: PlannerForm) -> dict[str, Any]:
    """An upper bound at once, and what goes with the settings.

    Raises:
        InvalidRequestError: a field is at fault.
    """
    form.counts()  # a field at fault is told at once
    told = {**_NOTHING, "quick": True, **planner_settings(form)}
    if form.find != EPSILON:
        form.asked()  # and so is a target
        return told | {"reason": _SOLVED}
    found = quick_bound(form)
    return told | ({"reason": _why(form)} if found is None else _quick(found))


def quick_bound(form: PlannerForm) -> Bound | None:
    """Return the best accepted bound that is found with little work, else a Renyi one.

    Epsilon is upper, in nats. None if no accountant finds an accepted finite bound so quickly.

    Raises:
        InvalidRequestError: a field is at fault.
    """
    counts, relation = form.counts(), NeighboringRelation(form.neighboring_relation)
    accept = accepted_statuses(form.accept())

    def ask(accountant: str) -> Bound | None:
        return best_bound(
            counts,
            relation=relation,
            delta=form.delta,
            accept=accept,
            accountant=accountant,
            with_lower=False,
        )

    for accountant, points in QUICK_TRIES:
        if (found := attempt(points, partial(ask, accountant))) is not None:
            return found
    return None


def _quick(found: Bound) -> dict[str, Any]:
    return _epsilon(found.epsilon, None) | {
        "accountant_name": _ACCOUNTANTS.get(found.accountant, found.accountant),
        "accountant_short": _SHORT.get(found.accountant, found.accountant),
        "bound": found.bound,
        **_status(found.status),
        "amplified": found.bound not in _UNAMPLIFIED,
    }


def _why(form: PlannerForm) -> str:
    relation = NeighboringRelation(form.neighboring_relation)
    (event,) = form.counts().steps
    reason = reason_unbounded(event, relation=relation, accept=accepted_statuses(form.accept()))
    return _add_hint(reason, form) if reason else _SLOW


def _add_hint(reason: str, form: PlannerForm) -> str:
    """The reason, and where to accept what it says is not accepted."""
    return f"{reason} {_ACCEPTABLE}" if "not accepted" in reason and not form.derived else reason


def certified_answer(form: PlannerForm) -> dict[str, Any]:
    """The certified bracket, and the value that was found where one is sought.

    Raises:
        InvalidRequestError: a field is at fault, or the target cannot be reached.
        TooExpensiveError: it takes too much work.
    """
    asked = form.asked()
    try:
        found = plan.account_plan(asked) if isinstance(asked, Plan) else plan.solve(asked)
    except UnsupportedEventError as refusal:
        reason = _add_hint(_describe_refusal(refusal), form)
        return {**_NOTHING, "quick": False, **planner_settings(form), "reason": reason}
    solved = form
    if found.solved is not None:
        solved = form.solved(found.solved.parameter, found.solved.value)
    told = {"words": plan_words(solved, found), **planner_settings(solved)}
    return {**_NOTHING, "quick": False, **told, **_certified_fields(found)}


def _certified_fields(found: PlanAnswer) -> dict[str, Any]:
    poisson = found.poisson_would_say
    return _epsilon(found.epsilon, found.epsilon_lower) | {
        "accountant_name": _ACCOUNTANTS.get(found.accountant or "", found.accountant),
        "accountant_short": _SHORT.get(found.accountant or "", found.accountant),
        "bound": found.bound,
        "share": share_of(found.epsilon),
        "amplified": found.bound not in _UNAMPLIFIED,
        **({} if found.status is None else _status(Status(found.status))),
        "assumptions": [
            {"id": one, "text": ASSUMPTIONS[Assumption(one)]} for one in found.assumptions
        ],
        "unamplified_text": formatting.up(found.unamplified_epsilon),
        "poisson_would_say_text": None if poisson is None else formatting.plain(poisson.epsilon),
        "smaller_text": _smaller(found),
        "reason": found.reason,
        "solved": _solution_fields(found),
    }


def _smaller(found: PlanAnswer) -> str | None:
    """That a proved bound says less than half, and what it takes for it to count."""
    bound = found.smaller_bound
    if bound is None:
        return None
    less = "" if found.epsilon is None else ", less than half"
    status = formatting.words(bound.status).lower()
    return (
        f"{bound.bound} proves ε ≤ {formatting.up(bound.epsilon)}{less}. Its status is {status}: "
        "it counts where that status is accepted."
    )


def _solution_fields(found: PlanAnswer) -> dict[str, Any] | None:
    if found.solved is None:
        return None
    parameter, value = found.solved.parameter, found.solved.value
    # On the safe side: noise is rounded up; steps are whole.
    text = formatting.count(value) if isinstance(value, int) else formatting.up(value, digits=6)
    return {"parameter": parameter, "value": value, "value_text": text}


def _epsilon(upper: float | None, lower: float | None) -> dict[str, Any]:
    return {
        "epsilon": upper,
        "epsilon_text": formatting.up(upper),
        "epsilon_lower": lower,
        "epsilon_lower_text": None if lower is None else formatting.down(lower),
        "share": share_of(upper),
    }


def _status(status: Status) -> dict[str, Any]:
    about, kind = STATUSES[status]
    return {
        "status": status.value,
        "status_text": formatting.words(status),
        "status_kind": kind,
        "status_about": about,
    }


def planner_settings(form: PlannerForm) -> dict[str, Any]:
    """What the fields come to."""
    return {
        "steps": form.steps,
        "steps_text": formatting.count(form.steps),
        "epochs_text": formatting.plain(form.epochs),
        "rate_text": formatting.plain(form.per_step / form.dataset_size),
        "steps_per_pass_text": formatting.count(form.steps_per_pass),
        "delta_text": formatting.all_digits(form.delta),
        "noise_text": formatting.plain(form.noise_multiplier, digits=6),
        "cap_text": formatting.count(form.cap),
        "query": form.query(),
        "snippet": client_snippet(form),
    }


def schemes_answer(form: PlannerForm) -> list[dict[str, Any]]:
    """Every scheme at the same settings, by its quick bound; the best first."""
    rows = []
    for scheme in SCHEMES.values():
        row: dict[str, Any] = {
            "slug": scheme.slug,
            "title": scheme.title,
            "about": scheme.about,
            "chosen": scheme.slug == form.sampling,
        }
        rows.append(row | _of_scheme(form, scheme.slug))
    return sorted(rows, key=lambda row: (row["epsilon"] is None, row["epsilon"] or 0.0))


def _of_scheme(form: PlannerForm, slug: str) -> dict[str, Any]:
    return _quick_row(replace(form, sampling=slug, find=EPSILON))


def choices_answer(form: PlannerForm, *, certify: bool) -> list[dict[str, Any]]:
    """A shuffled loader and its alternatives, our own proofs accepted; by their quick bounds.

    Args:
        form: the settings; of its passes all four have as many.
        certify: whether to work the brackets out at once, which takes seconds.
    """
    rows = []
    for slug, (title, about, given) in _CHOICES.items():
        changed = replace(form, derived=True, find=EPSILON, **given)
        row: dict[str, Any] = {"slug": slug, "title": title, "about": about}
        row["chosen"] = all(getattr(form, name) == value for name, value in given.items())
        rows.append(row | _quick_row(changed, certify=certify))
    return rows


def _quick_row(changed: PlannerForm, *, certify: bool = False) -> dict[str, Any]:
    try:
        found = certified_answer(changed) if certify else quick_answer(changed)
    except LedgerError as refusal:
        found = {
            **_NOTHING,
            "quick": True,
            **planner_settings(changed),
            "reason": _describe_refusal(refusal),
        }
    return {name: found[name] for name in _OF_A_SCHEME} | {"query": changed.query()}


def _describe_refusal(refusal: LedgerError) -> str:
    return str(refusal).partition(": ")[2] or str(refusal)


def share_of(epsilon: float | None) -> float:
    """How long an epsilon's bar is, of one: on a logarithmic scale."""
    if epsilon is None or epsilon <= 0:
        return 0.0
    low, high = (math.log(end) for end in _WIDEST)
    return round(min(1.0, max(0.01, (math.log(epsilon) - low) / (high - low))), 4)


def fits_answer(connection: Connection, form: PlannerForm, viewer: Caller) -> dict[str, Any]:
    """Whether the plan fits in a dataset's budget, what remains, and what would make it fit.

    The dataset's own relation, size and accepted statuses count, whatever the form says.

    Raises:
        NotFoundError: there is no such dataset that the viewer reaches.
        InvalidRequestError: a field is at fault, or does not fit the dataset.
        TooExpensiveError: it takes too much work.
    """
    viewer.require_dataset(form.dataset)
    row = find_dataset(connection, form.dataset)
    own = for_dataset(form, row)
    asked = own.asked()
    wanted = Wanted.model_validate({"events": [event.model_dump() for event in asked.events]})
    found = fit_suggestions.remedies(connection, form.dataset, wanted)
    stands = dataset_answer(connection, row)
    return {
        "dataset": form.dataset,
        "has_budget": stands.budget is not None,
        "fits": found.fits,
        "remaining_text": formatting.down(stands.remaining),
        "limit_text": formatting.all_digits(stands.budget.epsilon if stands.budget else None),
        "remedies": [] if found.fits else _remedies(found),
        "differs": _differences(form, row),
        "steps_text": formatting.count(own.steps),
        "can_become_budget": form.correlated is None and can_become_budget(stands, viewer),
        "revision": stands.revision,
        "settings": form.query(),
    }


def _remedies(found: Remedies) -> list[str]:
    told = []
    if found.fewer_steps.value is not None:
        told.append(f"at most {formatting.count(found.fewer_steps.value)} steps")
    if found.more_noise.noise_multiplier is not None:
        told.append(f"a noise multiplier of {formatting.up(found.more_noise.noise_multiplier)}")
    if found.lower_rate.sampling_probability is not None:
        rate = formatting.down(found.lower_rate.sampling_probability)
        told.append(f"a sampling probability of {rate}")
    if found.lower_rate.batch_size is not None:
        told.append(f"batches of {formatting.count(found.lower_rate.batch_size)}")
    return told


def _differences(form: PlannerForm, row: Row[Any]) -> list[str]:
    """Where the dataset is not as the form has it."""
    told = []
    if row.dataset_size != form.dataset_size:
        told.append(f"it has {formatting.count(row.dataset_size)} records")
    if row.neighboring_relation != form.neighboring_relation:
        relation = RELATIONS[NeighboringRelation(row.neighboring_relation)][0]
        told.append(f"its relation is “{relation.lower()}”")
    return told


def list_budgeted_datasets(connection: Connection, viewer: Caller) -> list[str]:
    """Datasets with a budget, by name, that the viewer reaches."""
    query = _OFFERED.where(datasets_within(viewer.datasets))
    return [row.name for row in connection.execute(query)]
