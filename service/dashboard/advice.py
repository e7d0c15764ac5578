"""What to do about an incident, in a few words."""

from dataclasses import dataclass
from typing import Any, Final

from service.incidents import IncidentAnswer, Kind

_BAD: Final = "bad"
_WARN: Final = "warn"
_QUIET: Final = "quiet"


@dataclass(frozen=True, slots=True)
class Advice:
    """How bad a kind of incident is, what it means, and what to do."""

    weight: str  # the kind of its badge
    means: str
    do: str


ADVICE: Final[dict[str, Advice]] = {
    Kind.OVERDRAFT: Advice(
        _BAD,
        "Steps were recorded beyond the limit; what happened is never hidden.",
        "Stop the runs, find out why they recorded rather than charged, then decide whether a "
        "higher limit can be answered for. Until then nothing more is admitted.",
    ),
    Kind.REOPENED: Advice(
        _BAD,
        "Steps were recorded after a run was finished.",
        "Ask its owner what still ran. Whatever was said of the run at its end no longer holds.",
    ),
    Kind.RECORDED_AFTER_RELEASE: Advice(
        _BAD,
        "Steps were recorded after their reservation was given back.",
        "Look for a trainer that went on after it had said that it had stopped.",
    ),
    Kind.REFUSAL: Advice(
        _WARN,
        "Steps did not fit and were refused; nothing was spent.",
        "Plan with fewer steps, more noise or a lower rate, or ask for a higher limit.",
    ),
    Kind.THRESHOLD: Advice(
        _WARN,
        "A share of the limit is used up.",
        "See who spends, below, and whether what is planned still fits.",
    ),
    Kind.SAMPLING_CONTRADICTED: Advice(
        _BAD,
        "The training code samples otherwise than the run declared.",
        "Correct the code or the record: until then the run's epsilon rests on what is not so.",
    ),
    Kind.RANKS_DISAGREE: Advice(
        _BAD,
        "Processes of one job are configured differently.",
        "Compare the configuration of the two ranks; the larger spending is not recorded.",
    ),
    Kind.BATCH_SIZES_REFUTED: Advice(
        _BAD,
        "The batch sizes that were seen do not fit the sampling that was declared.",
        "Look at the data loader, then correct the record.",
    ),
    Kind.CORRECTION: Advice(
        _QUIET,
        "What was recorded was corrected; the record stands beside it.",
        "Nothing, where it was expected. Corrections are only ever enforced upwards.",
    ),
    Kind.SETTINGS_CHANGED: Advice(
        _QUIET,
        "The limit, or what is accepted, was changed.",
        "Nothing, where it was agreed. The reason is in the list of limits.",
    ),
    Kind.CERTIFIED_TOO_LOW: Advice(
        _BAD,
        "A later version of the accounting cannot confirm a certified epsilon.",
        "Withdraw the certificate, and issue it anew.",
    ),
    Kind.LEDGER_SUSPENDED: Advice(
        _BAD,
        "The log is not the one that was signed.",
        "Follow the page on suspended ledgers; trust no number until it is reconciled.",
    ),
}
OTHER: Final = Advice(_WARN, "", "Look at its details.")


def advice_of(incident: IncidentAnswer) -> Advice:
    """What to do about an incident."""
    return ADVICE.get(incident.kind, OTHER)


def detail_of(incident: IncidentAnswer) -> list[tuple[str, Any]]:
    """The details of an incident that its other columns do not tell."""
    told = {"dataset", "run"}
    return [(name, value) for name, value in incident.detail.items() if name not in told]
