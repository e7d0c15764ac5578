"""A service in memory: it counts steps as the contract says, and fails when told to."""

import json
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any

import httpx

Fault = Callable[[Callable[[], httpx.Response]], httpx.Response]


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


def answering(response: httpx.Response) -> Fault:
    """This answer instead, and nothing is applied."""
    return lambda answer: response


class FakeService:
    """One dataset's worth of runs. `faults` are used up, one a request."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[httpx.Request] = []
        self.writers: dict[str, str] = {}
        self.steps: dict[tuple[str, str], list[str]] = {}  # the content of each step of a branch
        self.from_step: dict[tuple[str, str], int] = {}
        self.states: dict[str, str] = {}
        self.modes: list[str] = []
        self.steps_max = 10**9  # what a charge must not pass
        self.guarantee: dict[str, Any] | None = {"epsilon": 1.5, "delta": 1e-5}
        self.most_at_once = 0  # requests in flight
        self._in_flight = 0
        self._lock = Lock()

    @property
    def paths(self) -> list[str]:
        return [request.url.path for request in self.requests]

    def bodies(self, ending: str) -> list[dict[str, Any]]:
        """The bodies sent to paths with this ending."""
        sent = [each.content for each in self.requests if each.url.path.endswith(ending)]
        return [json.loads(content) for content in sent]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        with self._lock:
            self._in_flight += 1
            self.most_at_once = max(self.most_at_once, self._in_flight)
        time.sleep(0.0005)  # long enough for another thread to come in
        with self._lock:
            self._in_flight -= 1
            self.requests.append(request)
            if self.faults:
                return self.faults.popleft()(lambda: self._answer(request))
            return self._answer(request)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/runs")
        if request.method == "GET":
            return httpx.Response(200, json={"epsilon": 2.0, "query": dict(request.url.params)})
        body = json.loads(request.content)
        if path == "":
            return self._open(body["name"], "main", body["writer"], 0, "run-exists")
        name, _, action = path.removeprefix("/").replace(":", "/").partition("/")
        if action == "branches":
            start = body["from_step"]
            return self._open(name, body["name"], body["writer"], start, "branch-exists")
        if action == "finish":
            self.states[name] = body["state"]
            return httpx.Response(200, json={"name": name, "state": body["state"]})
        return self._append(name, body)

    def _open(
        self, run: str, branch: str, writer: str, from_step: int, taken: str
    ) -> httpx.Response:
        if self.writers.setdefault(f"{run}/{branch}", writer) != writer:
            return problem(taken, 409)
        self.steps.setdefault((run, branch), [])
        self.from_step[run, branch] = from_step
        return httpx.Response(201, json={"name": run, "next_step": from_step})

    def _append(self, run: str, body: dict[str, Any]) -> httpx.Response:
        branch = (run, body["branch"])
        recorded, start = self.steps[branch], self.from_step[branch]
        after = list(recorded)
        duplicates = 0
        for event in body["events"]:
            content = json.dumps([event["mechanism"], event["sampling"]], sort_keys=True)
            for step in range(
                event["first_step"] - start, event["first_step"] - start + event["steps"]
            ):
                if step > len(after):
                    return problem("out-of-sequence", 409, expected_step=start + len(after))
                if step < len(after):
                    if after[step] != content:
                        return problem("conflict", 409)
                    duplicates += 1
                else:
                    after.append(content)
        fits = self.steps_max - len(recorded)
        if body["mode"] == "charge" and len(after) - len(recorded) > fits:
            scopes = [{"scope": "dataset:letters"}]
            return problem(
                "budget-exhausted", 409, failing_scopes=scopes, admissible_steps=max(0, fits)
            )
        self.modes.append(body["mode"])
        self.steps[branch] = after
        reply = {
            "accepted": len(after) - len(recorded),
            "duplicates": duplicates,
            "next_step": start + len(after),
            "sequence": len(after),
            "verdict": "within" if len(after) <= self.steps_max else "overdraft",
            "guarantee": self.guarantee,
            "budget": {"remaining": 0.5},
        }
        return httpx.Response(201 if len(after) > len(recorded) else 200, json=reply)
