"""No budget, no job: an AdmissionCheck of Kueue that reserves what a job needs in dpledger.

A job says in annotations of its pods which dataset it trains on, its plan and its budget. Once
Kueue has reserved quota, this controller registers the job's run with that plan and budget, which
reserves all steps of the plan at once, and answers Ready; a refusal is answered Rejected with its
text. While dpledger gives no answer, the check stays Pending. The end of the workload ends the run,
which returns what was not used. docs/guide/jobs.md has the annotations.

    export DPLEDGER_URL=https://… DPLEDGER_API_KEY_FILE=…
    kopf run --standalone --all-namespaces controller.py

The run's name and writer derive from the workload's uid, so that a restart, a repeated event or a
second controller registers the same run: dpledger then answers what the first request did.
"""

import asyncio
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf

CONTROLLER: Final = "dpledger.example/budget"  # spec.controllerName of the AdmissionCheck
GROUP: Final = "kueue.x-k8s.io"
PREFIX: Final = "dpledger.example/"
RUN: Final = f"{PREFIX}run"  # what the pods are given: the request that registered the run
RETRY_SECONDS: Final = float(os.environ.get("DPLEDGER_RETRY_SECONDS", "10"))
TIMEOUT: Final = aiohttp.ClientTimeout(total=60.0)  # certifying a plan may take seconds
MESSAGE_MAX: Final = 4096  # characters; Kueue takes eight times as many
CLOSED: Final = ("finished", "stopped_at_budget", "aborted")
LATER: Final = (
    401,
    408,
    429,
)  # beside those of a server: a later request may be answered otherwise


class RejectedError(Exception):
    """The job cannot have what it asks for; the text says why."""


class NoAnswerError(Exception):
    """dpledger gave no answer that says yes or no; the text says what happened."""


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    """Name this controller's finalizer, and write no events: the check's message has all of it."""
    settings.persistence.finalizer = f"{PREFIX}release"
    prefix = PREFIX.rstrip("/")
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=prefix)
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix=prefix, key="seen", ignored_fields=["metadata", "spec", "status"]
    )
    settings.posting.enabled = False
    _key()  # a key that cannot be read ends the start


@kopf.index(GROUP, "admissionchecks")
async def checks(name: str, spec: kopf.Spec, **_: Any) -> dict[str, str] | None:
    """The AdmissionChecks that are answered here, by name."""
    return {name: name} if spec.get("controllerName") == CONTROLLER else None


@kopf.on.event(GROUP, "admissionchecks")
async def activate(spec: kopf.Spec, status: kopf.Status, patch: kopf.Patch, **_: Any) -> None:
    """Say that this controller is there: without it Kueue admits nothing of the queue."""
    if spec.get("controllerName") != CONTROLLER or _condition(status, "Active"):
        return

    def change(body: Any) -> None:
        status = body.setdefault("status", {})
        others = [one for one in status.get("conditions", []) if one["type"] != "Active"]
        active = {"type": "Active", "status": "True", "reason": "Active", **_now()}
        status["conditions"] = [*others, {**active, "message": "dpledger is asked for budget"}]

    patch.fns.append(change)


def is_checked(status: kopf.Status, checks: kopf.Index[str, str], **_: Any) -> bool:
    """Whether a workload has a check that is answered here."""
    return bool(_ours(status, checks))


def is_waiting(status: kopf.Status, checks: kopf.Index[str, str], **_: Any) -> bool:
    """Whether a workload has quota, has not ended, and a check of it is to be answered."""
    pending = any(one["state"] in ("Pending", "Retry") for one in _ours(status, checks))
    has_quota = _condition(status, "QuotaReserved") and not _condition(status, "Evicted")
    return pending and has_quota and not _condition(status, "Finished")


def is_finished(status: kopf.Status, checks: kopf.Index[str, str], **_: Any) -> bool:
    """Whether a workload has ended that had a check."""
    return _condition(status, "Finished") and bool(_ours(status, checks))


