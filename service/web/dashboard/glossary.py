"""Say what terms mean and what to do about an incident, in a few words."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from accounting.events import NeighboringRelation
from accounting.guarantees import Assumption, Status
from service.ledger.incidents import IncidentAnswer, Kind

_BAD: Final = "bad"
_WARN: Final = "warn"
_QUIET: Final = "quiet"
WEIGHTS: Final = (_QUIET, _WARN, _BAD)  # the most serious last
# What each status is worth, and the colour of its badge.
STATUSES: Final[dict[Status, tuple[str, str]]] = {
    Status.PUBLISHED: ("Stated in a peer-reviewed paper.", "good"),
    Status.DERIVED: ("Proved on our own pages, not reviewed by others.", "info"),
    Status.DECLARED: ("Claimed by the caller, not proved here.", "quiet"),
    Status.CONDITIONAL: ("Holds if declared facts are true, which no record can check.", "warn"),
    Status.CONJECTURE: ("Conjectured by its authors, not proved. Never used.", "bad"),
    Status.ESTIMATE: ("A rough estimate. Never used.", "bad"),
    Status.RETRACTED: ("Withdrawn by its own authors. Never used.", "bad"),
    Status.REFUTED: ("False as stated: a counterexample is known. Never used.", "bad"),
}
RELATIONS: Final[dict[NeighboringRelation, tuple[str, str]]] = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: (
        "Add or remove one",
        "The data is compared with and without one record.",
    ),
    NeighboringRelation.REPLACE_ONE: (
        "Replace one",
        "The data is compared with the same data in which one record has other content; the number "
        "of records is public.",
    ),
    NeighboringRelation.REPLACE_SPECIAL: (
        "Replace by nothing",
        "The data is compared with the same data in which one record contributes nothing; the "
        "number of records is public.",
    ),
}
ASSUMPTIONS: Final[dict[Assumption, str]] = {
    Assumption.INDEPENDENT_GAUSSIAN_NOISE: (
        "Each step's noise is Gaussian and drawn anew, from a generator that cannot be predicted."
    ),
    Assumption.INDEPENDENT_LAPLACE_NOISE: (
        "Noise is Laplace, and fresh for each step and each coordinate."
    ),
    Assumption.INDEPENDENT_ANSWERS: (
        "Each record's answer is randomized independently, anew at each step."
    ),
    Assumption.UNIFORM_NULL_ANSWER: (
        "A record that is left out answers each category with the same probability."
    ),
    Assumption.DECLARED_GUARANTEE: (
        "The declared guarantee holds under this relation at every step, for any earlier answers."
    ),
    Assumption.ANSWERS_ABOVE_MIXTURES: (
        "Each answer of a record is at least about as likely as from any two others together."
    ),
    Assumption.POISSON_SAMPLING: (
        "Every record joins each batch independently with the same probability, so that batches "
        "differ in size. A loader that shuffles does not sample like this."
    ),
    Assumption.FIXED_SIZE_SAMPLING: (
        "Each batch is a uniform subset of constant size, drawn afresh."
    ),
    Assumption.TRUNCATED_POISSON_SAMPLING: (
        "Batches are drawn as in Poisson sampling; of one above its cap a uniform part is kept."
    ),
    Assumption.WITH_REPLACEMENT_SAMPLING: (
        "The places of a batch are drawn independently, so that a record may come up repeatedly."
    ),
    Assumption.DATA_INDEPENDENT_WEIGHTS: (
        "One record is drawn at each step, with weights that do not depend on the data."
    ),
    Assumption.FRESH_SECRET_ORDER: (
        "The order of all records is uniform, drawn anew for each pass, and never shown."
    ),
    Assumption.SECRET_ORDER: "The order of all records is uniform, drawn once, and never shown.",
    Assumption.BALLS_AND_BINS_SAMPLING: (
        "In each pass every record joins one step, uniformly and independently of the others."
    ),
    Assumption.RANDOM_ALLOCATION_SAMPLING: (
        "In each pass every record joins a uniform set of steps of its own."
    ),
    Assumption.SEPARATED_PARTICIPATION: (
        "A record's steps of a pass are as far apart, and as few, as declared, whatever was seen."
    ),
    Assumption.CYCLIC_POISSON_SAMPLING: (
        "Records are in groups, fixed before the pass, that take turns; each joins by its own coin."
    ),
    Assumption.ONE_STEP_PER_PASS: "A record takes part in one step of each pass, and in no other.",
    Assumption.OTHERS_UNAFFECTED: (
        "A record joins a step at most once, and does not affect which others join."
    ),
    Assumption.BOUNDED_GRADIENTS: (
        "The loss bounds every gradient without clipping; the initial weights are bounded, too."
    ),
    Assumption.INDEPENDENT_NOISE: "Each step's noise is fresh, of the declared kind and scale.",
    Assumption.SECRET_UNIFORM_STOP: (
        "Training stops at a step that was drawn once, uniformly, and is never shown."
    ),
    Assumption.SINGLE_RECORD: "It holds for one named record, not for every record of a dataset.",
    Assumption.PARAMETERS_FIXED_IN_ADVANCE: (
        "Noise, sampling and the number of steps were fixed before the first answer was seen."
    ),
    Assumption.OTHER_BRANCHES_UNUSED: (
        "Other branches of the run were neither shown nor used to choose this one."
    ),
    Assumption.INDEPENDENT_TRIALS: (
        "Trials of a sweep run independently on the same input; none reads another's answers."
    ),
    Assumption.CANDIDATES_DRAWN_AFRESH: (
        "Each trial draws its candidate anew, with weights that were fixed before the first trial."
    ),
    Assumption.SCORE_IN_BASE: (
        "The score that ranks trials uses public data, or answers that each trial is charged for."
    ),
    Assumption.TRIAL_COUNT_SECRET: (
        "Nothing tells how many trials there were: no loser is shown, no log, no file, no time."
    ),
    Assumption.HIDDEN_ITERATES: (
        "Only the released models are ever shown: no earlier one, and no metric of one."
    ),
    Assumption.LOSS_CURVATURE: "Every record's loss is as smooth and as convex as was declared.",
    Assumption.CLIPPING_INACTIVE: "No gradient is ever long enough to be clipped.",
    Assumption.GENERALIZED_LINEAR_MODEL: (
        "The model is linear in its weights up to a link, so that a clipped gradient is the "
        "gradient of some loss."
    ),
    Assumption.PROJECTION_EVERY_STEP: (
        "After each step weights are projected onto a convex set of the declared diameter."
    ),
    Assumption.FIXED_DIVISOR: (
        "Sums of gradients are divided by a constant, never by the size of the drawn batch."
    ),
    Assumption.DATA_INDEPENDENT_START: "The initial weights do not depend on the data.",
    Assumption.DATA_INDEPENDENT_ORDER: "Who is in which batch does not depend on the data.",
    Assumption.SEPARATED_PARTICIPATION: (
        "Each record takes part in no more steps of a pass than declared, and no closer together."
    ),
    Assumption.CYCLIC_POISSON_SAMPLING: (
        "Groups are fixed before a pass and take turns; of the group whose turn it is each record "
        "joins by a coin of its own."
    ),
    Assumption.FAIR_CANARY_COINS: (
        "Each canary was included by its own fair coin, which the guesser did not know."
    ),
    Assumption.CONSTANT_CURVATURE: "Gradients are affine in the weights, with public slopes.",
}


@dataclass(frozen=True, slots=True)
class Advice:
    """How bad a kind of incident is, what it means, and what to do."""

    weight: str  # the kind of its badge
    means: str
    do: str


ADVICE: Final[dict[str, Advice]] = {
    Kind.OVERDRAFT: Advice(
        _BAD,
        "What is charged is beyond the limit, by recorded steps, a correction or changed settings.",
        "If steps were recorded beyond it, stop the runs and find out why they did not charge "
        "first. Then decide whether to raise the limit: until then nothing more is admitted.",
    ),
    Kind.REOPENED: Advice(
        _BAD,
        "Steps were recorded after a run was finished.",
        "Ask its owner what still ran. Earlier statements about the run no longer hold.",
    ),
    Kind.RECORDED_AFTER_RELEASE: Advice(
        _BAD,
        "Steps were recorded after their reservation was released or voided.",
        "Look for a trainer that continued after it had reported its end.",
    ),
    Kind.REFUSAL: Advice(
        _WARN,
        "Steps did not fit and were refused; nothing was spent.",
        "Plan with fewer steps, more noise or a lower rate, or ask for a higher limit. Shares of "
        "the capacity add up over steps, as on the page of the dataset; epsilons do not.",
    ),
    Kind.THRESHOLD: Advice(
        _WARN,
        "What is charged passed a share of the capacity of a limit.",
        "See on the page of the dataset which runs spend most, and what would still fit. Its "
        "shares add up over steps; epsilons do not, so ε divided by the limit is another number.",
    ),
    Kind.SAMPLING_CONTRADICTED: Advice(
        _BAD,
        "The training code samples in another way than the run declared.",
        "Correct the steps that were recorded otherwise than they ran, and the code: until then "
        "the run's epsilon may be too small. The run's page says how.",
    ),
    Kind.RANKS_DISAGREE: Advice(
        _BAD,
        "Processes of one job are configured differently.",
        "Compare the configuration of the two ranks; the larger spending is not recorded.",
    ),
    Kind.NOISE_REUSED: Advice(
        _BAD,
        "Correlated noise may have been used twice: the run has no finite epsilon.",
        "See whether the trainer drew new noise; then record what follows in a run of its own.",
    ),
    Kind.BATCH_SIZES_REFUTED: Advice(
        _BAD,
        "The batch sizes do not fit the declared sampling.",
        "Check the data loader, then correct the entries.",
    ),
    Kind.AUDIT_CONTRADICTS: Advice(
        _BAD,
        "An audit guessed more canaries than the certified epsilon allows.",
        "Look for a fault in the training code: less noise, another sampling, or a missing clip.",
    ),
    Kind.CORRECTION: Advice(
        _QUIET,
        "An owner or an admin corrected an entry; the original entry stays.",
        "Do nothing if it was expected. A correction can only raise the enforced figure.",
    ),
    Kind.SETTINGS_CHANGED: Advice(
        _QUIET,
        "The limit, the freeze or the accepted statuses were changed.",
        "Do nothing if it was agreed. The history of the limit has the reason.",
    ),
    Kind.CHANGE_REQUEST: Advice(
        _QUIET,
        "A person asked for a change that another person decides.",
        "Decide it on the page of requests, if it still waits there.",
    ),
    Kind.CERTIFIED_TOO_LOW: Advice(
        _BAD,
        "A later version of the accounting cannot confirm a certified epsilon.",
        "Withdraw the certificate, and issue a new one.",
    ),
    Kind.LEDGER_SUSPENDED: Advice(
        _BAD,
        "The log is not the one that was signed.",
        "Follow the page on suspended ledgers; trust no number until it is reconciled.",
    ),
}
_ENDLESS: Final = Advice(  # an overdraft whose epsilon is infinite
    _BAD,
    "What is charged has no finite bound: the limit cannot count a recorded step or a correction.",
    "Stop the runs: nothing more is admitted, and a higher limit does not change that, nor does "
    "another correction. Find on the page of the dataset which run or correction it is. If another "
    "status of theorems bounds those steps, accept it there. Otherwise close the runs, and create "
    "another dataset for records that were not used here.",
)
UNKNOWN_KIND: Final = Advice(_WARN, "", "Look at its details.")


def advice_of(incident: IncidentAnswer, endless: Collection[str]) -> Advice:
    """What to do about an incident; `endless` are the datasets whose charge has no bound now."""
    kind, _, name = str(incident.detail.get("scope")).partition(":")
    unbounded = name in endless if kind == "dataset" else incident.detail.get("spent", 0) is None
    if incident.kind == Kind.OVERDRAFT and unbounded:
        return _ENDLESS
    return ADVICE.get(incident.kind, UNKNOWN_KIND)
