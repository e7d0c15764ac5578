"""The sentences of a privacy statement, for who is no expert. Each number is rounded up.

They are made of what the readings say; nothing is accounted here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Final, Literal

from sqlalchemy import Row

from accounting.events import NeighboringRelation
from service.guarantees.privacy_curve import percent_up
from service.ledger.incidents import Kind
from service.schemas.responses import BudgetAnswer, GuaranteeAnswer, RunAnswer
from service.schemas.run_states import CLOSED

FALSE_ALARMS: Final = 0.01  # at which it is said who is found
FACTOR_MAX: Final = 10_000.0  # beyond, a factor says nothing to anybody
PLAIN_DIGITS: Final = 6  # before or after the point; beyond, powers of ten
_UP: Final = Context(prec=4, rounding=ROUND_CEILING)
_EVERYBODY: Final = 0.9995


Tone = Literal["good", "plain", "warn", "bad"]
# What happened, as it is told of so many times.
_HAPPENED: Final[dict[Kind, tuple[Tone, str]]] = {
    Kind.OVERDRAFT: ("bad", "Recorded steps went beyond a limit. They are in the numbers."),
    Kind.SAMPLING_CONTRADICTED: (
        "bad",
        "The code that ran drew its batches otherwise than was declared. What was found counts "
        "from there on; steps before it count as they were declared.",
    ),
    Kind.BATCH_SIZES_REFUTED: (
        "bad",
        "The sizes of batches did not fit the sampling that was declared: the numbers may be too "
        "low.",
    ),
    Kind.CERTIFIED_TOO_LOW: (
        "bad",
        "A certificate stated an epsilon that was later found too low. The numbers here are those "
        "of the present version.",
    ),
    Kind.LEDGER_SUSPENDED: ("bad", "The ledger contradicted what it had signed."),
    Kind.RANKS_DISAGREE: ("warn", "Processes of one training job were configured differently."),
    Kind.REOPENED: ("warn", "Steps were recorded after a run had ended. They are in the numbers."),
    Kind.RECORDED_AFTER_RELEASE: (
        "warn",
        "Steps were recorded that had been given back. They are in the numbers.",
    ),
    Kind.CORRECTION: (
        "plain",
        "Facts were corrected. The numbers hold whether the record or its correction is right.",
    ),
}
_SAMPLING: Final[dict[str, tuple[Tone, str]]] = {
    "declared": (
        "plain",
        "How batches were drawn is the trainer's word. Its code was not seen to do so, nor "
        "otherwise.",
    ),
    "detected": ("good", "How batches were drawn was read from the code that ran, and fits."),
    "contradicted": (
        "bad",
        "The code that ran draws batches otherwise than was declared.",
    ),
}
_RELATIONS: Final = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: "whether or not any one {unit}'s record is in the data",
    NeighboringRelation.REPLACE_ONE: "whatever any one {unit}'s record says",
    NeighboringRelation.REPLACE_SPECIAL: "whether any one {unit}'s record is there or blank",
}


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence, and how it should be taken."""

    text: str
    tone: Tone = "plain"


def upper(value: float) -> str:
    """Four digits, rounded up."""
    found = _UP.create_decimal_from_float(value)
    return f"{found:,f}" if abs(found.adjusted()) < PLAIN_DIGITS else f"{found:g}"


def _small(value: float) -> str:
    return f"{value:g}".replace("e-0", "e-")


def one_in(delta: float) -> str:
    """A small chance, as one in so many; never less than it is."""
    return f"one in {math.floor(1 / Decimal(repr(delta))):,}"


def shown_of_run(name: str, found: GuaranteeAnswer) -> str:
    """What of a run the number is about."""
    if found.release == "last_iterate":
        return f"the final model of the run {name}, and none of its earlier states"
    if found.release == "every_pass":
        return f"the models that the run {name} showed at the ends of its passes, and no others"
    return f"every model that the run {name} has produced, step by step"


def promised(found: GuaranteeAnswer, dataset: Row[Any], shown: str) -> list[str]:
    """What is promised, and how much."""
    if found.epsilon is None or found.delta is None:
        reason = found.reason or "No accepted theorem gives a finite bound."
        return [
            f"Of {shown}: nothing. No finite bound could be proved, so that whatever is in the "
            f"data may show. {reason}"
        ]
    relation = _RELATIONS[NeighboringRelation(dataset.neighboring_relation)]
    differs = relation.format(unit=dataset.privacy_unit)
    return [
        f"Whoever sees {shown}, learns nearly the same from it {differs}. How near is a number, "
        f"epsilon: the smaller, the nearer. Here it is at most {upper(found.epsilon)}.",
        _factor(found.epsilon, found.delta),
        _membership(found.epsilon, found.delta),
        "This holds whatever else they know or find out later, whatever they compute, and for "
        "ever: nothing that is done with the result afterwards can weaken it.",
    ]


def _factor(epsilon: float, delta: float) -> str:
    begin = "Take any conclusion that somebody may draw. "
    apart = f"apart from a chance of {one_in(delta)}"
    factor = math.exp(min(epsilon, 700.0))
    if factor > FACTOR_MAX:
        return (
            f"{begin}One record can change how likely it is by a factor of more than "
            f"{FACTOR_MAX:,.0f}. That is so much that this number alone protects nobody."
        )
    return (
        f"{begin}One record changes how likely it is by a factor of at most "
        f"{upper(math.nextafter(factor, math.inf))}, {apart}."
    )


