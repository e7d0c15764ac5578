"""Hostile requests: malformed, out of range, out of place. Values carry marks to look for."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.service.samples import RANDOM, SAMPLING, TRUNCATED, Json, dataset, event, run

MARK = "zq7mark"  # no answer may repeat it: an answer never echoes what was sent
NUMBER = "7654321"  # the same for numbers
JSON = {"content-type": "application/json"}
NDJSON = {"content-type": "application/x-ndjson"}
EVENTS = "/v1/runs/run/events"
FINDINGS = "/v1/runs/run/findings"
HOLE = '"@@"'

Body = bytes | Callable[[], Iterator[bytes]] | None


@dataclass(frozen=True, kw_only=True)
class Hostile:
    """A request that must be refused, and how."""

    name: str
    path: str
    body: Body = None
    method: str = "POST"
    headers: Json = field(default_factory=lambda: JSON)
    status: int = 422
    slug: str = "invalid-request"
    cause: str = ""  # what the answer's detail names


def batch(*events: Json, **given: Any) -> Json:
    return {"events": list(events) or [event(10, 5)]} | given


def cyclic(**given: Any) -> Json:
    return {"kind": "cyclic", "batch_size": 60, "steps_per_pass": 1000} | given


def shuffle(**given: Any) -> Json:
    return {
        "kind": "shuffle",
        "batch_size": 60,
        "reshuffle": "once",
        "steps_per_pass": 1000,
    } | given


def truncated(**given: Any) -> Json:
    return TRUNCATED | given


def allocated(**given: Any) -> Json:
    return RANDOM | given


def sampled(sampling: Json) -> Json:
    return batch(event(10, 5, sampling=sampling))


PLAN: Json = {
    "neighboring_relation": "add_or_remove_one",
    "dataset_size": 60000,
    "events": [event(0, 5)],
    "delta": 1e-5,
}
BRANCH: Json = {"name": "branch", "writer": "writer-of-the-tests-2", "from_step": 5}
RUN: Json = run("other", delta=1e-5, budget={"epsilon": 1, "delta": 1e-5})
DATASET: Json = dataset("other", budget={"epsilon": 1, "delta": 1e-5}, accept=["published"])
PATHS: dict[str, Json] = {
    EVENTS: batch(),
    "/v1/datasets": DATASET,
    "/v1/runs": RUN | {"plan": [event(0, 5), event(5, 5)]},
    "/v1/runs/run/branches": BRANCH,
    "/v1/runs/run:finish": {"state": "finished"},
    "/v1/plan": PLAN,
    FINDINGS: SAMPLING | {"reason": "as declared"},
}


def broken(message: Json, where: str, raw: str) -> bytes:
    """The message with the raw text in the place of one value; `a.0.b` is a[0].b."""
    changed = json.loads(json.dumps(message))
    *parents, last = where.split(".")
    place: Any = changed
    for part in parents:
        place = place[int(part)] if part.isdigit() else place[part]
    place[int(last) if last.isdigit() else last] = HOLE.strip('"')
    return json.dumps(changed).replace(HOLE, raw).encode()


def location(where: str) -> str:
    """`body.a[0].b`, as answers name a place; a wrong kind is named by what it is the kind of."""
    where = f".{where}".removesuffix(".kind")
    return "body" + "".join(f"[{p}]" if p.isdigit() else f".{p}" for p in where.split(".")[1:])


MALFORMED: Json = {"status": 400, "slug": "malformed-body", "cause": "body: not a JSON number"}
TEXTS = [f'"{MARK}\\u0000"', f'"{MARK}\\u001b[2J"', f'"{MARK}\\ud800"', f'"{MARK * 40}"', '""']
NO_TEXTS = ["null", "true", NUMBER, f'["{MARK}"]', f'{{"a": "{MARK}"}}', *TEXTS]
NAMES = [f'"{MARK.upper()}"', f'"{MARK}/x"', f'"..{MARK}"', f'"{MARK}é"', f'"{MARK}\\n"', *NO_TEXTS]
NO_NUMBERS = ["true", "false", f'"{MARK}"', f'"{NUMBER}"', '"1"', f"[{NUMBER}]", "{}", "null"]
HUGE = ["1" + "0" * 400, "-" + NUMBER + "0" * 400]
COUNTS = ["0", f"-{NUMBER}", f"{NUMBER}.5", "1e3", "1e400", f"{NUMBER}{10**12}", *HUGE, *NO_NUMBERS]
STEPS = [value for value in COUNTS if value != "0"]
NOISES = ["0", "-0.0", f"-{NUMBER}", "5e-324", "1e-300", "1e300", "1e400", "-1e400", *HUGE]
NOISES += NO_NUMBERS
CHANCES = ["0", "-0.0", "1.5", f"{NUMBER}", f"-0.{NUMBER}", "1e-300", "5e-324", "1e400", *HUGE]
CHANCES += NO_NUMBERS[:-1]
DELTAS = ["0", "1", "2", "-1", f"1.{NUMBER}", "1e400", "1e-400", *HUGE, *NO_NUMBERS[:-1]]
EPSILONS = ["0", f"-{NUMBER}", "1e9", "1e400", "1e-300", *HUGE, *NO_NUMBERS]
WORDS = [f'"{MARK}"', f'["{MARK}"]', f'{{"{"a"}": "{MARK}"}}', "null", "true", NUMBER, '"\\ud800"']

CONTENT: list[tuple[str, str, list[str]]] = [
    (EVENTS, "branch", NAMES),
    (EVENTS, "mode", WORDS),
    (EVENTS, "events", ["[]", "{}", "null", f'"{MARK}"', NUMBER, f"[{NUMBER}]", f'["{MARK}"]']),
    (EVENTS, "events.0.first_step", STEPS),
    (EVENTS, "events.0.steps", [*COUNTS, "1" + "0" * 18]),
    (EVENTS, "events.0.mechanism", NO_TEXTS),
    (EVENTS, "events.0.mechanism.kind", WORDS),
    (EVENTS, "events.0.mechanism.noise_multiplier", NOISES),
    (EVENTS, "events.0.sampling", NO_TEXTS),
    (EVENTS, "events.0.sampling.kind", WORDS),
    (EVENTS, "events.0.sampling.sampling_probability", CHANCES),
    ("/v1/datasets", "name", NAMES),
    ("/v1/datasets", "dataset_size", COUNTS),
    ("/v1/datasets", "neighboring_relation", WORDS),
    ("/v1/datasets", "privacy_unit", NO_TEXTS),
    ("/v1/datasets", "budget", ["true", NUMBER, f'"{MARK}"', f'["{MARK}"]', "{}"]),
    ("/v1/datasets", "budget.epsilon", EPSILONS),
    ("/v1/datasets", "budget.delta", [*DELTAS, "null"]),
    ("/v1/datasets", "accept", ["[]", "{}", f'"{MARK}"', f'["published"{", null" * 9}]']),
    ("/v1/datasets", "accept.0", [*WORDS, '"conjecture"', '"estimate"', '"Published"']),
    ("/v1/runs", "name", NAMES),
    ("/v1/runs", "dataset", NAMES),
    ("/v1/runs", "writer", [f'"{MARK}"', f'"{MARK} and so on"', f'"{MARK}{"é" * 16}"', *NO_TEXTS]),
    ("/v1/runs", "delta", DELTAS),
    ("/v1/runs", "release", WORDS),
    ("/v1/runs", "budget.epsilon", EPSILONS),
    ("/v1/runs", "plan", ["[]", "{}", f'"{MARK}"', NUMBER]),
    ("/v1/runs", "plan.1.first_step", [value for value in STEPS if value != "null"]),
    ("/v1/runs", "plan.1.steps", COUNTS),
    ("/v1/runs", "assumptions", ["null", f'"{MARK}"', NUMBER, f'["{MARK}"]']),
    ("/v1/runs", "labels", ["null", f'"{MARK}"', NUMBER, f'["{MARK}"]']),
    ("/v1/runs/run/branches", "name", NAMES),
    ("/v1/runs/run/branches", "writer", NO_TEXTS),
    ("/v1/runs/run/branches", "from_step", STEPS),
    ("/v1/runs/run:finish", "state", [*WORDS, '"active"', '"reopened"']),
    (FINDINGS, "kind", WORDS),
    (FINDINGS, "branch", NAMES),
    (FINDINGS, "from_step", STEPS),
    (FINDINGS, "status", WORDS),
    (FINDINGS, "declared.kind", WORDS),
    (FINDINGS, "declared.sampling_probability", CHANCES),
    (FINDINGS, "recorded", NO_TEXTS),
    (FINDINGS, "recorded.kind", WORDS),
    (FINDINGS, "recorded.sampling_probability", CHANCES),
    (FINDINGS, "seen", ["null", f'"{MARK}"', NUMBER, f'["{MARK}"]']),
    (FINDINGS, "seen.loader", ["null", f'["{MARK}"]', f'{{"a": "{MARK}"}}', *TEXTS[:-1], *HUGE]),
    (FINDINGS, "reason", [value for value in NO_TEXTS if value not in ('""', TEXTS[3])]),
    ("/v1/plan", "neighboring_relation", WORDS),
    ("/v1/plan", "dataset_size", [value for value in COUNTS if value != "null"]),
    ("/v1/plan", "delta", [*DELTAS, "null"]),
    ("/v1/plan", "events.0.steps", COUNTS),
]  # fmt: skip


def wrong_values() -> Iterator[Hostile]:
    """Every value of the table above in its place."""
    for path, where, values in CONTENT:
        for value in values:
            yield Hostile(
                name=f"{path}:{where}={value[:24]}",
                path=path,
                body=broken(PATHS[path], where, value),
                cause=location(where),
            )


def unreadable_numbers() -> Iterator[Hostile]:
    """Numbers that JSON does not have, or that have too many digits to be read."""
    for path, where, value in (
        (EVENTS, "events.0.steps", "1" * 5000),
        (EVENTS, "events.0.mechanism.noise_multiplier", "NaN"),
        (EVENTS, "events.0.sampling.sampling_probability", "Infinity"),
        ("/v1/datasets", "budget.epsilon", "-Infinity"),
        ("/v1/plan", "delta", "NaN"),
        ("/v1/runs", "assumptions", '{"a": NaN}'),
    ):
        body = broken(PATHS[path] | {"assumptions": {}}, where, value)
        yield Hostile(name=f"{path}:{where}={value[:24]}", path=path, body=body, **MALFORMED)


OPTIONAL = {"budget", "accept", "plan", "delta", "dataset_size", "branch", "declared", "kind"}


def surplus_and_missing() -> Iterator[Hostile]:
    """Unknown fields at every level, and every required field left out."""
    levels = [
        (EVENTS, ""), (EVENTS, "events.0."), (EVENTS, "events.0.mechanism."),
        (EVENTS, "events.0.sampling."), ("/v1/datasets", ""), ("/v1/datasets", "budget."),
        ("/v1/runs", ""), ("/v1/runs", "budget."), ("/v1/runs", "plan.0."),
        ("/v1/runs", "plan.0.sampling."), ("/v1/runs/run/branches", ""),
        ("/v1/runs/run:finish", ""), ("/v1/plan", ""), ("/v1/plan", "events.0.mechanism."),
        (FINDINGS, ""), (FINDINGS, "declared."), (FINDINGS, "recorded."),
    ]  # fmt: skip
    for path, level in levels:
        for field_name in ("surplus", "batch_sizes", "seed"):
            where = f"{level}{field_name}"
            body = broken(PATHS[path], where, f'"{MARK}"')
            yield Hostile(
                name=f"{path}:{where} unknown", path=path, body=body, cause=location(where)
            )
    for path, message in PATHS.items():
        for key in set(message) - OPTIONAL:
            rest = {name: value for name, value in message.items() if name != key}
            body = json.dumps(rest).encode()
            yield Hostile(name=f"{path}:{key} missing", path=path, body=body, cause=f"body.{key}")


SAMPLINGS: dict[str, tuple[Json, str]] = {
    "both sizes": ({"kind": "poisson", "sampling_probability": 0.1, "expected_batch_size": 6}, ""),
    "neither size": ({"kind": "poisson"}, ""),
    "expected beyond dataset": ({"kind": "poisson", "expected_batch_size": 7654321}, ""),
    "expected of zero": ({"kind": "poisson", "expected_batch_size": 0}, ".expected_batch_size"),
    "fixed beyond dataset": ({"kind": "fixed_size", "batch_size": 7654321}, ".batch_size"),
    "fixed of zero": ({"kind": "fixed_size", "batch_size": 0}, ".batch_size"),
    "fixed below zero": ({"kind": "fixed_size", "batch_size": -7654321}, ".batch_size"),
    "cyclic beyond dataset": (cyclic(batch_size=7654321), ".batch_size"),
    "cyclic pass too long": (cyclic(steps_per_pass=7654321), ".steps_per_pass"),
    "cyclic pass by one": (cyclic(steps_per_pass=1001), ".steps_per_pass"),
    "shuffle pass too long": (shuffle(steps_per_pass=7654321), ".steps_per_pass"),
    "shuffle pass of zero": (shuffle(steps_per_pass=0), ".steps_per_pass"),
    "unknown reshuffle": (shuffle(reshuffle=MARK), ".reshuffle"),
    "no reshuffle": ({"kind": "shuffle", "batch_size": 60, "steps_per_pass": 1000}, ".reshuffle"),
    "another kind's field": ({"kind": "full", "sampling_probability": 0.1}, ".sampling_prob"),
    "truncated without a limit": ({"kind": "truncated_poisson", "sampling_probability": 0.1},
                                  ".max_batch_size"),
    "truncated at zero": (truncated(max_batch_size=0), ".max_batch_size"),
    "truncated of batches": (truncated(expected_batch_size=6), ".expected_batch_size"),
    "truncated with chance above one": (truncated(sampling_probability=7654321),
                                        ".sampling_probability"),
    "no draws": ({"kind": "with_replacement", "batch_size": 0}, ".batch_size"),
    "draws without number": ({"kind": "with_replacement", "batch_size": 10**400}, ".batch_size"),
    "no bins": ({"kind": "balls_and_bins", "steps_per_pass": 0}, ".steps_per_pass"),
    "bins of batches": ({"kind": "balls_and_bins", "batch_size": 60}, ".steps_per_pass"),
    "allocated beyond the pass": (allocated(participations=7654321), ".participations"),
    "allocated beyond by one": (allocated(participations=101), ".participations"),
    "allocated to nothing": (allocated(participations=0), ".participations"),
    "a weight of zero": ({"kind": "non_uniform", "max_weight": 0}, ".max_weight"),
    "a weight above one": ({"kind": "non_uniform", "max_weight": 7654321}, ".max_weight"),
    "weights that cannot add up": ({"kind": "non_uniform", "max_weight": 1e-9}, ".max_weight"),
    "a list of weights": ({"kind": "non_uniform", "weights": [7654321]}, ".max_weight"),
    "a kind not built": ({"kind": "stratified", "steps_per_pass": 5}, ""),
}  # fmt: skip
RUNS: dict[str, tuple[str, Json]] = {
    "labels of numbers": ("body.labels.a", run("other", labels={"a": 7654321})),
    "labels with a bad name": ("body.labels", run("other", labels={"A": "a"})),
    "labels with a surrogate name": ("body", run("other", labels={"\ud800": "a"})),
    "labels too long": ("body.labels.a", run("other", labels={"a": MARK * 40})),
    "labels unprintable": ("body.labels.a", run("other", labels={"a": f"{MARK}\0"})),
    "too many labels": ("body.labels", run("other", labels={f"l{i}": MARK for i in range(65)})),
    "assumptions nested": ("body.assumptions.a", run("other", assumptions={"a": {"b": MARK}})),
    "assumptions in a list": ("body.assumptions.a", run("other", assumptions={"a": [MARK]})),
    "assumptions of null in a list": (
        "body.assumptions.a",
        run("other", assumptions={"a": [None]}),
    ),
    "assumptions too big": ("body.assumptions.a", run("other", assumptions={"a": 10**400})),
    "assumptions too long": ("body.assumptions.a", run("other", assumptions={"a": MARK * 40})),
    "assumptions with a bad name": ("body.assumptions", run("other", assumptions={"a b": True})),
    "plan with a gap": ("body.plan[1].first_step", run("other", plan=[event(0, 5), event(6, 1)])),
    "plan that goes back": (
        "body.plan[1].first_step",
        run("other", plan=[event(0, 5), event(4, 1)]),
    ),
    "plan that begins late": ("body.plan[0].first_step", run("other", plan=[event(1, 5)])),
    "plan too long": ("body.plan", run("other", plan=[event(0, 1)] * 1001)),
    "plan beyond the dataset": (
        "body.plan[0].sampling.batch_size",
        run("other", plan=[event(0, 1, sampling=cyclic(batch_size=7654321))]),
    ),
}


def wrong_messages() -> Iterator[Hostile]:
    """Messages whose fields are well-formed one by one."""
    for name, (sampling, place) in SAMPLINGS.items():
        yield Hostile(
            name=name,
            path=EVENTS,
            body=json.dumps(sampled(sampling)).encode(),
            cause=f"body.events[0].sampling{place}",
        )
    for name, (cause, message) in RUNS.items():
        yield Hostile(name=name, path="/v1/runs", body=json.dumps(message).encode(), cause=cause)
    many = json.dumps(batch(*[event(10 + i, 1) for i in range(1001)])).encode()
    yield Hostile(name="1001 events", path=EVENTS, body=many, cause="body.events")
    gap = json.dumps(PLAN | {"events": [event(0, 5), event(6, 1)]}).encode()
    yield Hostile(
        name="/v1/plan with a gap", path="/v1/plan", body=gap, cause="body.events[1].first_step"
    )


def all_bodies() -> list[Hostile]:
    """Every request whose fault is a value in its body."""
    return [*wrong_values(), *unreadable_numbers(), *surplus_and_missing(), *wrong_messages()]
