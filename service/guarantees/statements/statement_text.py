"""The sentences of a privacy statement, for who is no expert. Each number is rounded up.

They are made of what the readings say; nothing is accounted here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Row

from accounting.events import NeighboringRelation
from service.formatting import (
    NARROW,
    NO_BOUND,
    all_digits,
    bound_reason,
    charged_of,
    four_digits_up,
    many,
    one_in,
    percent_rounded_up,
    percent_up,
)
from service.guarantees.statements.one_person import FALSE_ALARMS, PersonCase, PersonPromise
from service.ledger.incidents import Kind
from service.schemas.responses import BudgetAnswer, GuaranteeAnswer, RunAnswer
from service.schemas.run_states import CLOSED

_FACTOR_MAX: Final = 10_000.0  # beyond, a factor says nothing to anybody
_EVERYBODY: Final = 0.9995


_TOLD: Final = {
    "batch_sizes": "a verdict on the batch sizes",
    "audit": "the result of an audit with real records",
}
Tone = Literal["good", "plain", "warn", "bad"]
# What happened, as it is told of so many times.
_HAPPENED: Final[dict[Kind, tuple[Tone, str]]] = {
    Kind.OVERDRAFT: (
        "bad",
        "What is charged exceeded a limit, by recorded steps, a correction or changed settings. "
        "The numbers include all of it.",
    ),
    Kind.SAMPLING_CONTRADICTED: (
        "bad",
        "The code drew its batches in another way than declared. Steps count as recorded: "
        "those that were recorded as declared may count too little until they are corrected.",
    ),
    Kind.BATCH_SIZES_REFUTED: (
        "bad",
        "Batch sizes did not fit the declared sampling: the numbers may be too low.",
    ),
    Kind.AUDIT_CONTRADICTS: (
        "bad",
        "An audit found more than the certified number allows: the training code may be faulty.",
    ),
    Kind.CERTIFIED_TOO_LOW: (
        "bad",
        "A certificate stated an epsilon that was later found too low. The numbers here are "
        "computed by the present version.",
    ),
    Kind.NOISE_REUSED: ("bad", "Correlated noise may have been used twice: no bound is proved."),
    Kind.LEDGER_SUSPENDED: ("bad", "The ledger contradicted what it had signed."),
    Kind.RANKS_DISAGREE: ("warn", "Processes of one training job were configured differently."),
    Kind.REOPENED: ("warn", "Steps were recorded after a run had ended. The numbers include them."),
    Kind.RECORDED_AFTER_RELEASE: (
        "warn",
        "Steps were recorded after their reservation ended. The numbers include them.",
    ),
    Kind.CORRECTION: (
        "plain",
        "Entries were corrected. The numbers hold for the original and the corrected steps.",
    ),
}
_TIMES: Final = {Kind.OVERDRAFT: " that a limit was newly exceeded"}  # what is counted
_SAMPLING: Final[dict[str, tuple[Tone, str]]] = {
    "declared": (
        "plain",
        "The trainer declared how batches were drawn. The code was not checked.",
    ),
    "detected": ("good", "The client inspected the data loader; it samples as declared."),
    "contradicted": (
        "bad",
        "The code draws its batches in another way than declared.",
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


@dataclass(frozen=True, slots=True)
class PersonRow:
    """One case of what a person is promised, in words."""

    case: str
    epsilon: str
    found: str
    first: bool  # the certified one


def _small(value: float) -> str:
    return f"{value!r}".replace("e-0", "e-")


def shown_of_run(name: str, found: GuaranteeAnswer) -> str:
    """What of a run the number is about."""
    if found.release == "last_iterate":
        return f"the final model of the run {name}, and none of its earlier states"
    if found.release == "every_pass":
        return f"the models that the run {name} showed at the ends of its passes, and no others"
    return f"every model that the run {name} has produced at any step"


def list_promises(
    found: GuaranteeAnswer, dataset: Row[Any], shown: str, person: PersonPromise | None
) -> list[str]:
    """What is promised, and how much; of one person None where nothing finite is proved."""
    if found.epsilon is None or found.delta is None or person is None:
        reason = bound_reason(found.reason or "No accepted theorem gives a finite bound.")
        return [
            f"There is no guarantee for {shown}. No finite bound could be proved, so anything in "
            f"the data may be revealed. {reason}"
        ]
    if found.epsilon == 0:
        return [
            f"No step that used the data is recorded of {shown}, so nothing in the data is "
            "revealed by it. The number epsilon, which measures what is revealed, is 0."
        ]
    relation = _RELATIONS[NeighboringRelation(dataset.neighboring_relation)]
    differs = relation.format(unit=dataset.privacy_unit)
    return [
        f"A person who sees {shown} learns nearly the same from it {differs}. The number epsilon "
        f"measures the difference; smaller is better. Here it is at most "
        f"{four_digits_up(found.epsilon)}.",
        _factor(found.epsilon, found.delta),
        attack_sentence(person.cases[0].found),
        "This holds for any other knowledge and any computation, now and later: nothing that is "
        "done with the result afterwards can weaken it.",
    ]


def _factor(epsilon: float, delta: float) -> str:
    begin = "Consider any conclusion drawn from it. "
    apart = f"apart from a probability of {one_in(delta)}"
    factor = math.exp(min(epsilon, 700.0))
    if factor > _FACTOR_MAX:
        return (
            f"{begin}One record can change how likely it is by a factor of more than "
            f"{_FACTOR_MAX:,.0f}. This number alone gives no meaningful protection."
        )
    return (
        f"{begin}One record changes how likely it is by a factor of at most "
        f"{four_digits_up(math.nextafter(factor, math.inf))}, {apart}."
    )


def attack_sentence(found: float) -> str:
    """What an attacker finds at FALSE_ALARMS; given the share of people, upper."""
    begin = f"An attacker with a false-positive rate of {100 * FALSE_ALARMS:g}{NARROW}% finds "
    most = "possibly all" if found >= _EVERYBODY else f"at most {percent_rounded_up(found)}"
    return (
        f"{begin}{most} of the people in the data; who guesses without the result finds "
        f"{100 * FALSE_ALARMS:g}{NARROW}%."
    )


def list_addressees(dataset: Row[Any], unit: str) -> list[str]:
    """To whom."""
    return [
        f"To every {unit} that is one of the {dataset.dataset_size:,} records of the dataset "
        f"{dataset.name}, to each of them alone. What counts as one record was declared to be one "
        f"{unit}: for a person with several records it holds for each record, not for all together."
    ]


def outside_run(run: RunAnswer, dataset: str) -> list[str]:
    """What a run's number leaves out."""
    others = (
        f"Other runs on the same data. Several models together reveal more: the statement of the "
        f"dataset {dataset} covers all of them."
    )
    told = [
        f"The trainer published {_TOLD[one.kind]} of the branch {one.branch}. No epsilon covers "
        "what it reveals."
        for one in run.outside_guarantee
    ]
    return [others, *told]


