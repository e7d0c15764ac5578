"""What a run's plan says of each step, so that leases hold steps of different kinds ahead."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dpledger_client.recording.event_buffer import Span, content_of

EVENTS_MAX: Final = 96  # of one lease: a branch holds 256, and the next comes at half


class Schedule:
    """Spans of equal steps that follow one another; empty without a plan.

    Args:
        plan: events, each made by `event(...)`; None without one.
    """

    def __init__(self, plan: Sequence[Mapping[str, Any]] | None) -> None:
        self._spans: list[Span] = []
        end = 0
        for event in plan or ():
            first = event.get("first_step")
            first = end if first is None else int(first)
            content = content_of(event["mechanism"], event["sampling"])
            self._spans.append(Span(first, int(event["steps"]), content))
            end = first + int(event["steps"])
        self._starts = [span.first_step for span in self._spans]

    def says(self, content: str, first_step: int, steps: int) -> bool:
        """Whether all of some steps are planned to be of this kind."""
        found = self.after(first_step, steps)
        planned = sum(span.steps for span in found) == steps
        return planned and all(span.content == content for span in found)

    def after(self, first_step: int, steps: int) -> list[Span]:
        """What is planned from a step on: at most so many steps, without a gap, for one lease."""
        found: list[Span] = []
        at, end = max(0, bisect_right(self._starts, first_step) - 1), first_step + steps
        for span in self._spans[at : at + EVENTS_MAX]:
            begin, stop = max(span.first_step, first_step), min(span.end, end)
            if begin != first_step or begin >= stop:
                break
            found.append(Span(begin, stop - begin, span.content))
            first_step = stop
        return found
