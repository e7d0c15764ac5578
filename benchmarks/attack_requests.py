"""Requests that are well-formed and cost as much as a stranger could make them cost."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
Step = tuple[str, Any]  # a path and what is posted to it; text is sent as lines
SIZE: Final = 60_000
EVENTS: Final = 1000  # of a JSON body, by the contract
LINES: Final = 10_000  # of lines, by the contract
DELTA: Final = 1e-5
WRITER: Final = "writer-of-an-attacker"
ACCEPT: Final = ["published", "derived", "declared", "conditional"]

BUDGET: Final = {"epsilon": 8.0, "delta": DELTA}
BODY: Final = 4 * 1024 * 1024 - 1024  # bytes, by the service's default
# The schemes that cost most where they were all tried.
DEAR: Final = (
    "poisson, little noise", "truncated poisson", "draws with replacement", "part of a shuffle",
    "balls and bins", "random allocation", "laplace with replacement",
)  # fmt: skip
READ: Final = (
    "/v1/runs/run/guarantee", "/v1/runs/run/history?points=1000", "/v1/runs/run/curve?points=200",
    "/v1/runs/run/ledger", "/v1/datasets/data/explain", "/v1/datasets/data/guarantee",
    "/v1/datasets/data/guarantee?as_of=5", "/v1/datasets/data", "/v1/runs/run/certificate",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Attack:
    """A request, and what was recorded before it."""

    name: str
    method: str
    path: str
    body: Any = None
    before: tuple[Step, ...] = field(default=(), repr=False)


def gaussian(noise: float) -> Json:
    """Gaussian noise."""
    return {"kind": "gaussian", "noise_multiplier": noise}


def laplace(noise: float) -> Json:
    """Laplace noise."""
    return {"kind": "laplace", "noise_multiplier": noise}


# What a step may be, by name: each takes a number that makes it differ from the others.
SCHEMES: Final[dict[str, Callable[[int], tuple[Json, Json]]]] = {
    "poisson": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "poisson", "sampling_probability": 0.01}),
    "poisson, much noise": lambda i: (
        gaussian(40 + i * 1e-2), {"kind": "poisson", "sampling_probability": 0.3}),
    "poisson, little noise": lambda i: (
        gaussian(0.02 + i * 1e-6), {"kind": "poisson", "sampling_probability": 0.9}),
    "truncated poisson": lambda i: (
        gaussian(1 + i * 1e-4),
        {"kind": "truncated_poisson", "sampling_probability": 0.01, "max_batch_size": 650}),
    "fixed size": lambda i: (gaussian(1 + i * 1e-4), {"kind": "fixed_size", "batch_size": 600}),
    "draws with replacement": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "with_replacement", "batch_size": 600}),
    "many draws with replacement": lambda i: (
        gaussian(5 + i * 1e-3), {"kind": "with_replacement", "batch_size": 10**12 - i}),
    "cyclic": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "cyclic", "batch_size": 600, "steps_per_pass": 100}),
    "shuffle each pass": lambda i: (
        gaussian(1 + i * 1e-4),
        {"kind": "shuffle", "batch_size": 600, "reshuffle": "each_pass", "steps_per_pass": 100}),
    "part of a shuffle": lambda i: (
        gaussian(1 + i * 1e-4),
        {"kind": "shuffle", "batch_size": 60, "reshuffle": "each_pass", "steps_per_pass": 900}),
    "shuffle of single records": lambda i: (
        gaussian(2 + i * 1e-4),
        {"kind": "shuffle", "batch_size": 1, "reshuffle": "each_pass", "steps_per_pass": 60000}),
    "balls and bins": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "balls_and_bins", "steps_per_pass": 100}),
    "balls and many bins": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "balls_and_bins", "steps_per_pass": 10**12 - i}),
    "random allocation": lambda i: (
        gaussian(1 + i * 1e-4),
        {"kind": "random_allocation", "steps_per_pass": 100, "participations": 3}),
    "large random allocation": lambda i: (
        gaussian(0.5 + i * 1e-4),
        {"kind": "random_allocation", "steps_per_pass": 10**12, "participations": 10**12 - i}),
    "middling random allocation": lambda i: (
        gaussian(3 + i * 1e-4),
        {"kind": "random_allocation", "steps_per_pass": 10**5, "participations": 5000 + i}),
    "single records by weight": lambda i: (
        gaussian(1 + i * 1e-4), {"kind": "non_uniform", "max_weight": 0.001}),
    "laplace": lambda i: (
        laplace(1 + i * 1e-4), {"kind": "poisson", "sampling_probability": 0.01}),
    "little laplace": lambda i: (laplace(0.001 + i * 1e-7), {"kind": "full"}),
    "laplace with replacement": lambda i: (
        laplace(3 + i * 1e-4), {"kind": "with_replacement", "batch_size": 6000}),
    "randomized response": lambda i: (
        {"kind": "randomized_response", "probability_of_truth": 0.5, "categories": 2 + i},
        {"kind": "poisson", "sampling_probability": 0.1}),
    "shuffled randomized response": lambda i: (
        {"kind": "randomized_response", "probability_of_truth": 0.3, "categories": 2 + i},
        {"kind": "shuffle", "batch_size": 1, "reshuffle": "each_pass", "steps_per_pass": 60000}),
    "black boxes": lambda i: (
        {"kind": "approximate_dp", "epsilon": 0.01 + i * 1e-6, "delta": 1e-9},
        {"kind": "poisson", "sampling_probability": 0.1}),
    "zcdp": lambda i: (
        {"kind": "zcdp", "rho": 0.001 + i * 1e-8},
        {"kind": "poisson", "sampling_probability": 0.1}),
}  # fmt: skip


def event(scheme: str, number: int, *, steps: int = 1, first_step: int | None = None) -> Json:
    """Steps of a scheme."""
    mechanism, sampling = SCHEMES[scheme](number)
    found: Json = {"steps": steps, "mechanism": mechanism, "sampling": sampling}
    return found if first_step is None else {"first_step": first_step, **found}


def different(scheme: str, count: int, *, steps: int = 1) -> list[Json]:
    """Events of a scheme, all different, one after another."""
    return [event(scheme, i, steps=steps, first_step=i * steps) for i in range(count)]


def lines(found: list[Json]) -> str:
    """The same as lines."""
    return "".join(json.dumps(one) + "\n" for one in found)


def dataset(name: str = "data", **given: Any) -> Step:
    """A dataset."""
    base = {
        "name": name, "dataset_size": SIZE, "neighboring_relation": "add_or_remove_one",
        "privacy_unit": "row", "accept": ACCEPT,
    }  # fmt: skip
    return "/v1/datasets", base | given


def run(name: str = "run", **given: Any) -> Step:
    """A run."""
    return "/v1/runs", {"name": name, "writer": WRITER, "dataset": "data", "delta": DELTA} | given


def plan(name: str, events: list[Json], **given: Any) -> Attack:
    """A question about a plan."""
    body = {
        "neighboring_relation": "add_or_remove_one", "dataset_size": SIZE, "delta": DELTA,
        "events": events, "accept": ACCEPT,
    }  # fmt: skip
    return Attack(name=f"plan: {name}", method="POST", path="/v1/plan", body=body | given)


def plans() -> Iterator[Attack]:
    """Plans of many events, of strange ones, and under strange deltas."""
    other = {"neighboring_relation": "replace_one"}
    for scheme in SCHEMES:
        yield plan(f"{EVENTS} different, {scheme}", different(scheme, EVENTS))
        yield plan(f"{EVENTS} replaced, {scheme}", different(scheme, EVENTS), **other)
        yield plan(f"12 replaced, {scheme}", different(scheme, 12, steps=10), **other)
    for scheme in DEAR:
        yield plan(f"30 different, {scheme}", different(scheme, 30, steps=100))
        yield plan(f"1e9 steps, {scheme}", [event(scheme, 0, steps=10**9)])
        yield plan(f"delta 1e-300, {scheme}", [event(scheme, 0, steps=100)], delta=1e-300)
        yield plan(f"replace_one, {scheme}", [event(scheme, 0, steps=100)], **other)
    kinds = itertools.cycle(SCHEMES)
    mixed = [event(next(kinds), i, first_step=i) for i in range(EVENTS)]
    yield plan(f"{EVENTS} different, of all kinds", mixed)


def solved() -> Iterator[Attack]:
    """Plans that leave a value open."""
    for scheme in DEAR:
        for leave, part in (("steps", None), ("noise_multiplier", "mechanism")):
            found = different(scheme, 20, steps=100)
            for one in found[-1:] if part is None else found:
                place = one if part is None else one[part]
                place.pop(leave, None)
            yield plan(f"{leave} open, {scheme}", found, epsilon=3.0, solve_for=leave)


def recorded() -> Iterator[Attack]:
    """Steps sent to a run, and what is asked of it then."""
    empty = (dataset(budget=BUDGET), run())
    for scheme in SCHEMES:
        yield _events(f"{LINES} lines, {scheme}", lines(different(scheme, LINES)), empty)
    for scheme in DEAR:
        body = {"events": different(scheme, EVENTS), "mode": "charge"}
        yield _events(f"a charge of {EVENTS}, {scheme}", body, empty)
        sent = (*empty, ("/v1/runs/run/events", lines(different(scheme, EVENTS))))
        for path in READ:
            yield Attack(name=f"GET {path}, {scheme}", method="GET", path=path, before=sent)
    many = (*empty, ("/v1/runs/run/events", lines(different("poisson", LINES))))
    for path in READ:
        yield Attack(name=f"GET {path}, {LINES} of poisson", method="GET", path=path, before=many)


def registered() -> Iterator[Attack]:
    """What is registered with much in it."""
    for scheme in DEAR:
        for count in (30, EVENTS):
            body = run(plan=different(scheme, count, steps=1000), budget=BUDGET)[1]
            name = f"a plan that holds a budget, {count} of {scheme}"
            yield Attack(name=name, method="POST", path="/v1/runs", body=body, before=(dataset(),))
        opening = dataset(opening_balance=different(scheme, EVENTS), budget=BUDGET)[1]
        name = f"an opening balance, {EVENTS} of {scheme}"
        yield Attack(name=name, method="POST", path="/v1/datasets", body=opening)
        yield Attack(
            name=f"remedies, {EVENTS} of {scheme}", method="POST",
            path="/v1/datasets/data/explain", body={"events": different(scheme, EVENTS)},
            before=(dataset(budget=BUDGET), run()),
        )  # fmt: skip


def large() -> Iterator[Attack]:
    """Bodies as large as they may be, and numbers as long."""
    there = (dataset(), run())
    for name, body in (
        ("100,000 brackets", "[" * 100_000),
        ("brackets to the limit", "[" * BODY),
        ("objects to the limit", '{"a":' * (BODY // 5)),
        ("a number to the limit", "1" * BODY),
        ("an exponent to the limit", "1e" + "9" * (BODY - 2)),
        ("a text to the limit", '"' + "a" * (BODY - 2) + '"'),
        ("escapes to the limit", '"' + "\\u00e9" * (BODY // 6 - 1) + '"'),
        ("keys to the limit", "{" + ",".join(f'"{i:07}":0' for i in range(BODY // 13)) + "}"),
        ("numbers to the limit", "[" + "0," * (BODY // 2 - 2) + "0]"),
        ("line ends to the limit", "\n" * BODY),
    ):
        yield _events(f"a line: {name}", body, there)
    labels = {f"label-{i}": "x" * 200 for i in range(64)}
    yield Attack(name="large labels", method="POST", path="/v1/runs",
                 body=run(labels=labels)[1], before=(dataset(),))  # fmt: skip


def _events(name: str, body: Any, before: tuple[Step, ...]) -> Attack:
    return Attack(name=name, method="POST", path="/v1/runs/run/events", body=body, before=before)


def attacks() -> Iterator[Attack]:
    """All of them."""
    yield from plans()
    yield from solved()
    yield from recorded()
    yield from registered()
    yield from large()