@kopf.timer(GROUP, "workloads", when=is_waiting, interval=RETRY_SECONDS)
async def admit(
    body: kopf.Body, patch: kopf.Patch, memo: kopf.Memo, checks: kopf.Index[str, str], **_: Any
) -> None:
    """Reserve what a workload needs, and answer its check; again while there is no answer."""
    async with _lock(memo):
        if body.metadata.get("deletionTimestamp") or memo.get("released"):
            return
        updates: list[dict[str, Any]] = []
        try:
            run = run_of(body)
            await reserve(run)
        except RejectedError as error:
            state, message = "Rejected", str(error)
        except NoAnswerError as error:
            state, message = "Pending", f"dpledger gave no answer: {error}"
        else:
            state, message = "Ready", f"dpledger reserved the plan of run {run['name']}"
            given = {RUN: json.dumps(run)}
            updates = [{"name": one["name"], "annotations": given} for one in _pod_sets(body)]
    answer = {"state": state, "message": message[:MESSAGE_MAX], "podSetUpdates": updates}
    patch.fns.append(lambda found: _answer(found, set(checks), answer))


@kopf.timer(GROUP, "workloads", when=is_finished, interval=RETRY_SECONDS)
async def finish(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    """End the run of a workload that has ended, unless the trainer did."""
    if not memo.get("released"):
        await _release(body, memo, "the workload has ended")


@kopf.on.delete(GROUP, "workloads", when=is_checked)
async def delete(body: kopf.Body, memo: kopf.Memo, **_: Any) -> None:
    """End the run of a workload that is deleted: the finalizer holds it until that was done."""
    await _release(body, memo, "the workload was deleted")


def run_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """The request that registers a workload's run.

    Raises:
        RejectedError: an annotation is missing or is not what it must be; the text names it.
    """
    said = _annotations(body)
    metadata = body["metadata"]
    uid = str(metadata["uid"])
    delta = _number(said, "delta", below=1.0)
    return {
        "name": name_of(uid),
        "writer": hashlib.sha256(f"dpledger kueue {uid}".encode()).hexdigest(),
        "dataset": _text(said, "dataset"),
        "delta": delta,
        "plan": _plan(said),
        "budget": {"epsilon": _number(said, "epsilon"), "delta": delta},
        "labels": {"kueue.workload": f"{metadata['namespace']}/{metadata['name']}"},
    }


def name_of(uid: str) -> str:
    """The run of a workload."""
    return f"kueue-{uid}"


async def reserve(run: Mapping[str, Any]) -> None:
    """Register a run, which reserves its plan; once, however often it is asked for.

    Raises:
        RejectedError: dpledger refuses it, or what was reserved was returned.
        NoAnswerError: there was no answer.
    """
    status, answer = await _ask("POST", "/v1/runs", run)
    if status >= 400:
        raise RejectedError(_problem(answer))
    if answer.get("state") != "active" or not answer.get("on_plan"):
        ended = f"run {run['name']} is {answer.get('state')}, and its plan is not reserved any more"
        raise RejectedError(f"{ended}: submit the job again")


async def _release(body: Mapping[str, Any], memo: kopf.Memo, why: str) -> None:
    """End a workload's run, if there is one; what it did not use returns to the budget."""
    metadata = body["metadata"]
    path = f"/v1/runs/{name_of(str(metadata['uid']))}"
    async with _lock(memo):
        try:
            status, answer = await _ask("GET", path)
            if status == 200 and answer["state"] not in CLOSED:
                said = f"Kueue: {why} ({metadata['namespace']}/{metadata['name']})"
                ended = {"state": "aborted", "reason": said}
                status, answer = await _ask("POST", f"{path}:finish", ended)
        except NoAnswerError as error:
            raise kopf.TemporaryError(str(error), delay=RETRY_SECONDS) from error
        if status not in (200, 404, 409):  # 409: its trainer closed it meanwhile
            raise kopf.TemporaryError(_problem(answer), delay=RETRY_SECONDS)
        memo["released"] = True


async def _ask(method: str, path: str, content: Any = None) -> tuple[int, dict[str, Any]]:
    """The status and the object of an answer.

    Raises:
        NoAnswerError: there is none, or it says nothing of the request.
    """
    url = os.environ.get("DPLEDGER_URL", "http://127.0.0.1:8000").rstrip("/") + path
    headers = {"Authorization": f"Bearer {_key()}"}
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, headers=headers) as session,
            session.request(method, url, json=content, allow_redirects=False) as response,
        ):
            answer = await response.json(content_type=None)
            status = response.status
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NoAnswerError(f"{type(error).__name__} {error}".strip()) from error
    if not isinstance(answer, dict):
        raise NoAnswerError(f"HTTP {status} without an object")
    if status >= 500 or status in LATER or 300 <= status < 400:
        raise NoAnswerError(_problem(answer) or f"HTTP {status}")
    return status, answer


