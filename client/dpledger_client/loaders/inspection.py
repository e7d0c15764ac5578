"""What a loader is, beside what was declared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from dpledger_client.loaders.known_loaders import Read, Seen, UnclearError, of_loader
from dpledger_client.loaders.samplings import (
    MISFIT,
    Sampling,
    relies_on_secrecy,
    sampling_of,
    told_of,
)
from dpledger_client.schemas import lacks_length, no_length, unknown

Status = Literal["declared", "detected", "contradicted"]
_ONCE: Final = ("shuffle", "cyclic", "full")  # declarations whose batches may be joined


SHARED: Final = frozenset({"num_processes", "num_replicas"})  # settings of loaders that divide
_OTHER_SIZE: Final = (
    "The loader does not have as many records as dataset_size says. A pass over them, which would "
    "tell how many, is recorded as unknown unless it is declared."
)
_AT_MOST_ONCE: Final = (
    "Unless with_replacement is declared, no record may be in a step more than once."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a loader is, beside what was declared.

    Attributes:
        status: `detected`: read from the loader. `declared`: the trainer's word, where it
            costs more or where the loader cannot tell. `contradicted`: read from the loader, and
            not what was declared.
        sampling: what the steps are to be recorded with. Of a loader with more or fewer records
            than dataset_size no pass is told that was not declared, and a weight that was found
            is rounded up to two digits. A Poisson rate is told as it is, although Opacus sets it
            to one / the number of batches; draws with replacement need the true size anyway.
        declared: what the trainer said; None when nothing.
        seen: class names and settings; no seed, and no length of the data or of a drawn batch
            (but a Poisson `sample_rate`, as above).
        reason: why, in sentences.
        note: for the trainer alone, because it depends on the data; empty if there is none.
        is_secret: whether each pass, however short, is in a new and secret order.
    """

    status: Status
    sampling: Sampling
    declared: Sampling | None
    seen: Seen
    reason: str
    note: str = ""
    is_secret: bool = False


def inspect(
    loader: object,
    *,
    declared: Mapping[str, Any] | None,
    dataset_size: int | None,
    accumulation: int = 1,
) -> Finding:
    """Compare a loader with a declared sampling.

    The loaders and samplers of PyTorch, Opacus and Accelerate are known, and those of `shuffled`.
    Whether a loop takes whole passes is not seen: one that breaks off has to declare its own
    `steps_per_pass`.

    Args:
        loader: of this process's batches; in a distributed job each rank has its own.
        declared: a sampling such as `poisson(...)`; None when nothing was said.
        dataset_size: the declared constant, records; by default the length of the loader's data.
        accumulation: batches whose gradients make one step, >= 1; none may reach into the next
            pass.

    Raises:
        ValueError: a record may be in a step more than once, or decide who else is: no sampling
            covers that. Or the declaration lacks steps_per_pass, and the loader does not tell it.
    """
    if not accumulation >= 1:
        raise ValueError("accumulation must be at least 1.")
    said = None if declared is None else dict(declared)
    seen: Seen = {}
    try:
        read = of_loader(loader, seen)
        size = dataset_size or read.length
        joined = replace(read, batch_size=read.batch_size * accumulation, parts=accumulation)
        found, reason = sampling_of(joined, size)
    except UnclearError as unclear:
        if said is not None and lacks_length(said):
            raise no_length(said, dataset_size=dataset_size) from None
        _refuse_joined(said or unknown(), accumulation)
        return Finding("declared", said or unknown(), said, seen, f"{unclear} {_AT_MOST_ONCE}")
    if read.kind == "poisson":
        _refuse_joined(found, accumulation)
    note = "" if size == read.length else _OTHER_SIZE
    said = None if said is None else _completed(said, found, size)
    if said is not None and read.own_seed:
        found = _ended_early(found, said, size)
    told = told_of(found, read, size)
    if told["kind"] != found["kind"]:
        reason = MISFIT
    if said is None:
        return Finding("detected", told, None, seen, reason, note, _is_secret(read))
    status, why = _verdict(_whole(found, size), _whole(said, size), read, size)
    kept = {"declared": said, "detected": found, "contradicted": told}[status]
    return Finding(status, kept, said, seen, f"{reason} {why}".strip(), note, _is_secret(read))


