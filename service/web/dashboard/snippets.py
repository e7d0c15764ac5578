"""A training loop's part of a plan, ready to copy: what dpledger_client needs to be told."""

import json
from collections.abc import Mapping
from typing import Any, Final

from service.web.dashboard.forms.planner_form import PlannerForm, field_text
from service.web.dashboard.forms.planner_noise import BANDED, TRIALS, CorrelatedPass
from service.web.dashboard.forms.planner_schemes import LEFT_OUT

_DATASET: Final = "my-data"


def client_snippet(form: PlannerForm) -> str:
    """Python that runs as it stands where the dataset exists."""
    mechanism = _call(form.mechanism, {"noise_multiplier": form.noise_multiplier})
    if form.trials:
        return _sweep(form, mechanism)
    if form.correlated is not None:
        given = field_text(form.noise_multiplier)
        mechanism = f"dp.matrix_gaussian(noise_multiplier={given}, strategy=strategy)"
    return "\n".join(
        (
            "import dpledger_client as dp",
            "",
            *_strategy(form.correlated),
            *_loader(form),
            "run = dp.start_run(",
            '    "my-run-1",',
            f'    "{form.dataset or _DATASET}",',
            f"    mechanism={mechanism},",
            f"    sampling={_sampling(form)},",
            f"    delta={field_text(form.delta)},",
            ")",
            f"for step in range({form.steps}):",
            "    run.step()  # before the step is taken: from here on it is counted",
            "    ...  # the optimizer's step, with this noise, on a batch drawn this way",
            "run.finish()",
        )
    )


def _strategy(correlated: CorrelatedPass | None) -> tuple[str, ...]:
    """The strategy, kept by the service; the coefficients are those that the answer counts."""
    if correlated is None:
        return ()
    if correlated.kind != BANDED:
        return (f'strategy = dp.Client().keep_strategy({{"kind": "{correlated.kind}"}})',)
    return (
        "coefficients = [1.0]  # of the square root of prefix sums",
        f"for i in range(1, {correlated.groups}):",
        "    coefficients.append(coefficients[-1] * (2 * i - 1) / (2 * i))",
        'strategy = dp.Client().keep_strategy({"kind": "toeplitz", "coefficients": coefficients})',
    )


def _sweep(form: PlannerForm, mechanism: str) -> str:
    """A sweep that is charged before the number of its trials is drawn."""
    shape = TRIALS[form.trials][1]
    law: dict[str, Any] = {"mean": form.mean_trials}
    kind = "poisson_trials" if shape is None else "negative_binomial_trials"
    repetitions = _call(kind, law if shape is None else {"shape": shape, **law})
    return "\n".join(
        (
            "import dpledger_client as dp",
            "",
            "run = dp.start_run(",
            f'    "my-sweep-1", "{form.dataset or _DATASET}", mode="strict",',
            f"    delta={field_text(form.delta)},",
            ")",
            "with run.selection(  # charged as a whole, before the number of trials is drawn",
            f"    repetitions={repetitions},",
            f"    mechanism={mechanism},",
            f"    sampling={_sampling(form)},",
            f"    steps={form.steps},",
            "    candidates=[0.1, 0.3, 1.0],  # learning rates, each drawn with equal chances",
            "    trial_count_secret=True,  # how many trials there were, and how long they took",
            ") as trials:",
            "    for trial in trials:",
            "        with trial:",
            "            for _ in trial.steps():",
            "                ...  # the optimizer's step, with trial.candidate",
            "            trial.finish(score=0.0, output=None)  # a score on public data, the model",
            "run.finish()  # release trials.best.output, and nothing else",
        )
    )


def dataset_snippet(form: PlannerForm, budget: Mapping[str, Any] | None = None) -> str:
    """Python that registers a dataset which takes this plan, by default with the default filter."""
    kept = () if budget is None else _strategy(form.correlated)
    if budget is None:
        limit = f'{{"epsilon": {field_text(form.epsilon)}, "delta": {field_text(form.delta)}}}'
    else:
        limit = json.dumps(budget, indent=4).replace("\n", "\n    ")
        limit = limit.replace(": false", ": False").replace(": true", ": True")
    accept = f"    accept={_literal(form.accept())},\n" if form.derived else ""
    return (
        "import dpledger_client as dp\n\n"
        f"{''.join(line + chr(10) for line in kept)}"
        "dp.Client().create_dataset(\n"
        f'    "{form.dataset or _DATASET}",\n'
        f"    dataset_size={form.dataset_size},\n"
        f'    neighboring_relation="{form.neighboring_relation}",\n'
        '    privacy_unit="one person",\n'
        f"    budget={limit},\n"
        f"{accept})"
    )


def _leaves_out(form: PlannerForm) -> bool:
    return form.sampling == "shuffle" and form.last_batch == LEFT_OUT


def _loader(form: PlannerForm) -> tuple[str, ...]:
    """The client's own loader, where it is the one that was chosen."""
    if not _leaves_out(form):
        return ()
    told = "# the batch_sampler of a DataLoader, or lists of indices"
    return (f"batches = dp.shuffled({form.dataset_size}, {form.per_step})  {told}",)


def _sampling(form: PlannerForm) -> str:
    if _leaves_out(form):
        return "batches.sampling"
    message = form.sampling_message()
    if form.correlated is not None:
        message = form.correlated.sampling()
    return _call(message.pop("kind"), message)


def _call(kind: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())
    return f"dp.{kind}({given})"


def _literal(value: Any) -> str:
    """A value as Python and people write it; it is read back as the same one."""
    if value is None:  # the form does not say it yet
        return "..."
    return json.dumps(value) if isinstance(value, str | list) else field_text(value)
