"""A service in memory: it counts and reserves steps as the contract says; it fails when told to."""

import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock
from typing import Any

import httpx

Fault = Callable[[Callable[[], httpx.Response]], httpx.Response]
Place = tuple[str, str]  # a run and its branch


def problem(slug: str, status: int, **extra: Any) -> httpx.Response:
    document = {"type": f"/problems/{slug}", "title": f"Title of {slug}", "detail": "why", **extra}
    return httpx.Response(status, json=document)


def busy(answer: Callable[[], httpx.Response]) -> httpx.Response:
    """503, and nothing is applied."""
    return problem("unavailable", 503)


def lost_reply(answer: Callable[[], httpx.Response]) -> httpx.Response:
    """The request takes effect, but its answer never arrives."""
    answer()
    raise httpx.ReadError("reset")


def unreachable(answer: Callable[[], httpx.Response]) -> httpx.Response:
    """The request never arrives."""
    raise httpx.ConnectError("refused")


def answered(answer: Callable[[], httpx.Response]) -> httpx.Response:
    """No fault."""
    return answer()


def answering(response: httpx.Response) -> Fault:
    """This answer instead, and nothing is applied."""
    return lambda answer: response


@dataclass
class Reservation:
    """Steps that were admitted ahead."""

    place: Place
    request: dict[str, Any]
    content: str
    first_step: int
    steps: int
    end: int
    state: str = "open"