def _key() -> str:
    path = os.environ.get("DPLEDGER_API_KEY_FILE")
    if path:  # read each time: a key that was rotated is used at once
        return Path(path).read_text(encoding="ascii").strip()
    return os.environ["DPLEDGER_API_KEY"]


def _problem(answer: Mapping[str, Any]) -> str:
    """The text of a problem document, with the fields that it names."""
    parts = [str(answer[name]) for name in ("title", "detail") if answer.get(name)]
    return ". ".join(part.rstrip(".") for part in parts)


def _ours(status: Mapping[str, Any], checks: kopf.Index[str, str]) -> list[dict[str, Any]]:
    return [one for one in status.get("admissionChecks") or [] if one["name"] in checks]


def _answer(body: Any, names: set[str], answer: Mapping[str, Any]) -> None:
    """Write an answer into the checks of a body that are to be answered here, and no others."""
    for one in body.get("status", {}).get("admissionChecks", []):
        if one["name"] not in names or one["state"] not in ("Pending", "Retry"):
            continue
        if (one["state"], one.get("message")) != (answer["state"], answer["message"]):
            one.update({**answer, **_now()})


def _condition(status: Mapping[str, Any], kind: str) -> bool:
    conditions = status.get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


def _now() -> dict[str, str]:
    return {"lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}


def _lock(memo: kopf.Memo) -> asyncio.Lock:
    """One request at a time about a workload: what is reserved after its release would stay."""
    found: asyncio.Lock = memo.setdefault("lock", asyncio.Lock())
    return found


def _pod_sets(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(body.get("spec", {}).get("podSets", []))


def _annotations(body: Mapping[str, Any]) -> dict[str, str]:
    """What the pods of a job say: Kueue copies a job's pod templates, not its own annotations."""
    said: dict[str, str] = {}
    for pods in _pod_sets(body):
        found = pods.get("template", {}).get("metadata", {}).get("annotations") or {}
        for key, value in found.items():
            if key.startswith(PREFIX) and said.setdefault(key, value) != value:
                raise RejectedError(f"annotation {key} differs between the pod sets")
    if RUN in said:
        raise RejectedError(f"annotation {RUN} is set by the controller: leave it out")
    return said


def _plan(said: Mapping[str, str]) -> list[dict[str, Any]]:
    """The plan as it is written out, or of Gaussian steps with Poisson sampling."""
    if f"{PREFIX}plan" in said:
        try:
            plan = json.loads(said[f"{PREFIX}plan"])
        except ValueError as error:
            raise RejectedError(f"annotation {PREFIX}plan is no JSON: {error}") from None
        if not isinstance(plan, list):
            raise RejectedError(f"annotation {PREFIX}plan is no list of events")
        return plan
    steps = _text(said, "steps")
    if not re.fullmatch("[1-9][0-9]{0,11}", steps):
        raise RejectedError(f"annotation {PREFIX}steps is no positive whole number: {steps!r}")
    noise = _number(said, "noise-multiplier")
    rate = _number(said, "sampling-probability", below=math.nextafter(1.0, 2.0))
    return [
        {
            "mechanism": {"kind": "gaussian", "noise_multiplier": noise},
            "sampling": {"kind": "poisson", "sampling_probability": rate},
            "steps": int(steps),
        }
    ]


def _text(said: Mapping[str, str], name: str) -> str:
    value = said.get(f"{PREFIX}{name}", "").strip()
    if not value:
        raise RejectedError(f"annotation {PREFIX}{name} is missing")
    return value


def _number(said: Mapping[str, str], name: str, *, below: float = math.inf) -> float:
    value = _text(said, name)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < below:
        raise RejectedError(
            f"annotation {PREFIX}{name} is no number above 0 that it may be: {value!r}"
        )
    return number
