"""The guarantee of a run that hides iterates: one bound, by how records came into its batches.

Valid for a run whose steps and their number were fixed in advance, and of whose iterates none but
those named was shown.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, assert_never

from accounting.accountants.queries import Query
from accounting.bounds.event_bounds import NoBoundError
from accounting.events import FixedSize, Poisson, Shuffle
from accounting.gaussian import gaussian_bracket_epsilon, gaussian_delta, gaussian_epsilon
from accounting.guarantees import ACCEPTABLE, Assumption, Bound, Guarantee, Status, Theorem, weakest
from accounting.hidden_state_runs import HiddenRun, require_bound
from accounting.last_iterate.declared import DataOrder
from accounting.last_iterate.lipschitz import (
    clipped_step_lipschitz,
    glm_step_lipschitz,
    step_lipschitz,
)
from accounting.last_iterate.orders import (
    place_weights,
    segments_mu,
    shuffled_mus,
    shuffled_units,
)
from accounting.last_iterate.random_order import (
    averaged_gaussian_delta,
    averaged_gaussian_epsilon,
    averaged_pair,
)
from accounting.last_iterate.sampled import (
    sampled_bound,
    sampled_last_iterate,
    sampled_last_iterate_sharp,
)
from accounting.last_iterate.sampled_run import Constant, SampledRun
from accounting.last_iterate.shift import best_start_mu, shift_mu
from accounting.last_iterate.stretches import Stretch, envelope, split_stretches
from accounting.pld.certified_composition import delta_bracket, epsilon_bracket
from accounting.rounding import rounded_down, rounded_up

HIDDEN: Final = "last_iterate"  # the accountant that such a bound names
NOISE_MIN: Final = 1e-3  # over the sensitivity; below, one step has an epsilon beyond 10^5
REASON_NO_GAIN: Final = "Showing every step costs no more."
_REASON_RANGE: Final = "The bound for hidden iterates does not reach so far."
_REASON_NOTHING: Final = "The bound for hidden iterates says nothing."
_ALWAYS: Final = (  # what any such bound rests on
    Assumption.HIDDEN_ITERATES,
    Assumption.INDEPENDENT_GAUSSIAN_NOISE,
    Assumption.LOSS_CURVATURE,
    Assumption.FIXED_DIVISOR,
    Assumption.DATA_INDEPENDENT_START,
    Assumption.PARAMETERS_FIXED_IN_ADVANCE,
)
_ORDERS: Final = {
    DataOrder.FULL: (),
    DataOrder.CYCLIC: (Assumption.DATA_INDEPENDENT_ORDER,),
    DataOrder.SHUFFLE_ONCE: (Assumption.SECRET_ORDER,),
    DataOrder.SHUFFLE_EACH_PASS: (Assumption.FRESH_SECRET_ORDER,),
    DataOrder.FIXED_SIZE: (Assumption.FIXED_SIZE_SAMPLING,),
    DataOrder.POISSON: (Assumption.POISSON_SAMPLING,),
}


def guarantee_of_hidden(
    found: Guarantee, run: HiddenRun, *, accept: frozenset[Status], epsilon: float | None = None
) -> Guarantee:
    """A guarantee with every step shown, or the better one that its run's hidden iterates allow.

    Args:
        found: the guarantee of the same steps.
        run: what ran, as planned.
        accept: statuses that may be the headline.
        epsilon: nats, where delta was asked for.

    Returns:
        The guarantee. What all iterates attain is no lower bound of what those shown do, so that
        the lower end is left out where the headline's own theorem has none.
    """
    delta = found.delta if epsilon is None else None
    question = Query(
        relation=found.neighboring_relation, accept=accept, delta=delta, epsilon=epsilon
    )
    shown = as_if_shown(found, reason=None)
    found, reason = shown, ""
    for accepted in (accept, ACCEPTABLE):
        try:
            bound = hidden_bound(run, replace(question, accept=accepted))
        except NoBoundError as failure:
            reason = reason or str(failure)
            continue
        if accepted == accept and _better(bound, found.headline):
            others = (*((found.headline,) if found.headline else ()), *found.alternatives)
            return replace(
                shown,
                epsilon=bound.epsilon,
                epsilon_lower=bound.epsilon_lower,
                delta=bound.delta,
                headline=bound,
                reason=None,
                alternatives=others,
            )
        return replace(
            shown,
            alternatives=(*found.alternatives, bound),
            hidden_reason=reason or REASON_NO_GAIN,
        )
    return replace(shown, hidden_reason=reason)


def as_if_shown(found: Guarantee, *, reason: str | None) -> Guarantee:
    """A guarantee that counts every step as shown, of a run that declared to show less.

    What all iterates attain is no lower bound of what those shown do, so lower ends are left out.
    """

    def bare(bound: Bound) -> Bound:
        return replace(bound, epsilon_lower=None)

    return replace(
        found,
        epsilon_lower=None,
        headline=None if found.headline is None else bare(found.headline),
        alternatives=tuple(bare(bound) for bound in found.alternatives),
        hidden_reason=reason,
    )


def _better(bound: Bound, headline: Bound | None) -> bool:
    return headline is None or (bound.epsilon, bound.delta) < (headline.epsilon, headline.delta)


def hidden_bound(run: HiddenRun, question: Query) -> Bound:
    """The bound on what a run's shown iterates tell, the last among them.

    Raises:
        NoBoundError: none is proved, accepted or finite; the text says why.
    """
    require_bound(run, question.relation)
    try:
        bound = _evaluate(run, question)
    except NoBoundError:
        raise
    except (ValueError, ArithmeticError) as failure:  # out of the range of what is proved
        raise NoBoundError(f"{_REASON_RANGE} {failure}") from None
    if not (math.isfinite(bound.epsilon) and bound.delta < 1):
        raise NoBoundError(_REASON_NOTHING)
    return bound


def _evaluate(run: HiddenRun, question: Query) -> Bound:
    match run.declared.data_order:
        case DataOrder.FULL | DataOrder.CYCLIC:
            return _bound_known_batches(run, question)
        case DataOrder.SHUFFLE_ONCE:
            return _bound_shuffle_once(run, question)
        case DataOrder.SHUFFLE_EACH_PASS:
            return _bound_shuffle_each_pass(run, question)
        case DataOrder.FIXED_SIZE | DataOrder.POISSON:
            return _bound_fresh_batches(run, question)
        case _:
            assert_never(run.declared.data_order)


def _bound_known_batches(run: HiddenRun, question: Query) -> Bound:
    """Each batch is told: the shift bound for the record that is worst off."""
    bounded = run.declared.projection_diameter is not None
    theorems = _accepted_theorems(run, question, best_start_mu if bounded else shift_mu)
    mu = segments_mu(
        run.stretches(question.relation),
        ends=run.ends(),
        places=run.steps_per_pass,
        diameter=run.declared.projection_diameter,
    )
    if question.delta is None:
        value = gaussian_delta(question.epsilon or 0.0, mu=mu)
        return _bound(run, question, value, (*theorems, gaussian_delta))
    return _bound(
        run, question, gaussian_epsilon(question.delta, mu=mu), (*theorems, gaussian_epsilon)
    )


def _bound_shuffle_once(run: HiddenRun, question: Query) -> Bound:
    """One secret order: the average over places, or where that is worse, as if it were told."""
    told = _bound_known_batches(run, question)
    if run.steps % run.steps_per_pass or len(run.ends()) > 1:
        return told
    theorems = _accepted_theorems(run, question, averaged_gaussian_epsilon)
    mus = shuffled_mus(
        envelope(run.stretches(question.relation)),
        steps_per_pass=run.steps_per_pass,
        passes=run.passes,
    )
    weights = place_weights(**_sizes(run), steps=run.steps_per_pass)
    if question.delta is None:
        value = averaged_gaussian_delta(question.epsilon or 0.0, mus=mus, weights=weights)
    else:
        value = averaged_gaussian_epsilon(question.delta, mus=mus, weights=weights)
    averaged = _bound(run, question, value, (*theorems, shift_mu))
    return min(averaged, told, key=lambda bound: (bound.epsilon, bound.delta))


def _sizes(run: HiddenRun) -> dict[str, int]:
    sampling, size = run.sampling, run.dataset_size
    assert isinstance(sampling, Shuffle)  # noqa: S101 (the data order says so)
    assert size is not None  # noqa: S101 (require_bound has seen to it)
    return {"batch_size": sampling.batch_size, "dataset_size": size}


def _bound_shuffle_each_pass(run: HiddenRun, question: Query) -> Bound:
    """Fresh secret orders: passes compose, each the average over places."""
    theorems = _accepted_theorems(run, question, averaged_pair)
    _compose_stretches(run.stretches(question.relation))
    length = run.steps_per_pass
    shown = {step // length for step in run.releases if (step + 1) % length}
    ends = [*range(length, run.steps, length), run.steps]
    passes = (
        (envelope(part), index in shown)
        for index, part in enumerate(split_stretches(run.stretches(question.relation), ends))
    )
    units = shuffled_units(passes, **_sizes(run))
    if question.delta is None:
        value = delta_bracket(units, epsilon=question.epsilon or 0.0).upper
        return _bound(run, question, value, (*theorems, shift_mu, delta_bracket))
    value = epsilon_bracket(units, delta=question.delta).upper
    return _bound(run, question, value, (*theorems, shift_mu, epsilon_bracket))


def _bound_fresh_batches(run: HiddenRun, question: Query) -> Bound:
    """Fresh batches: the noise of the last steps hides the batch and the distance, in parts."""
    sharp = run.declared.sharp
    theorems = _accepted_theorems(
        run, question, sampled_last_iterate_sharp if sharp else sampled_last_iterate
    )
    whole, sampling = _compose_stretches(run.stretches(question.relation)), run.sampling
    assert isinstance(sampling, FixedSize | Poisson)  # noqa: S101 (the data order says so)
    if isinstance(sampling, Poisson):
        rate = sampling.sampling_probability
    else:
        rate = min(1.0, rounded_up(sampling.batch_size / sampling.dataset_size))
    diameter = run.declared.projection_diameter
    sampled = SampledRun(
        steps=whole.steps,
        step_lipschitz=whole.lipschitz,
        sensitivity=whole.sensitivity,
        noise=whole.noise,
        sampling=run.declared.data_order,
        rate=rate,
        diameter=math.inf if diameter is None else diameter,
        constant=Constant.SHARP if sharp else Constant.CONSERVATIVE,
    )
    found = sampled_bound(sampled, delta=question.delta, epsilon=question.epsilon)
    value = found.delta if question.delta is None else found.epsilon
    return _bound(run, question, value, theorems)


def _compose_stretches(parts: Sequence[Stretch]) -> Stretch:
    """One stretch that bounds them all, with enough noise for pairs to be composed.

    Raises:
        NoBoundError: there is too little.
    """
    whole = envelope(parts)
    if not whole.noise > NOISE_MIN * whole.sensitivity:
        raise NoBoundError(_REASON_NOTHING)
    return whole


def _accepted_theorems(
    run: HiddenRun, question: Query, theorem: Theorem[..., Any]
) -> tuple[Theorem[..., Any], ...]:
    """The theorem, and that of the step's constant, if their statuses are accepted.

    Raises:
        NoBoundError: one is not.
    """
    declared = run.declared
    constant: Theorem[..., Any] = step_lipschitz
    if declared.clipping_can_be_active:
        constant = clipped_step_lipschitz
        if declared.generalized_linear_model:
            constant = glm_step_lipschitz
    refused = sorted({theorem.status, constant.status} - question.accept)
    if refused:
        raise NoBoundError(f"The bound for hidden iterates is {', '.join(refused)}: not accepted.")
    return theorem, constant


def _bound(
    run: HiddenRun, question: Query, value: float, theorems: Sequence[Theorem[..., Any]]
) -> Bound:
    """The bound whose unknown half is `value`."""
    named = {*_ALWAYS, *_ORDERS[run.declared.data_order]}
    named |= {assumption for theorem in theorems for assumption in theorem.assumptions}
    if run.declared.projection_diameter is not None:
        named.add(Assumption.PROJECTION_EVERY_STEP)
    delta = value if question.delta is None else question.delta
    return Bound(
        epsilon=value if question.epsilon is None else question.epsilon,
        delta=delta,
        accountant=HIDDEN,
        bound=theorems[0].id,
        theorems=tuple(theorem.id for theorem in theorems),
        status=weakest([theorem.status for theorem in theorems]),
        assumptions=tuple(sorted(named)),
        epsilon_lower=_lower(run, question, delta),
    )


def _lower(run: HiddenRun, question: Query, delta: float) -> float | None:
    """What the last record of a pass loses at least if every loss is linear; None if unknown.

    The last iterate is then the sum of all shifts and all noise.
    """
    declared = run.declared
    known = declared.data_order in (DataOrder.FULL, DataOrder.CYCLIC) and len(run.ends()) == 1
    parts = run.stretches(question.relation)
    linear = declared.loss_convexity <= 0 and declared.projection_diameter is None
    if not (known and linear and len(parts) == 1 and 0 < delta < 1):
        return None
    (part,) = parts
    ratio = part.sensitivity / part.noise * (1 - 2.0**-40)  # both were rounded outward
    mu = rounded_down(run.passes * ratio / math.sqrt(part.steps), ulps=4)
    return gaussian_bracket_epsilon(delta, mu=(mu, mu))[0]
