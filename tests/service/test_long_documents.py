"""Long documents are encoded in parts, to the same bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.schemas import event_codec
from service.schemas.event_codec import PART, canonical, long_canonical

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    LEAVES | st.text(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=60,
)


@given(VALUES)
def test_the_text_is_that_of_the_whole(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_codec, "PART", 3)
        assert long_canonical(value) == canonical(value)


def test_what_is_no_number_is_refused_in_parts_too() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        long_canonical({"a": {"b": [0.0] * 5 * PART + [float("nan")]}})


def test_no_more_than_a_part_is_encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    longest: list[int] = []
    whole = canonical

    def noted(value: Any) -> str:
        if isinstance(value, list):
            longest.append(len(value))
        return whole(value)

    value = {"events": [{"steps": number} for number in range(10 * PART + 7)], "run": "run"}
    expected = whole(value)
    monkeypatch.setattr(event_codec, "canonical", noted)
    assert long_canonical(value) == expected
    assert max(longest) == PART
