"""Steps that wait to be sent, run-length encoded."""

import json
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

from dpledger_client.schemas import event

STEPS_MAX: Final = 10**9  # of one event, by the contract


def content_of(mechanism: Mapping[str, Any], sampling: Mapping[str, Any]) -> str:
    """What a step was, as text: equal for equal steps, and safe from later changes to the dicts.

    Raises:
        TypeError: something is not JSON.
        ValueError: a number is NaN or infinite.
    """
    content = {"mechanism": dict(mechanism), "sampling": dict(sampling)}
    return json.dumps(content, sort_keys=True, allow_nan=False)


class Span(NamedTuple):
    """Equal steps in a row. A tuple, because one is made at every step."""

    first_step: int
    steps: int  # >= 1
    content: str

    @property
    def end(self) -> int:
        """The first step after the span."""
        return self.first_step + self.steps

    def takes(self, content: str, steps: int) -> bool:
        """Whether it can grow by so many steps."""
        return content == self.content and self.steps + steps <= STEPS_MAX

    def event(self) -> dict[str, Any]:
        """The wire form."""
        return event(first_step=self.first_step, steps=self.steps, **json.loads(self.content))


class Buffer:
    """The steps of a branch from the first one that waits. Its owner holds a lock around it.

    Each change is one assignment: an interrupt from the keyboard finds it made, or not made.
    """

    def __init__(self, next_step: int) -> None:
        self._dropped = next_step  # steps below it do not wait any more
        self._spans: deque[Span] = deque()

    @property
    def first_step(self) -> int:
        """The first step that waits; `next_step` when none does."""
        return self._spans[0].first_step if self._spans else self._dropped

    @property
    def next_step(self) -> int:
        """The number the next appended step gets."""
        return self._spans[-1].end if self._spans else self._dropped

    def append(self, content: str, steps: int) -> int:
        """Number and keep some equal steps; adjacent equal ones become one span.

        Returns:
            How many steps wait now.
        """
        spans = self._spans
        last = spans[-1] if spans else None
        if last is not None and last.takes(content, steps):
            spans[-1] = Span(last.first_step, last.steps + steps, content)
        else:
            spans.append(Span(self.next_step, steps, content))
        return spans[-1].end - spans[0].first_step

    def first(self, spans_max: int) -> list[Span]:
        """The first spans that wait."""
        return list(islice(self._spans, spans_max))

    def drop(self, *, before: int) -> None:
        """Forget the steps below a number; a span that grew meanwhile keeps its rest."""
        while self._spans and self._spans[0].end <= before:
            self._dropped = self._spans[0].end
            self._spans.popleft()
        if self._spans and self._spans[0].first_step < before:
            grown = self._spans[0]
            self._spans[0] = Span(before, grown.end - before, grown.content)