def require_shares(finding: Finding, world_size: int) -> None:
    """Refuse a job of several ranks that each go through all the records.

    Raises:
        ValueError: a record may be in a step once for each rank: no sampling covers that.
    """
    if world_size == 1 or finding.status == "declared" or SHARED & finding.seen.keys():
        return
    raise ValueError(
        "The loader of each rank goes through all the data, and a record may be in a step once "
        "for each: take a DistributedSampler."
    )


def _refuse_joined(sampling: Sampling, accumulation: int) -> None:
    if accumulation > 1 and sampling["kind"] not in _ONCE:
        raise ValueError(
            "Several draws before one noise may hold a record as often: declare full() with the "
            "noise multiplier divided by the number of draws, or draw once and cut the batch."
        )


def _completed(said: Sampling, found: Sampling, size: int) -> Sampling:
    """A declaration with the length of its passes, which the loader tells if it has any."""
    if not lacks_length(said):
        return said
    in_order = found["kind"] in ("shuffle", "cyclic")
    if not (in_order and found["batch_size"] == said.get("batch_size")):
        raise no_length(said, dataset_size=size)
    return said | {"steps_per_pass": found["steps_per_pass"]}


def _is_secret(read: Read) -> bool:
    return read.kind == "shuffle" and not (read.own_seed or read.once)


def _ended_early(found: Sampling, said: Sampling, size: int) -> Sampling:
    """What a loader with a seed of its own is to a loop that ends each pass early.

    The next pass may begin with the same records again.
    """
    if found["kind"] != "shuffle" or said["kind"] != "shuffle":
        return found
    shorter = said["steps_per_pass"] < found["steps_per_pass"]
    if not (shorter and said["batch_size"] == found["batch_size"]):
        return found
    place = {"batch_size": found["batch_size"], "steps_per_pass": said["steps_per_pass"]}
    return found | place | ({"reshuffle": "once"} if relies_on_secrecy(place, size) else {})


# Whose word counts


def _verdict(found: Sampling, said: Sampling, read: Read, size: int) -> tuple[Status, str]:
    if found.keys() == said.keys() and all(_equal(found[key], said[key]) for key in found):
        return "detected", ""
    why = _kept_because(said, found, read, size)
    return ("declared", f"Kept as declared: {why}") if why else ("contradicted", "")


def _equal(ours: object, theirs: object) -> bool:
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-12)
    return ours == theirs


def _whole(sampling: Sampling, size: int) -> Sampling:
    """With the rate that the service works out, and without what only repeats the other fields."""
    whole = dict(sampling)
    if "expected_batch_size" in whole:
        whole["sampling_probability"] = whole.pop("expected_batch_size") / size
    if "left_out" in whole:
        left = max(0, size - whole["steps_per_pass"] * whole["batch_size"])
        if whole["left_out"] == left:
            del whole["left_out"]
    return whole


def _kept_because(said: Sampling, found: Sampling, read: Read, size: int) -> str:
    """Why a declaration that is not what was found stands; empty if it does not."""
    if "left_out" in said:
        return ""  # it does not go with the other fields
    if said["kind"] in ("full", "unknown"):
        # It assumes that no record is in a step twice.
        repeated = found["kind"] == "with_replacement" or max(read.length, read.records) > size
        return "" if repeated else "it costs more."
    for kind, rate in (("poisson", "sampling_probability"), ("non_uniform", "max_weight")):
        if said["kind"] == found["kind"] == kind:
            return "its rate is higher." if said[rate] > found[rate] else ""
    if {said["kind"], found["kind"]} <= {"shuffle", "cyclic"}:
        return _pass_kept_because(said, found, read, size)
    return ""


def _pass_kept_because(said: Sampling, found: Sampling, read: Read, size: int) -> str:
    longer = said["steps_per_pass"] > found["steps_per_pass"]
    if longer or said["batch_size"] != found["batch_size"]:
        return ""  # a pass that is believed to be longer lets a record come twice in it
    if _order_known(said) < _order_known(found):
        unseen = read.epochs_unseen and said["kind"] == found["kind"]
        unseen = unseen and not relies_on_secrecy(said, size)
        return "the loop sets the epoch of each pass, which is not seen." if unseen else ""
    if said["steps_per_pass"] < found["steps_per_pass"]:
        return "the loop ends each pass early, which is not seen."
    return "it costs more."


def _order_known(sampling: Sampling) -> int:
    """0: secret and drawn for each pass. 1: drawn once. 2: all may know it."""
    return 2 if sampling["kind"] == "cyclic" else int(sampling["reshuffle"] == "once")
