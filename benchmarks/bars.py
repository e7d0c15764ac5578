"""Numbers that must be reached, printed beside what was."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """A number that must be reached."""

    what: str
    reached: float | None  # None where it was not measured
    holds: Callable[[float], bool]
    bar: str
    form: str = "{:.2f}"


def at_least(what: str, reached: float | None, bar: float, form: str = "{:.2f}") -> Bar:
    """A bar from below."""
    return Bar(what, reached, lambda value: value >= bar, ">= " + form.format(bar), form)


def at_most(what: str, reached: float | None, bar: float, form: str = "{:.2f}") -> Bar:
    """A bar from above."""
    return Bar(what, reached, lambda value: value <= bar, "<= " + form.format(bar), form)


def print_bars(bars: list[Bar]) -> bool:
    """One line for each bar; whether all that were measured hold."""
    print(f"\n{'':<58} {'bar':>12} {'reached':>12}")
    verdicts = []
    for bar in bars:
        if bar.reached is None:
            print(f"{bar.what:<58} {bar.bar:>12} {'not measured':>12}")
            continue
        verdicts.append(bar.holds(bar.reached))
        shown = bar.form.format(bar.reached)
        print(f"{bar.what:<58} {bar.bar:>12} {shown:>12} {'' if verdicts[-1] else '  NOT REACHED'}")
    return all(verdicts)