def found_at_most(epsilon: float, delta: float, false_alarms: float) -> float:
    """The share of members that any test finds at a rate of false alarms. Upper.

    min(e^epsilon a + delta, 1 - e^-epsilon (1 - delta - a)): what (epsilon, delta) says of tests.
    """
    first = math.exp(min(epsilon, 700.0)) * false_alarms + delta
    second = 1 - math.exp(-epsilon) * (1 - delta - false_alarms)
    return min(1.0, math.nextafter(min(first, second) * (1 + 1e-12), math.inf))


def _membership(epsilon: float, delta: float) -> str:
    begin = (
        "Say somebody tries to tell whose records were used, and wrongly accuses one in a hundred "
        "of those who were not. Of those who were, they find "
    )
    most = found_at_most(epsilon, delta, FALSE_ALARMS)
    if most >= _EVERYBODY:
        return f"{begin}possibly everybody: nothing less is proved."
    return f"{begin}at most {percent_up(most)}."


def addressed(dataset: Row[Any], unit: str) -> list[str]:
    """To whom."""
    return [
        f"To every {unit} that is one of the {dataset.dataset_size:,} records of the dataset "
        f"{dataset.name}, to each of them alone. What counts as one record was declared to be one "
        f"{unit}: whoever is behind several records has this promise for each, not for all."
    ]


def outside_run(run: RunAnswer, dataset: str) -> list[str]:
    """What a run's number leaves out."""
    others = (
        f"Nothing is said of other runs on the same data. Whoever sees several models learns more: "
        f"the statement of the dataset {dataset} is about all of them together."
    )
    told = [
        f"The trainer published a verdict on the batch sizes of the branch {one.branch}. No "
        "epsilon covers what that tells."
        for one in run.outside_guarantee
    ]
    return [others, *told]


def never_promised(dataset: Row[Any], unit: str) -> list[str]:
    """What no number of this kind promises."""
    found = [
        f"Not that nothing is learnt about a {unit}. What is true of many like it may be learnt, "
        "and would be without its record as well.",
        "Not the same for several records at once: for k of them epsilon is up to k times as "
        "large, and delta grows too.",
        "Not what was done with the data elsewhere. The ledger adds up what it was told; of copies "
        "and of training that was not recorded it knows nothing.",
        "Not that the data are stored safely, or that whoever trains may not see them.",
    ]
    if dataset.neighboring_relation == NeighboringRelation.REPLACE_ONE:
        found.append("Not that the number of records is secret: it is taken to be known.")
    return found


def assumed(found: GuaranteeAnswer) -> list[str]:
    """What must be so, beside what the theorem assumes."""
    lines = [
        "That the steps which were recorded are those that ran, with the noise that was recorded. "
        "The ledger does not see the training."
    ]
    if found.valid_for == "fixed_schedule":
        lines.append(
            "That noise, batches and length were settled before any result was seen. Where they "
            "were chosen on the way, what the budget's filter counts as spent is what holds."
        )
    if found.release != "every_step":
        lines.append(
            "That nothing else of the run was shown: no earlier model, and no measurement of one."
        )
    elif found.release_reason:
        lines.append(f"Every step counts as shown. {found.release_reason}")
    return lines


def run_remarks(run: RunAnswer, found: GuaranteeAnswer) -> list[Remark]:
    """How a run went."""
    tone, text = _SAMPLING[run.sampling_status]
    remarks = [Remark(text, tone)]
    if run.state not in CLOSED:
        remarks.append(Remark("The run is not closed: whatever it does from here on adds.", "warn"))
    if found.planned_steps is not None:
        remarks.append(
            Remark(f"The numbers are those of the whole plan of {found.planned_steps:,} steps.")
        )
    if run.advisories:
        remarks.append(
            Remark(
                "A library that was loaded has a known defect, by which the record may be wrong: "
                f"{', '.join(one.id for one in run.advisories)}.",
                "bad",
            )
        )
    return remarks


def budget_remarks(budget: BudgetAnswer | None, whose: str) -> list[Remark]:
    """How the budget stands that limits what is spent: a run's own, or its dataset's."""
    if budget is None:
        return [Remark("No budget is set: nothing limits what is spent.", "warn")]
    limit = f"the {whose}'s budget of epsilon {budget.epsilon:g} at delta {_small(budget.delta)}"
    if budget.overdrawn or budget.spent is None:
        return [Remark(f"What was recorded is beyond {limit}. Nothing more is admitted.", "bad")]
    return [
        Remark(f"Of {limit}, at most {upper(budget.spent)} is spent, as its filter counts.", "good")
    ]


def happened(counts: dict[str, int]) -> Iterable[Remark]:
    """What somebody should have looked at, the gravest first."""
    for kind, (tone, text) in _HAPPENED.items():
        if count := counts.get(kind.value, 0):
            yield Remark(text if count == 1 else f"{text} ({count:,} times)", tone)