class FakeService:
    """One dataset's worth of runs. `faults` are used up, one a request."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.faulty = ""  # what the paths end with on which faults happen
        self.away = False  # nothing arrives
        self.requests: list[httpx.Request] = []
        self.writers: dict[Place, str] = {}
        self.steps: dict[Place, list[str]] = {}  # the content of each step of a branch
        self.from_step: dict[Place, int] = {}
        self.states: dict[str, str] = {}
        self.reservations: dict[str, Reservation] = {}
        self.findings: list[dict[str, Any]] = []
        self.releases: list[tuple[str, str, int]] = []
        self.modes: list[str] = []
        self.on_plan = False
        self.steps_max = 10**9  # of the budget, recorded and held
        self.guarantee: dict[str, Any] | None = {"epsilon": 1.5, "delta": 1e-5}
        self.most_at_once = 0  # requests in flight
        self._in_flight = 0
        self._lock = RLock()

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    def bodies(self, ending: str) -> list[dict[str, Any]]:
        """The bodies sent to paths with this ending."""
        sent = [each.content for each in self.requests if each.url.path.endswith(ending)]
        return [json.loads(content) for content in sent if content]

    @property
    def recorded(self) -> int:
        """Steps, over all branches."""
        return sum(len(steps) for steps in self.steps.values())

    @property
    def held(self) -> int:
        """Steps that are reserved and not recorded."""
        return sum(max(0, one.end - self._from(one)) for one in self._open())

    @property
    def spent(self) -> int:
        """What counts against the budget."""
        return self.recorded + self.held

    def contents(self, branch: str = "main", run: str = "run") -> list[Any]:
        """What each step of a branch was: its mechanism and its sampling."""
        return [json.loads(content) for content in self.steps[run, branch]]

    def void(self, name: str) -> None:
        """An admin returns what a reservation holds."""
        self.reservations[name].state = "voided"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if "/checkpoint" in request.url.path:  # a service from before there were logs
            return problem("not-found", 404)
        with self._lock:
            self._in_flight += 1
            self.most_at_once = max(self.most_at_once, self._in_flight)
        time.sleep(0.0002)  # long enough for another thread to come in
        with self._lock:
            self._in_flight -= 1
            if self.away:
                raise httpx.ConnectError("refused")
            self.requests.append(request)
            if self.faults and request.url.path.endswith(self.faulty):
                return self.faults.popleft()(lambda: self._answer(request))
            return self._answer(request)

    def _open(self) -> list[Reservation]:
        return [one for one in self.reservations.values() if one.state != "voided"]

    def _open_of(self, place: Place) -> list[Reservation]:
        next_step = self._next_step(place)
        return [
            one
            for one in self._open()
            if one.place == place and one.first_step + one.steps > next_step
        ]

    def _from(self, one: Reservation) -> int:
        return max(one.first_step, self._next_step(one.place))

    def _next_step(self, place: Place) -> int:
        return self.from_step[place] + len(self.steps[place])

    def _reserved_to(self, place: Place) -> int:
        ends = [one.end for one in self._open() if one.place == place and one.end > one.first_step]
        return max([self._next_step(place), *ends])

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/")
        if request.method == "GET":
            return self._read(path, dict(request.url.params))
        body = json.loads(request.content)
        noun, _, rest = path.partition("/")
        name, _, action = rest.replace(":", "/").partition("/")
        if noun == "reservations":
            return self._release(name, body["last_step"])
        if noun == "runs" and not name:
            return self._register((body["name"], "main"), body["writer"], 0)
        if noun != "runs" or (name, "main") not in self.writers:
            return problem("not-found", 404)
        if action == "branches":
            return self._branch(name, body)
        if action == "finish":
            self.states[name] = body["state"]
            return httpx.Response(200, json={"name": name, "state": body["state"]})
        place = (name, body["branch"])
        if place not in self.writers:
            return problem("not-found", 404)
        act = {
            "events": self._append, "reservations": self._reserve,
            "findings": self._find, "releases": self._show,
        }[action]  # fmt: skip
        return act(place, body)

    def _read(self, path: str, query: dict[str, str]) -> httpx.Response:
        noun, _, rest = path.partition("/")
        if noun == "datasets" and "/" not in rest:
            return httpx.Response(200, json={"name": rest, "dataset_size": 1000})
        if noun == "runs" and "/" not in rest and (rest, "main") not in self.writers:
            return problem("not-found", 404)
        of_run = {"on_plan": self.on_plan, "state": self.states.get(rest, "active")}
        return httpx.Response(200, json={"epsilon": 2.0, "query": query, **of_run})

    def _register(self, place: Place, writer: str, from_step: int) -> httpx.Response:
        if self.writers.setdefault(place, writer) != writer:
            return problem("run-exists" if place[1] == "main" else "branch-exists", 409)
        self.steps.setdefault(place, [])
        self.from_step[place] = from_step
        return httpx.Response(201, json={"name": place[0], "on_plan": self.on_plan})

    def _branch(self, run: str, body: dict[str, Any]) -> httpx.Response:
        parent = (run, body.get("from_branch", "main"))
        if parent not in self.writers:
            return problem("not-found", 404)
        if not self.from_step[parent] <= body["from_step"] <= self._next_step(parent):
            return problem("out-of-sequence", 409, expected_step=self._next_step(parent))
        if run in self.states:
            self.states[run] = "active"
        return self._register((run, body["name"]), body["writer"], body["from_step"])

    def _reserve(self, place: Place, body: dict[str, Any]) -> httpx.Response:
        known = self.reservations.get(body["name"])
        if known is not None:
            same = known.request == body
            return httpx.Response(200, json={}) if same else problem("conflict", 409)
        events = _events(body)
        first, ends = events[0]["first_step"], [one["first_step"] + one["steps"] for one in events]
        follow = all(one["first_step"] == end for one, end in zip(events[1:], ends, strict=False))
        if first != self._reserved_to(place) or not follow:
            return problem("out-of-sequence", 409, expected_step=self._reserved_to(place))
        next_step = self._next_step(place)
        held = [event for one in self._open_of(place) for event in _events(one.request)]
        ahead = [one for one in held if one["first_step"] + one["steps"] > next_step]
        if len(ahead) + len(events) > 256:  # as the service counts, event by event
            return problem("conflict", 409)
        fits, steps = self.steps_max - self.spent, ends[-1] - first
        if steps > fits:
            return problem(
                "budget-exhausted", 409, failing_scopes=[], admissible_steps=max(0, fits)
            )
        content = json.dumps([_content(one) for one in events])
        self.reservations[body["name"]] = Reservation(
            place, body, content, first, steps, first + steps
        )
        return httpx.Response(201, json={})

    def _release(self, name: str, last_step: int) -> httpx.Response:
        one = self.reservations.get(name)
        if one is None:
            return problem("not-found", 404)
        end = max(one.first_step, min(last_step + 1, one.first_step + one.steps))
        recorded = min(self._next_step(one.place), one.first_step + one.steps)
        if one.state == "voided" or last_step + 1 < recorded or end > one.end:
            return problem("conflict", 409)
        one.end, one.state = end, "released"
        return httpx.Response(200, json={})

    def _find(self, place: Place, body: dict[str, Any]) -> httpx.Response:
        self.findings.append(body)
        return httpx.Response(201, json={})

    def _show(self, place: Place, body: dict[str, Any]) -> httpx.Response:
        if not self.from_step[place] <= body["step"] < self._next_step(place):
            return problem("out-of-sequence", 409, expected_step=self._next_step(place))
        self.releases.append((*place, body["step"]))
        return httpx.Response(201, json={})

    def _append(self, place: Place, body: dict[str, Any]) -> httpx.Response:
        recorded, start = self.steps[place], self.from_step[place]
        after = list(recorded)
        for event in body["events"]:
            first = event["first_step"] - start
            for step in range(first, first + event["steps"]):
                if step > len(after):
                    return problem("out-of-sequence", 409, expected_step=start + len(after))
                if step < len(after) and after[step] != _content(event):
                    return problem("conflict", 409)
                if step == len(after):
                    after.append(_content(event))
        new = len(after) - len(recorded)
        fits = self.steps_max - self.spent
        if body["mode"] == "charge" and new > fits:
            scopes = [{"scope": "dataset:letters"}]
            return problem(
                "budget-exhausted", 409, failing_scopes=scopes, admissible_steps=max(0, fits)
            )
        self.modes.append(body["mode"])
        self.steps[place] = after
        reply = {
            "accepted": new,
            "next_step": start + len(after),
            "verdict": "within" if self.spent <= self.steps_max else "overdraft",
            "guarantee": self.guarantee,
            "budget": {"remaining": 0.5},
        }
        return httpx.Response(201 if new else 200, json=reply)


def _events(request: dict[str, Any]) -> list[dict[str, Any]]:
    return [request["event"]] if "event" in request else list(request["events"])


def _content(event: dict[str, Any]) -> str:
    return json.dumps([event["mechanism"], event["sampling"]], sort_keys=True)