def list_exclusions(dataset: Row[Any], unit: str) -> list[str]:
    """What no number of this kind promises."""
    found = [
        f"That nothing is learnt about a {unit}. Facts about many similar records may be learnt, "
        "and would be learnt without its record as well.",
        "The same epsilon for several records of one person: together they can lose more than one.",
        "Use of the data elsewhere. The ledger adds up recorded steps only, and does not know of "
        "copies or of training that was not recorded.",
        "That the data are stored safely, or that the people who train cannot see them.",
    ]
    if dataset.neighboring_relation == NeighboringRelation.REPLACE_ONE:
        found.append("That the number of records is secret: it counts as known.")
    return found


def list_assumptions(found: GuaranteeAnswer) -> list[str]:
    """What must be so, beside what the theorem assumes."""
    lines = [
        "That the recorded steps are those that ran, with the recorded noise. The ledger does not "
        "see the training."
    ]
    if found.valid_for == "fixed_schedule":
        lines.append(
            "That noise, batches and length were fixed before any result was seen. If they were "
            "chosen after seeing results, rely on the charged number instead."
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
        remarks.append(Remark("The run is not closed: further steps will add to epsilon.", "warn"))
    if found.planned_steps is not None:
        remarks.append(
            Remark(f"The numbers are those of the whole plan of {found.planned_steps:,} steps.")
        )
    if run.advisories:
        remarks.append(
            Remark(
                "A library that was loaded has a known defect, so the entries may be wrong: "
                f"{', '.join(one.id for one in run.advisories)}.",
                "bad",
            )
        )
    return remarks


def budget_remarks(budget: BudgetAnswer | None, whose: str) -> list[Remark]:
    """How the budget stands that limits what is spent: a run's own, or its dataset's."""
    if budget is None:
        return [Remark("No budget is set: nothing limits what may be charged.", "warn")]
    epsilon = all_digits(budget.epsilon)
    limit = f"the {whose}'s budget of epsilon {epsilon} at delta {_small(budget.delta)}"
    if budget.overdrawn or budget.spent is None:
        return [Remark(f"What is charged exceeds {limit}. Nothing more is admitted.", "bad")]
    return [
        Remark(
            f"Of {limit}, {percent_up(budget.share)} is charged. However the steps were chosen, "
            f"epsilon is at most {four_digits_up(budget.spent)}.",
            "good",
        )
    ]


def list_remarks(counts: dict[str, int]) -> Iterable[Remark]:
    """Yield a remark for each kind of incident, the most serious first."""
    for kind, (tone, text) in _HAPPENED.items():
        if count := counts.get(kind.value, 0):
            times = f"{count:,} times{_TIMES.get(kind, '')}"
            yield Remark(text if count == 1 else f"{text} ({times})", tone)


def person_rows(person: PersonPromise) -> list[PersonRow]:
    """Each case of what one person is promised, in words."""
    return [
        PersonRow(
            case=_case_words(one, person),
            epsilon=_epsilon_words(one, person.cases[0].delta),
            found="all" if one.found >= _EVERYBODY else percent_rounded_up(one.found),
            first=one.kind == "certified",
        )
        for one in person.cases
    ]


def _case_words(one: PersonCase, person: PersonPromise) -> str:
    match one.kind:
        case "certified":
            return "Certified: the steps were fixed before any result was seen"
        case "charged" if person.of_run and not person.budget_of_run:
            return "Charged to the dataset by all its runs: it holds however steps were chosen"
        case "charged":
            return "Charged: it holds however the steps were chosen"
        case "limit":
            return "With further steps, until the whole limit is charged"
        case "rows":
            return f"The person has {one.rows} records"
        case "every_step":
            return "Every batch held the person"
        case "elsewhere":
            return "The person is also in another dataset, with the same certified numbers"


def _epsilon_words(one: PersonCase, delta: float) -> str:
    if one.epsilon is None:
        return NO_BOUND
    other = "" if one.delta == delta else f" at δ = {_small(one.delta)}"
    return f"{four_digits_up(one.epsilon)}{other}"


def person_notes(person: PersonPromise) -> list[str]:
    """What the cases cover, and what not."""
    notes = []
    if person.charged is not None and person.budget is not None:
        whose = "limit of the run" if person.budget_of_run else "limit of the dataset"
        by = " by this run alone" if person.of_run and not person.budget_of_run else ""
        then = (
            "The limit is exceeded: nothing more is admitted."
            if person.budget.overdrawn
            else "Further steps add to it until nothing more is admitted."
        )
        notes.append(
            f"Charged{by}: {charged_of(person.charged, f'what the {whose} allows')}. The share "
            f"never falls. {then}"
        )
    elif person.budget is None:
        notes.append("No limit is set. Nothing is charged, so further steps can add any amount.")
    if person.groups_known:
        notes.append(
            "Several records: by group privacy, Theorem 3 of dpledger's docs/theory/composition.md."
        )
    else:
        notes.append("Several records: no bound is proved here for this sampling.")
    notes.append(
        "A corrected sampling: the certified number then holds for the recorded and for the "
        "corrected steps. It never falls."
    )
    if person.children:
        notes.append(
            f"Training on {many(person.children, 'dataset')} made from this one counts in the "
            "numbers of the dataset."
        )
    if person.parents:
        notes.append(
            f"This dataset was made from {many(person.parents, 'other')}. Training here counts "
            "there as well: a person who is in both reads the statement of the other one."
        )
    notes.append(
        "Not covered: copies, and datasets that were not made from one another in this ledger. "
        "If they hold the same person, their epsilons and deltas add to these."
    )
    return notes
