"""Messages: strict and bounded, the same event whatever its spelling, nothing repaired."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from accounting import events as core
from accounting.guarantees import Status
from service.errors import InvalidRequestError, MalformedBodyError
from service.guarantees.plan import Plan
from service.schemas.event_codec import content_of, event_of, to_event
from service.schemas.findings import BatchSizesFinding, RankFinding, SamplingFinding
from service.schemas.ledger_document import LedgerDocument
from service.schemas.message import Delta, Wire
from service.schemas.requests import (
    EventBatch,
    Finish,
    NewBranch,
    NewDataset,
    NewRun,
    StepMessage,
    accepted_statuses,
    valid_name,
)
from service.web.strict_json import parse_json
from tests.service.samples import GAUSSIAN, Json, dataset, run

MESSAGES: list[type[Wire]] = [
    EventBatch, NewDataset, NewRun, NewBranch, Finish, Plan, LedgerDocument, SamplingFinding,
    RankFinding, BatchSizesFinding,
]  # fmt: skip
DELTA: TypeAdapter[float] = TypeAdapter(Delta)


def event_from(sampling: Json, *, mechanism: Json = GAUSSIAN, size: int | None = 100) -> core.Event:
    message = StepMessage.model_validate({"mechanism": mechanism, "sampling": sampling})
    return to_event(message, dataset_size=size, location="here")


@pytest.mark.parametrize("name", ["a", "0", "a-b_c.d", "a..b", "a" * 63])
def test_a_name_is_a_short_plain_word(name: str) -> None:
    assert valid_name(name)


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "_a", "a b", "a/b", "é", "a\n", "a" * 64])
def test_anything_else_is_no_name(name: str) -> None:
    assert not valid_name(name)
    with pytest.raises(ValidationError, match=r"must match \[a-z0-9\]\[a-z0-9._-\]\{0,62\}"):
        NewDataset.model_validate(dataset(name))


def parts(schema: Any) -> list[Any]:
    """Every object inside a schema."""
    if isinstance(schema, dict):
        return [schema] + [part for value in schema.values() for part in parts(value)]
    return [part for value in schema for part in parts(value)] if isinstance(schema, list) else []


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_number_of_a_message_is_bounded_and_no_field_is_unknown(message: type[Wire]) -> None:
    for part in parts(message.model_json_schema()):
        if part.get("type") == "object" and "properties" in part:
            assert part["additionalProperties"] is False
        if part.get("type") in ("integer", "number") and part != {"type": "number"}:
            assert {"minimum", "exclusiveMinimum"} & set(part), part
            assert {"maximum", "exclusiveMaximum"} & set(part), part


@pytest.mark.parametrize("size", ["60000", 60000.0, True])
def test_a_value_of_another_type_is_never_converted(size: object) -> None:
    with pytest.raises(ValidationError) as caught:
        NewDataset.model_validate(dataset(dataset_size=size))
    assert [fault["loc"] for fault in caught.value.errors()] == [("dataset_size",)]


def test_only_assumptions_hold_numbers_without_bounds() -> None:
    for message in MESSAGES:
        for part in parts(message.model_json_schema()):
            if {"type": "number"} in part.get("anyOf", ()):
                assert {"type": "boolean"} in part["anyOf"]


@pytest.mark.parametrize(
    ("value", "message"),
    [([None], "assumptions.a"), ([1], "assumptions.a"), ({"b": 1}, "assumptions.a"),
     (float("nan"), "assumptions.a"), (float("inf"), "assumptions.a"), ("", "assumptions.a"),
     ("x" * 201, "assumptions.a"), ("a\nb", "assumptions.a"), ("\ud800", "assumptions.a")],
)  # fmt: skip
def test_an_assumption_is_one_plain_value_and_has_one_fault(value: object, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        NewRun.model_validate(run(assumptions={"a": value, "b": True}))
    (fault,) = caught.value.errors()
    assert ".".join(map(str, fault["loc"])) == message
    assert fault["msg"] == (
        "must be true, false, null, a finite number, printable text or stages of a rate"
    )


def test_assumptions_keep_their_types() -> None:
    kept = NewRun.model_validate(run(assumptions={"a": True, "b": 1, "c": 1.5, "d": "x"}))
    assert [type(value) for value in kept.assumptions.values()] == [bool, float, float, str]


@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_a_delta_is_taken_as_it_is_however_small(delta: float) -> None:
    assert DELTA.validate_python(delta, strict=True) == delta


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.0, 2.0, float("nan"), float("inf"), "0.1", True])
def test_a_delta_lies_strictly_between_zero_and_one(delta: object) -> None:
    with pytest.raises(ValidationError):
        DELTA.validate_python(delta, strict=True)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"kind": "full"}, core.Full()),
        ({"kind": "unknown"}, core.Unknown()),
        ({"kind": "poisson", "sampling_probability": 1}, core.Poisson(sampling_probability=1.0)),
        ({"kind": "poisson", "expected_batch_size": 25}, core.Poisson(sampling_probability=0.25)),
        ({"kind": "fixed_size", "batch_size": 100},
         core.FixedSize(batch_size=100, dataset_size=100)),
        ({"kind": "cyclic", "batch_size": 30, "steps_per_pass": 4},
         core.Cyclic(batch_size=30, steps_per_pass=4)),
        ({"kind": "cyclic", "batch_size": 100, "steps_per_pass": 1},
         core.Cyclic(batch_size=100, steps_per_pass=1)),
        ({"kind": "shuffle", "batch_size": 30, "reshuffle": "once", "steps_per_pass": 3},
         core.Shuffle(batch_size=30, steps_per_pass=3, reshuffle=core.Reshuffle.ONCE,
                      dataset_size=100)),
    ],
)  # fmt: skip
def test_a_rate_is_worked_out_and_the_stored_form_is_the_same_event(
    sampling: Json, expected: core.Sampling
) -> None:
    event = event_from(sampling)
    assert event.sampling == expected
    assert event_of(content_of(event), 100) == event
    assert len(content_of(event)) <= 512


@pytest.mark.parametrize(
    ("sampling", "location"),
    [
        ({"kind": "poisson", "expected_batch_size": 100.5}, "here.sampling.expected_batch_size"),
        ({"kind": "fixed_size", "batch_size": 101}, "here.sampling.batch_size"),
        ({"kind": "cyclic", "batch_size": 101, "steps_per_pass": 1}, "here.sampling.batch_size"),
        ({"kind": "cyclic", "batch_size": 30, "steps_per_pass": 5}, "here.sampling.steps_per_pass"),
        ({"kind": "non_uniform", "max_weight": 0.0099}, "here.sampling.max_weight"),
    ],
)
def test_a_size_that_does_not_fit_the_dataset_is_named(sampling: Json, location: str) -> None:
    with pytest.raises(InvalidRequestError, match=location):
        event_from(sampling)


@pytest.mark.parametrize(
    "sampling",
    [{"kind": "poisson", "expected_batch_size": 5}, {"kind": "fixed_size", "batch_size": 5},
     {"kind": "truncated_poisson", "sampling_probability": 0.1, "max_batch_size": 5},
     {"kind": "with_replacement", "batch_size": 5}],
)  # fmt: skip
def test_a_size_of_the_dataset_that_is_needed_is_asked_for(sampling: Json) -> None:
    with pytest.raises(InvalidRequestError, match="needs a dataset_size"):
        event_from(sampling, size=None)


@pytest.mark.parametrize(
    "sampling",
    [{"kind": "cyclic", "batch_size": 10}, {"kind": "cyclic", "batch_size": 10,
     "steps_per_pass": None}, {"kind": "shuffle", "batch_size": 10, "reshuffle": "each_pass"},
     {"kind": "shuffle", "batch_size": 10, "reshuffle": "once"}],
)  # fmt: skip
def test_the_length_of_a_pass_has_no_default(sampling: Json) -> None:
    for size, told in (
        (15, r"2 for a loader that uses the last, smaller batch, 1 for one that drops it"),
        (20, r"2 for a loader that uses all records"),
        (None, r"ceil\(dataset_size / batch_size\) .* floor\(dataset_size / batch_size\)"),
    ):
        with pytest.raises(InvalidRequestError, match=r"sampling\.steps_per_pass.*" + told):
            event_from(sampling, size=size)


def test_without_a_dataset_size_a_pass_may_say_its_length() -> None:
    event = event_from({"kind": "cyclic", "batch_size": 5, "steps_per_pass": 9}, size=None)
    assert event.sampling == core.Cyclic(batch_size=5, steps_per_pass=9)
    sampling = {"kind": "shuffle", "batch_size": 5, "steps_per_pass": 9, "reshuffle": "each_pass"}
    shuffled = event_from(sampling, size=None).sampling
    assert isinstance(shuffled, core.Shuffle)
    assert (shuffled.steps_per_pass, shuffled.dataset_size) == (9, None)


SHUFFLED = {"kind": "shuffle", "reshuffle": "each_pass"}


@pytest.mark.parametrize(
    ("size", "steps", "batch", "left"),
    [(100, 9, 11, 1), (100, 3, 30, 10), (100, 4, 25, 0), (100, 4, 30, 0), (100, 1, 30, 70)],
)
def test_what_is_left_out_is_what_the_other_fields_say(
    size: int, steps: int, batch: int, left: int
) -> None:
    plain = SHUFFLED | {"batch_size": batch, "steps_per_pass": steps}
    event = event_from(plain | {"left_out": left}, size=size)
    assert event == event_from(plain, size=size)
    assert content_of(event) == content_of(event_from(plain, size=size))
    for wrong in {left + 1, max(0, left - 1), batch} - {left}:
        with pytest.raises(InvalidRequestError, match=rf"sampling\.left_out: must be {left} for"):
            event_from(plain | {"left_out": wrong}, size=size)
        assert event_from(plain | {"left_out": wrong}, size=None).sampling == core.Shuffle(
            batch_size=batch, steps_per_pass=steps, reshuffle=core.Reshuffle.EACH_PASS
        )


def test_a_message_without_what_is_left_out_has_the_bytes_that_it_had() -> None:
    plain = SHUFFLED | {"batch_size": 30, "steps_per_pass": 3}
    step = StepMessage.model_validate({"mechanism": GAUSSIAN, "sampling": plain})
    assert step.model_dump(mode="json")["sampling"] == plain


def test_the_longest_event_fits_its_column() -> None:
    sampling = {
        "kind": "shuffle",
        "batch_size": 10**12,
        "reshuffle": "each_pass",
        "steps_per_pass": 6000,
    }
    noise = {"kind": "gaussian", "noise_multiplier": 1.2345678901234567e-09}
    event = event_from(sampling | {"steps_per_pass": 1}, mechanism=noise, size=10**12)
    assert len(content_of(event)) < 256


def test_what_is_not_said_is_accepted_by_default_and_a_guess_never_is() -> None:
    assert accepted_statuses(None) == {Status.PUBLISHED, Status.DECLARED}
    assert accepted_statuses(["derived"]) == {Status.DERIVED}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "not JSON at character 0"), (b"{", "not JSON at character 1"),
        (b"[1,]", "not JSON at character 3"), (b"NaN", "not a JSON number"),
        (b"-Infinity", "not a JSON number"), (b"9" * 5000, "not a JSON number"),
        (b'{"a":1,"a":1}', "repeats a key"), (b'[{"b":{"a":1,"\\u0061":2}}]', "repeats a key"),
        (json.dumps(dict.fromkeys(map(str, range(10_001)))).encode(), "more than 10000 keys"),
        (b"\xff", "not UTF-8"), (b"\xed\xa0\x80", "not UTF-8"), (b"[" * 10**5, "nested too deeply"),
        (b"\xef\xbb\xbf1", "not JSON at character 0"), (b"'a'", "not JSON at character 0"),
    ],
)  # fmt: skip
def test_what_is_not_json_is_refused_with_its_place(text: bytes, reason: str) -> None:
    with pytest.raises(MalformedBodyError, match="^here: .*" + reason):
        parse_json(text, where="here")


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20,
))  # fmt: skip
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
