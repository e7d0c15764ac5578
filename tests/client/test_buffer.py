import pytest
from dpledger_client import full, gaussian, unknown
from dpledger_client.recording.event_buffer import STEPS_MAX, Buffer, Span, content_of
from hypothesis import given
from hypothesis import strategies as st


def test_adjacent_equal_steps_become_one_span() -> None:
    buffer = Buffer(5)
    for content in ("a", "a", "b", "a"):
        buffer.append(content, 2)
    assert buffer.first(10) == [Span(5, 4, "a"), Span(9, 2, "b"), Span(11, 2, "a")]
    assert (buffer.first_step, buffer.next_step) == (5, 13)


def test_a_span_has_no_more_steps_than_an_event_may_have() -> None:
    buffer = Buffer(0)
    for _ in range(2):
        buffer.append("a", STEPS_MAX - 1)
    buffer.append("a", 1)
    assert [span.steps for span in buffer.first(10)] == [STEPS_MAX - 1, STEPS_MAX]


def test_an_empty_buffer_begins_at_its_next_step() -> None:
    buffer = Buffer(5)
    assert (buffer.first(10), buffer.first_step) == ([], 5)


def test_a_span_that_grew_while_it_was_sent_keeps_its_rest() -> None:
    buffer = Buffer(0)
    buffer.append("a", 1)
    buffer.append("b", 3)
    sent = buffer.first(10)
    buffer.append("b", 4)
    buffer.drop(before=sent[-1].end)
    assert buffer.first(10) == [Span(4, 4, "b")]
    buffer.drop(before=8)
    assert buffer.first(10) == []


def test_content_is_equal_for_equal_steps_only() -> None:
    one, two = gaussian(noise_multiplier=1.0), gaussian(noise_multiplier=2.0)
    reordered = dict(reversed(one.items()))
    assert content_of(one, full()) == content_of(reordered, full())
    assert content_of(one, full()) != content_of(two, full())
    assert content_of(one, full()) != content_of(one, unknown())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_content_that_is_not_json_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        content_of({"kind": "gaussian", "noise_multiplier": value}, full())


def test_steps_that_were_dropped_keep_their_numbers() -> None:
    buffer = Buffer(5)
    buffer.append("a", 3)
    buffer.drop(before=8)
    assert (buffer.first_step, buffer.next_step) == (8, 8)
    buffer.append("a", 1)
    assert buffer.first(10) == [Span(8, 1, "a")]
    buffer.drop(before=3)
    assert buffer.first(10) == [Span(8, 1, "a")]
    buffer.append("b", 2)
    buffer.drop(before=10)
    assert (buffer.first(10), buffer.next_step) == ([Span(10, 1, "b")], 11)


@pytest.mark.parametrize("content", ["a", "b"])
def test_an_interrupt_within_an_append_loses_no_step_that_waited(
    monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    buffer = Buffer(0)
    buffer.append("a", 5)

    def interrupted(*given: object) -> Span:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpledger_client.recording.event_buffer.Span", interrupted)
        with pytest.raises(KeyboardInterrupt):
            buffer.append(content, 1)
        with pytest.raises(KeyboardInterrupt):
            buffer.drop(before=2)
    assert buffer.first(10) == [Span(0, 5, "a")]
    assert buffer.next_step == 5


@given(st.lists(st.tuples(st.sampled_from("abd"), st.integers(1, 5))))
def test_any_steps_and_drops_keep_what_waits(moves: list[tuple[str, int]]) -> None:
    buffer, steps, dropped = Buffer(0), "", 0
    for what, number in moves:
        if what == "d":
            dropped = min(len(steps), dropped + number)
            buffer.drop(before=dropped)
        else:
            buffer.append(what, number)
            steps += what * number
    waiting = "".join(span.content * span.steps for span in buffer.first(10**9))
    assert waiting == steps[dropped:]
    assert (buffer.first_step, buffer.next_step) == (dropped, len(steps))
