"""Evidence against a declared sampling, from the sizes of the batches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NoReturn

from dpledger_client.sampling_check.batch_size_laws import (
    Allocation,
    Law,
    Scheme,
    Steady,
    scheme_of,
    whole,
)
from dpledger_client.sampling_check.betting_alternatives import (
    LOG_2,
    Bet,
    on_independent_sizes,
    on_one_size,
)

# Off each log factor come this many nats, times 1 + sd + abs(size - mean) + abs(log f): more than
# what floating point may have added to it, so that rounding never counts as evidence. At batches
# of 256 it is 2e-12 a step.
ROUNDING: Final = 2.0**-44


@dataclass(frozen=True, slots=True, repr=False)
class Account:
    """What the bets have made."""

    stakes: tuple[float, ...]  # the log of each bet's money; what is kept for it is not in here
    rounds: int = 0  # settled
    log_e_max: float = 0.0  # the most the mixture ever was; infinite from a contradiction on


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Evidence:
    """What the sizes so far say. Immutable, and as private as the sizes.

    It has no fields to show and cannot be pickled, so that no log, checkpoint or worker gets it.
    """

    _scheme: Scheme
    _bets: tuple[Bet, ...]
    _account: Account
    _block: tuple[float, ...]  # for Allocation: logs of the sums of the factors of this pass
    _step: int = 0  # of the pass
    _before: int = 0  # the sum of the sizes of the pass

    def __repr__(self) -> str:
        return "Evidence(private)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Evidence is private: it stays in the process that sees the batches.")


def start(sampling: Mapping[str, Any], *, dataset_size: int) -> Evidence:
    """No evidence yet; the next size is that of the first step of a pass.

    Args:
        sampling: the declared one, in the wire form: `poisson(...)`, `shuffle(...)` and so on.
        dataset_size: records, in [1, 1e12]. With another number than the true one, the law that
            is tested is not the declared one.

    Raises:
        ValueError: an argument is missing or out of range, or the kind does not fix the sizes.
    """
    scheme = scheme_of(sampling, dataset_size=dataset_size)
    law = scheme.law(0, 0)
    if law.sd == 0:
        bets: tuple[Bet, ...] = ()
    elif isinstance(scheme, Steady):
        bets = tuple(on_independent_sizes(law))
    else:
        bets = tuple(on_one_size(law))
    nothing = (-math.inf,) * len(bets)
    return Evidence(scheme, bets, Account(nothing), nothing)


def observe(evidence: Evidence, size: int) -> Evidence:
    """The evidence after one more step. An empty batch is a step of size 0.

    Under the declared sampling every e-value is a non-negative martingale, or less, from 1:
    - a bet's factor has an expectation of at most 1 given the past (see `bets`);
    - a bet gets its money in parts fixed beforehand: 1/2 before round 1, 1/2 / (t (t - 1)) before
      round t >= 2; after round t, 1/2 / t is still kept. So what begins at a late step t is found
      at a price of 2 ln t nats, however much earlier bets have lost;
    - of random_allocation only the law of each size alone is known. Within a pass all bets stay as
      they are, and its round is the average of its factors, whose expectation is at most 1
      whatever the dependence;
    - where a size is certain, there is no bet: another size has chance 0, and evidence is infinite.

    Args:
        evidence: before the step.
        size: records in the batch of the whole step, in any number of parts, without padding; >= 0.

    Raises:
        ValueError: size is not an integer >= 0.
    """
    count = whole(size)
    if count is None or count < 0:
        raise ValueError("size must be an integer >= 0.")
    scheme = evidence._scheme
    law = scheme.law(evidence._step, evidence._before)
    if isinstance(scheme, Allocation):
        possible = scheme.is_possible(evidence._step, evidence._before, count)
    else:
        possible = law.log_mass(count) > -math.inf
    return _settled(evidence, count, law) if possible else _contradicted(evidence)


def log_e_values(evidence: Evidence) -> dict[str, float]:
    """The log e-value of each alternative after the last step, in nats, rounded down.

    Under the declared sampling the chance that one of them is ever log(1/level) or more is at most
    level. "mixture" is their average, which holds for all of them together: `verdict` uses it.
    Infinite everywhere once a size was impossible. Where sizes are certain there is no other entry.
    """
    names = [bet.name for bet in evidence._bets]
    if evidence._account.log_e_max == math.inf:
        return dict.fromkeys(["mixture", *names], math.inf)
    stakes, rounds = evidence._account.stakes, evidence._account.rounds
    values = [_log_sum(stake, _log_kept(rounds)) for stake in stakes]
    mixture = _log_mixture(stakes, rounds)
    return {"mixture": mixture, **dict(zip(names, values, strict=True))}


def verdict(evidence: Evidence, *, level: float) -> Literal["refuted", "not refuted"]:
    """Whether the declared sampling is refuted, after any step, as often as one likes.

    Args:
        evidence: after the last step.
        level: the chance that a true declaration is ever refuted, at most; in (0, 1). 1e-6 leaves
            no doubt, 1e-3 is worth a look.

    Returns:
        "refuted" from the first step on at which the mixture was 1 / level or more. Otherwise "not
        refuted", which does not mean that the declaration is true.

    Raises:
        ValueError: level is out of range.
    """
    if not 0 < level < 1:
        raise ValueError("level must be in (0, 1).")
    return "refuted" if evidence._account.log_e_max >= -math.log(level) else "not refuted"


def _contradicted(evidence: Evidence) -> Evidence:
    # The largest value ever stays the largest, whatever comes.
    return replace(evidence, _account=replace(evidence._account, log_e_max=math.inf))


def _settled(evidence: Evidence, size: int, law: Law) -> Evidence:
    scheme, bets, block = evidence._scheme, evidence._bets, evidence._block
    account = evidence._account
    is_last = evidence._step + 1 == scheme.steps_per_pass
    if law.sd > 0:
        factors, placed = _played(bets, size, law)
        if not isinstance(scheme, Allocation):
            bets, account = placed, _round(account, factors)
        elif is_last:
            log_steps = math.log(scheme.steps_per_pass)
            averages = [_log_sum(*sums) - log_steps for sums in zip(block, factors, strict=True)]
            bets, account = placed, _round(account, averages)
            block = (-math.inf,) * len(bets)
        else:
            block = tuple(map(_log_sum, block, factors))
    step, before = (0, 0) if is_last else (evidence._step + 1, evidence._before + size)
    return Evidence(scheme, bets, account, block, step, before)


def _played(bets: tuple[Bet, ...], size: int, law: Law) -> tuple[list[float], tuple[Bet, ...]]:
    """The log factors, rounded down, and the bets on the next size."""
    log_mass = law.log_mass(size)
    rounding = ROUNDING * (1.0 + law.sd + abs(size - law.mean) - log_mass)
    settled = [bet.play(size, law, log_mass) for bet in bets]
    return [factor - rounding for factor, _ in settled], tuple(bet for _, bet in settled)


def _round(account: Account, factors: list[float]) -> Account:
    """Every bet gets its part of what is kept, then its factor."""
    rounds = account.rounds + 1
    bought = -LOG_2 if rounds == 1 else -LOG_2 - math.log(rounds * (rounds - 1))
    stakes = tuple(
        _log_sum(stake, bought) + factor
        for stake, factor in zip(account.stakes, factors, strict=True)
    )
    log_e_max = max(account.log_e_max, _log_mixture(stakes, rounds))
    return Account(stakes, rounds, log_e_max)


def _log_kept(rounds: int) -> float:
    return -LOG_2 - math.log(rounds) if rounds else 0.0


def _log_mixture(stakes: tuple[float, ...], rounds: int) -> float:
    """The log of the average over the bets, of what each made and what is kept for it."""
    kept = _log_kept(rounds)
    if not stakes:
        return 0.0
    top = max(*stakes, kept)
    made = sum(math.exp(stake - top) for stake in stakes) / len(stakes)
    return top + math.log(made + math.exp(kept - top))


def _log_sum(one: float, other: float) -> float:
    """The log of exp(one) + exp(other); one of them is finite."""
    if one < other:
        one, other = other, one
    return one + math.log1p(math.exp(other - one))
