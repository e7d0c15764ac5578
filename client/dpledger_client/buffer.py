"""Steps that wait to be sent, run-length encoded."""

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dpledger_client.wire import event


def content_of(mechanism: Mapping[str, Any], sampling: Mapping[str, Any]) -> str:
    """What a step was, as text: equal for equal steps, and safe from later changes to the dicts.

    Raises:
        TypeError: something is not JSON.
        ValueError: a number is NaN or infinite.
    """
    content = {"mechanism": dict(mechanism), "sampling": dict(sampling)}
    return json.dumps(content, sort_keys=True, allow_nan=False)


@dataclass(frozen=True, slots=True)
class Span:
    """Equal steps in a row."""

    first_step: int
    steps: int  # >= 1
    content: str

    @property
    def end(self) -> int:
        """The first step after the span."""
        return self.first_step + self.steps

    def event(self) -> dict[str, Any]:
        """The wire form."""
        return event(first_step=self.first_step, steps=self.steps, **json.loads(self.content))


class Buffer:
    """The steps of a branch from the first one that waits. Its owner holds a lock around it."""

    def __init__(self, next_step: int) -> None:
        self.next_step = next_step  # the number the next appended step gets
        self._spans: deque[Span] = deque()

    @property
    def first_step(self) -> int:
        """The first step that waits; `next_step` when none does."""
        return self._spans[0].first_step if self._spans else self.next_step

    def append(self, content: str, steps: int) -> None:
        """Number and keep some equal steps; adjacent equal ones become one span."""
        if self._spans and self._spans[-1].content == content:
            last = self._spans.pop()
            self._spans.append(Span(last.first_step, last.steps + steps, content))
        else:
            self._spans.append(Span(self.next_step, steps, content))
        self.next_step += steps

    def first(self, spans_max: int) -> list[Span]:
        """The first spans that wait."""
        return list(islice(self._spans, spans_max))

    def drop(self, *, before: int) -> None:
        """Forget the steps below a number; a span that grew meanwhile keeps its rest."""
        while self._spans and self._spans[0].end <= before:
            self._spans.popleft()
        if self._spans and self._spans[0].first_step < before:
            grown = self._spans.popleft()
            self._spans.appendleft(Span(before, grown.end - before, grown.content))
