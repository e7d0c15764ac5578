"""A training loop's part of a plan, ready to copy: what dpledger_client needs to be told."""

import json
from collections.abc import Mapping
from typing import Any, Final

from service.web.dashboard.forms.planner_form import LEFT_OUT, PlannerForm, field_text

_DATASET: Final = "my-data"


def client_snippet(form: PlannerForm) -> str:
    """Python that runs as it stands where the dataset exists."""
    mechanism = _call(form.mechanism, {"noise_multiplier": form.noise_multiplier})
    return "\n".join(
        (
            "import dpledger_client as dp",
            "",
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


def dataset_snippet(form: PlannerForm, budget: Mapping[str, Any] | None = None) -> str:
    """Python that registers a dataset which takes this plan, by default with the default filter."""
    if budget is None:
        limit = f'{{"epsilon": {field_text(form.epsilon)}, "delta": {field_text(form.delta)}}}'
    else:
        limit = json.dumps(budget, indent=4).replace("\n", "\n    ")
    accept = f"    accept={_literal(form.accept())},\n" if form.derived else ""
    return (
        "import dpledger_client as dp\n\n"
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
    return _call(message.pop("kind"), message)


def _call(kind: str, arguments: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={_literal(value)}" for name, value in arguments.items())
    return f"dp.{kind}({given})"


def _literal(value: Any) -> str:
    """A value as Python and people write it; it is read back as the same one."""
    if value is None:  # the form does not say it yet
        return "..."
    return json.dumps(value) if isinstance(value, str | list) else field_text(value)
