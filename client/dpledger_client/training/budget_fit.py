"""How much of a training its budgets admit, asked before its first step; and its envelope.

An envelope is a budget that lists the steps which it holds, so that a training which was calibrated
to the budget runs to its end. It can be set before the dataset's first answer alone.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dpledger_client.errors import (
    AnotherPerson,
    BudgetExhausted,
    DPLedgerError,
    Forbidden,
    InvalidRequest,
    Unavailable,
)
from dpledger_client.recording.event_buffer import STEPS_MAX
from dpledger_client.recording.outbox import LOG
from dpledger_client.rounding import up
from dpledger_client.training.run import Run

DatasetBudget = Literal["this plan"]
THIS_PLAN: Final = "this plan"
_TRIES: Final = 3  # where others change the dataset's settings at the same time
_CHANGED: Final = 412  # the settings are at another revision by now
_KEPT: Final = 0  # what rank 0 says to the others
_REFUSED: Final = 1


@dataclass(slots=True, kw_only=True)
class BudgetFit:
    """How much of a training its budgets admit.

    Attributes:
        dataset: its name.
        run: its name.
        steps: that the training has; None if that is not known.
        admitted: of them, or of as many such steps as come; None where no budget limits them.
        epsilon: of the dataset's budget, nats; None without one.
        delta: the same.
        failing_scopes: the budgets that do not admit all, such as "dataset:scans".
        envelope: the training as a budget of this epsilon and delta; None if it does not fit, if
            it is not needed, or if the dataset's budget was used before.
        epsilon_required: nats, upper: what the training needs as an envelope; None if not asked.
        remedies: trainings that fit an envelope, if this one does not.
        changed: whether the dataset's budget was set to the envelope just now.
        lines: all this in sentences.
    """

    dataset: str
    run: str
    steps: int | None
    admitted: int | None
    epsilon: float | None
    delta: float | None
    failing_scopes: list[str]
    envelope: dict[str, Any] | None = None
    epsilon_required: float | None = None
    remedies: list[str] = field(default_factory=list)
    changed: bool = False
    lines: list[str] = field(default_factory=list)

    @property
    def fits(self) -> bool:
        """Whether the budgets admit all steps."""
        if self.admitted is None:
            return True
        return self.steps is not None and self.admitted >= self.steps

    def __str__(self) -> str:
        return "\n".join(self.lines)


def check_budget(
    run: Run,
    events: Sequence[Mapping[str, Any]],
    *,
    length_known: bool = True,
    dataset_budget: DatasetBudget | None = None,
) -> BudgetFit | None:
    """Print how many steps of a training its budgets admit, before the first is taken.

    Args:
        run: open; no step of these events was taken.
        events: the steps to come, each made by `event(...)`.
        length_known: whether they are the whole training; if not, they are one step of it.
        dataset_budget: "this plan" sets the dataset's budget to the envelope that holds exactly
            these steps, at its epsilon and delta, if it does not admit them as it is. That needs an
            admin's key, and a dataset without any answer.

    Returns:
        What fits; None on the ranks that do not report, if the service is away, and for a run
        whose plan holds its budget.

    Raises:
        ValueError: dataset_budget is another text, or the length of the training is not known.
        BudgetExhausted: "this plan" does not fit; no step was taken.
        Forbidden: the key may not set the budget; what an admin has to send was printed.
        DPLedgerError: "this plan" was refused for another reason.
    """
    if dataset_budget not in (None, THIS_PLAN):
        raise ValueError(f'dataset_budget must be "{THIS_PLAN}" or None.')
    if dataset_budget is not None and not length_known:
        raise ValueError("The length of the training is not known: give epochs (or rounds).")
    if run.world_size == 1 or run._broadcast is None or dataset_budget is None:
        return None if run.rank else _reported(run, events, length_known, dataset_budget)
    if run.rank:
        if run._broadcast(_KEPT) != _KEPT:
            raise DPLedgerError({"title": "Rank 0 could not make the budget this plan"}, 0)
        return None
    said = _REFUSED
    try:
        found = _reported(run, events, length_known, dataset_budget)
        said = _KEPT
    finally:
        run._broadcast(said)
    return found


def _reported(
    run: Run,
    events: Sequence[Mapping[str, Any]],
    length_known: bool,
    dataset_budget: DatasetBudget | None,
) -> BudgetFit | None:
    asked = _Question(run, events, length_known)
    try:
        found = asked.answer()
        if found is None:
            return None
        if dataset_budget is not None and not found.fits:
            found = asked.adopted(found)
    except DPLedgerError as error:
        if dataset_budget is None or isinstance(error, Unavailable):
            LOG.info("dpledger: what fits in the budget is not known: %s", error)
            return None
        raise
    sys.stdout.write("".join(f"dpledger: {line}\n" for line in found.lines))
    sys.stdout.flush()
    if dataset_budget is not None and not found.fits and not asked.resumed:
        detail = found.lines[0]
        raise BudgetExhausted(
            {
                "title": "The training does not fit in the budget",
                "detail": f"{detail} No step was taken.",
                "failing_scopes": [{"scope": scope} for scope in found.failing_scopes],
                "admissible_steps": found.admitted,
            },
            0,
        )
    return found


class _Question:
    """What the service is asked about a training."""

    def __init__(self, run: Run, events: Sequence[Mapping[str, Any]], length_known: bool) -> None:
        self._run, self._transport = run, run._transport
        self._path = f"/v1/datasets/{run.dataset}"
        self._steps = sum(event["steps"] for event in events) if length_known else None
        many = {} if length_known else {"steps": STEPS_MAX}
        self._events = [{**event, **many} for event in events]
        self.resumed = run.next_step > 0 or run._writer.opening.branch is not None

    def answer(self) -> BudgetFit | None:
        """What fits as the budgets are; None of a run whose plan holds its budget.

        Raises:
            DPLedgerError: the service refused, or is away.
        """
        dataset = self._transport.get(self._path, retries=1)
        run = self._transport.get(f"/v1/runs/{self._run.name}", retries=1)
        if run.get("on_plan"):
            return None
        found = self._fit(dataset, run)
        if not found.fits and self._steps is not None and _untouched(dataset):
            self._offer(found, dataset)
        found.lines = _sentences(found, dataset, own=run["budget"] is not None)
        return found

    def adopted(self, found: BudgetFit) -> BudgetFit:
        """What fits once the dataset's budget is the envelope, if it can be.

        Raises:
            Forbidden: the key may not set it; what an admin has to send was printed.
            DPLedgerError: it was refused otherwise.
        """
        changed = False
        for _ in range(_TRIES):
            if found.fits or found.envelope is None:
                break
            revision = self._transport.get(self._path)["revision"]
            try:
                changed |= self._changed(found, revision)
            except InvalidRequest as error:  # steps were reserved before, and returned
                LOG.info("dpledger: the budget stays as it is: %s", error)
                found.envelope, found.lines[1:] = None, [_used(found)]
                break
            again = self.answer()
            if again is None:
                break
            found = again
        if changed:
            found.changed = True
            told = ") is now an envelope of exactly this training. It "
            found.lines[0] = found.lines[0].replace(") ", told, 1)
        return found

    def _changed(self, found: BudgetFit, revision: int) -> bool:
        """Set the dataset's budget to the envelope; False if its settings changed meanwhile.

        That may be by this request, where its answer was lost and it was sent again.
        """
        change = {
            "reason": f"An envelope of the training of run {found.run}",
            "budget": found.envelope,
        }
        try:
            answer = self._transport.patch(self._path, change, revision=revision)
        except Forbidden as error:
            title = f"This key may not set the budget of dataset {found.dataset}"
            told = f"{title}: an admin's key is needed. An admin sends:"
            sys.stdout.write(f"dpledger: {told}\n{self._command(revision, change)}\n")
            sys.stdout.flush()
            detail = f"{title}. The command for an admin was printed. No step was taken."
            raise Forbidden({**error.problem, "title": title, "detail": detail}, 403) from None
        except DPLedgerError as error:
            if error.status != _CHANGED:
                raise
            return False
        if "person" in answer:  # a change request
            detail = (
                f"The budget of dataset {found.dataset} is as before: another person must approve "
                f"change request {answer['id']}. No step was taken."
            )
            raise AnotherPerson({"title": "Another person must approve", "detail": detail}, 202)
        return True

    def _fit(self, dataset: Mapping[str, Any], run: Mapping[str, Any]) -> BudgetFit:
        place = {"run": self._run.name, "branch": self._run.branch}
        body = {"events": self._events, "remedies": False, **place}
        answer = self._transport.post(f"{self._path}/explain", body, retries=1)
        budget, admitted = dataset["budget"] or {}, answer["fewer_steps"]["value"] or 0
        if answer["fits"]:
            unlimited = self._steps is None or not (budget or run["budget"])
            admitted = None if unlimited else self._steps
        return BudgetFit(
            dataset=self._run.dataset,
            run=self._run.name,
            steps=self._steps,
            admitted=admitted,
            epsilon=budget.get("epsilon"),
            delta=budget.get("delta"),
            failing_scopes=[one["scope"] for one in answer["failing_scopes"]],
        )

    def _offer(self, found: BudgetFit, dataset: Mapping[str, Any]) -> None:
        """Ask for the envelope of the training, and whether the budget holds it."""
        if found.failing_scopes != [f"dataset:{found.dataset}"]:
            return
        asked = {
            "neighboring_relation": dataset["neighboring_relation"],
            "dataset_size": dataset["dataset_size"],
            "accept": dataset["accept"],
            "delta": found.delta,
            "as_envelope": True,
        }
        try:
            made = self._planned(asked, self._events)["envelope"]
            found.epsilon_required = made["epsilon"]
            if found.epsilon is not None and made["epsilon"] <= found.epsilon:
                items = [{**item, "name": found.run} for item in made["envelope"]]
                found.envelope = {**made, "epsilon": found.epsilon, "envelope": items}
            elif len(self._events) == 1:
                found.remedies = self._remedies(asked | {"epsilon": found.epsilon})
        except Unavailable:
            raise
        except DPLedgerError as error:  # for instance a step that no envelope may list
            LOG.info("dpledger: the training has no envelope: %s", error)

    def _planned(self, asked: Mapping[str, Any], events: Any) -> dict[str, Any]:
        return self._transport.post("/v1/plan", {**asked, "events": events}, retries=1)

    def _remedies(self, asked: dict[str, Any]) -> list[str]:
        """The most steps, and the least noise, that fit an envelope of the budget."""
        [event] = self._events
        fewer = {key: value for key, value in event.items() if key != "steps"}
        found = self._planned(asked | {"solve_for": "steps"}, [fewer])
        told = []
        if found["envelope"]["epsilon"] <= asked["epsilon"]:
            told.append(f"{found['solved']['value']:,} steps")
        if event["mechanism"]["kind"] == "gaussian":
            louder = {**event, "mechanism": {"kind": "gaussian"}}
            found = self._planned(asked | {"solve_for": "noise_multiplier"}, [louder])
            if found["envelope"]["epsilon"] <= asked["epsilon"]:
                noise = up(found["solved"]["value"], 6)
                told.append(f"{event['steps']:,} steps with a noise multiplier of {noise}")
        return told

    def _command(self, revision: int, change: Mapping[str, Any]) -> str:
        """What an admin may paste into a shell."""
        return (
            f"curl --request PATCH {self._transport.base_url}{self._path} \\\n"
            '  --header "Authorization: Bearer $DPLEDGER_API_KEY" \\\n'
            f"  --header 'If-Match: \"{revision}\"' --header 'Content-Type: application/json' \\\n"
            f"  --data '{json.dumps(change)}'"
        )


def _untouched(dataset: Mapping[str, Any]) -> bool:
    """Whether its budget may still be another one."""
    budget = dataset["budget"]
    return budget is not None and not (dataset["sequence"] or budget["spent"] or budget["reserved"])


def _sentences(found: BudgetFit, dataset: Mapping[str, Any], *, own: bool) -> list[str]:
    """What fits, and what to do if that is not all."""
    if found.epsilon is None and not own:
        return [f"Dataset {found.dataset} has no budget: all steps of this training are admitted."]
    name = f"The budget of dataset {found.dataset}"
    if found.epsilon is not None:
        name += f" (epsilon {found.epsilon:g}, delta {found.delta:g})"
    if own:
        name += f" and that of run {found.run} together admit"
    else:
        name += " admits"
    if found.steps is None:
        few = f"{found.admitted:,} more steps like the first of this training"
        return [f"{name} {'any number of such steps' if found.admitted is None else few}."]
    if found.fits:
        return [f"{name} all {found.steps:,} steps of this training."]
    lines = [f"{name} {found.admitted:,} of the {found.steps:,} steps of this training."]
    return lines + _advice(found, dataset)


def _advice(found: BudgetFit, dataset: Mapping[str, Any]) -> list[str]:
    """What to do where not all steps fit."""
    others = [scope for scope in found.failing_scopes if scope != f"dataset:{found.dataset}"]
    if others:
        kinds = ", ".join(scope.replace(":", " ", 1) for scope in others)
        return [
            f"The budget of {kinds} does not hold them all: take fewer steps or more noise, or "
            "ask for a larger budget there."
        ]
    if found.envelope is not None:
        return [
            f"As an envelope, the same budget holds all {found.steps:,} of them. To make it one, "
            f'pass dataset_budget="{THIS_PLAN}" with an admin\'s key.'
        ]
    if found.epsilon_required is not None:
        lines = [
            f"All {found.steps:,} steps need epsilon {up(found.epsilon_required)} at this delta, "
            "even as an envelope: take fewer steps or more noise, or ask for a larger budget."
        ]
        if found.remedies:
            lines.append(f"An envelope of {' or of '.join(found.remedies)} would fit.")
        return lines
    if not _untouched(dataset):
        return [_used(found)]
    return ["Take fewer steps or more noise: no envelope can list the steps of this training."]


def _used(found: BudgetFit) -> str:
    return (
        "The dataset's budget was used before, so that it cannot become an envelope of this "
        "training: take fewer steps or more noise. `POST /v1/datasets/"
        f"{found.dataset}/explain` tells how much."
    )
