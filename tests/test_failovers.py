"""What the campaign on the loss of the primary counts, and what it is asked for."""

from collections import Counter

import pytest

from benchmarks.failovers.__main__ import options
from benchmarks.failovers.causes import CAUSES
from benchmarks.failovers.counting import (
    HEAD,
    Tally,
    Told,
    is_right,
    longest_silence,
    over_limit,
    table,
    wrongs_of,
)


@pytest.mark.parametrize(
    ("acknowledged", "sent", "spans", "lost", "doubled"),
    [
        (3, 3, [(0, 1), (1, 1), (2, 1)], 0, 0),
        (3, 4, [(0, 2), (2, 2)], 0, 0),  # the last one is recorded, and its answer was lost
        (3, 3, [(0, 1), (2, 1)], 1, 0),  # one in the middle
        (3, 3, [], 3, 0),
        (2, 2, [(0, 2), (1, 1)], 0, 1),
        (2, 2, [(0, 3)], 0, 1),  # that was never sent
        (2, 2, [(0, 1), (0, 1)], 1, 1),  # as many entries as there should be
        (0, 0, [], 0, 0),
    ],
)
def test_steps_are_counted_one_by_one(
    acknowledged: int, sent: int, spans: list[tuple[int, int]], lost: int, doubled: int
) -> None:
    found = wrongs_of(Told("run", acknowledged, sent), spans)
    assert (found["lost"], found["doubled"]) == (lost, doubled)


def test_a_limit_is_kept_up_to_its_last_step() -> None:
    assert over_limit(40, 40) == Counter()
    assert over_limit(43, 40) == Counter({"over a limit": 3})


def test_the_longest_silence_includes_both_ends() -> None:
    assert longest_silence([], 1.0, 4.0) == 3.0
    assert longest_silence([0.0, 1.5, 3.5, 9.0], 1.0, 4.0) == 2.0
    assert longest_silence([3.75], 1.0, 4.0) == 2.75


def tally(fault: str, **given: object) -> Tally:
    found = Tally(fault, "direct", tries=1, acknowledged=10, silences=[2.0])
    for name, value in given.items():
        setattr(found, name, value)
    return found


def test_the_table_has_a_line_for_each_fault_that_was_tried_and_one_for_all() -> None:
    answers: Counter[int | str] = Counter({201: 20, 503: 4, "none": 1})
    first = tally("one", answers=answers, silences=[1.0, 2.0, 6.0], tries=3)
    second = tally("two", wrong=Counter(lost=2), stuck=1)
    lines = [line.split() for line in table([first, second, Tally("none", "direct")])]
    assert len(lines[0]) == len(" ".join(HEAD).split())
    assert lines[1:] == [
        ["one", "direct", "3", "10", "4", "1", "0", "0", "0", "0", "0", "2.0", "6.0"],
        ["two", "direct", "1", "10", "0", "0", "2", "0", "0", "0", "1", "2.0", "2.0"],
        ["all", "4", "20", "4", "1", "2", "0", "0", "0", "1", "2.0", "6.0"],
    ]


def test_nothing_may_be_wrong_and_no_trainer_stuck() -> None:
    assert is_right([tally("one"), tally("two")])
    assert not is_right([tally("one"), tally("two", stuck=1)])
    assert not is_right([tally("one", wrong=Counter(doubled=1))])


def test_a_campaign_loses_a_hundred_primaries_in_every_way_unless_told_otherwise() -> None:
    asked = options([])
    assert (asked.tries, asked.only, asked.through, asked.strict) == (100, None, None, False)
    assert options(["--only", "cut off", "--tries", "3"]).only == "cut off"
    assert len({cause.name for cause in CAUSES}) == len(CAUSES) == 5


@pytest.mark.parametrize(
    "words", [["--tries", "0"], ["--minutes", "0"], ["--only", "boredom"], ["--through", "air"]]
)
def test_what_cannot_be_meant_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(words)
    assert ended.value.code == 2
