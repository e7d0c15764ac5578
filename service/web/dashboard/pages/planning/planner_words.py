"""What the planner says in words of a pass of correlated noise and of a private selection."""

from service import formatting
from service.schemas.plan_response import PlanAnswer
from service.web.dashboard.forms.planner_form import PlannerForm
from service.web.dashboard.forms.planner_noise import pass_words


def plan_words(form: PlannerForm, found: PlanAnswer) -> list[str]:
    """Sentences about a certified answer; an empty list if its fields say everything.

    Args:
        form: with the value that was found, where one was.
        found: its answer.

    Raises:
        InvalidRequestError: a field is at fault.
    """
    told = [] if form.correlated is None else pass_words(form.correlated, form.noise_multiplier)
    if form.trials and found.epsilon is not None:
        told += _selection_words(form, found)
    return told


def _selection_words(form: PlannerForm, found: PlanAnswer) -> list[str]:
    mean, steps = formatting.plain(form.mean_trials), formatting.count(form.steps)
    told = [
        f"The best of {mean} trials on average, each of {steps} steps, costs ε ≤ "
        f"{formatting.up(found.epsilon)} as long as nothing tells how many trials there were, nor "
        "anything of those that lost."
    ]
    apart = found.composed
    if apart is None or apart.epsilon is None:
        return [*told, "What recording each trial costs takes too much work to say here."]
    less = "more" if found.epsilon is not None and apart.epsilon >= found.epsilon else "less"
    return [
        *told,
        f"Recording each of {formatting.count(apart.trials)} trials costs {less}: "
        f"ε ≤ {formatting.up(apart.epsilon)}, and every trial may be shown.",
    ]
