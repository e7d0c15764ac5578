"""Printed and JSON trees are read back as they were written, and nothing in them is run."""

import json
from pathlib import Path
from typing import Any

import pytest
from dpledger_client.importers import bounded_reader, dp_event, repr_parser
from dpledger_client.importers.bounded_reader import BadFile
from dpledger_client.importers.repr_parser import Call, parse
from hypothesis import given
from hypothesis import strategies as st

NUMBERS = st.integers() | st.floats(allow_nan=False)
WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True).filter(
    lambda word: word not in {"array", "inf", "nan"}
)
PLAIN = st.text(st.characters(codec="ascii", categories=("L", "N", "Zs")), max_size=9)
VALUES = st.recursive(
    NUMBERS | PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(Call, WORDS, st.dictionaries(WORDS, inner, max_size=4))
    ),
    max_leaves=20,
)
DPSGD = {
    "steps": 1000,
    "mechanism": {"kind": "gaussian", "noise_multiplier": 1.1},
    "sampling": {"kind": "poisson", "sampling_probability": 0.01},
}


def spelled(value: Any) -> str:
    """As Python prints objects whose fields have names."""
    if isinstance(value, Call):
        fields = ", ".join(f"{name}={spelled(one)}" for name, one in value.fields.items())
        return f"{value.name}({fields})"
    if isinstance(value, list):
        return f"[{', '.join(spelled(one) for one in value)}]"
    return repr(value)


def read(folder: Path, text: str, **known: Any) -> list[dict[str, Any]]:
    path = folder / "event.txt"
    path.write_text(text, encoding="utf-8")
    return dp_event.read(path, **known)


@given(VALUES)
def test_what_is_printed_is_read_back(value: Any) -> None:
    assert parse(spelled(value)) == value


@given(st.text(max_size=60) | st.text(alphabet="()[]=,'\"-1.e A\n", max_size=40))
def test_any_other_text_is_a_value_or_refused_in_one_line(text: str) -> None:
    refusal = ""
    try:
        parse(text)
    except BadFile as error:
        refusal = str(error)
    assert len(refusal.splitlines()) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01, "
        "event=GaussianDpEvent(noise_multiplier=1.1)), count=1000)",
        "ComposedDpEvent(events=[NoOpDpEvent(), SelfComposedDpEvent(event=PoissonSampledDpEvent("
        "sampling_probability=np.float64(0.01), event=dp_event.GaussianDpEvent("
        "noise_multiplier=np.float64(1.1))), count=np.int64(1_0))])".replace("1_0", "1000"),
        "_SelfComposedDpEventNamedTupleWrapper(module_name='dp_accounting.dp_event', "
        "class_name='SelfComposedDpEvent', event=_PoissonSampledDpEventNamedTupleWrapper("
        "module_name='dp_accounting.dp_event', class_name='PoissonSampledDpEvent', "
        "sampling_probability=0.01, event=_GaussianDpEventNamedTupleWrapper("
        "module_name='dp_accounting.dp_event', class_name='GaussianDpEvent', "
        "noise_multiplier=1.1)), count=1000)\n",
        json.dumps(
            {
                "class_name": "SelfComposedDpEvent",
                "count": 1000,
                "event": {
                    "class_name": "PoissonSampledDpEvent",
                    "sampling_probability": 0.01,
                    "event": {
                        "module_name": "dp_accounting.dp_event",
                        "class_name": "GaussianDpEvent",
                        "noise_multiplier": 1.1,
                    },
                },
            }
        ),
    ],
)
def test_each_spelling_of_an_event_is_the_same_event(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text) == [DPSGD]


def test_sizes_and_relations_reach_the_rules(tmp_path: Path) -> None:
    text = (
        "ComposedDpEvent(events=(SampledWithoutReplacementDpEvent(source_dataset_size=100, "
        "sample_size=5, event=GaussianDpEvent(noise_multiplier=2.0)), MixtureOfGaussiansDpEvent("
        "standard_deviation=2.0, sensitivities=array([0., 1.]), sampling_probs=[0.75, 0.25]), "
        "ZCDpEvent(rho=0.5)))"
    )
    kinds = [
        (one["mechanism"]["kind"], one["sampling"]["kind"])
        for one in read(tmp_path, text, dataset_size=100, relation="replace_special")
    ]
    assert kinds == [("gaussian", "fixed_size"), ("gaussian", "poisson"), ("zcdp", "full")]
    for known in ({"dataset_size": 100}, {"relation": "replace_special"}):
        with pytest.raises(BadFile, match=r"event\.events\[[01]\]"):
            read(tmp_path, text, **known)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=1.1", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=1.1))", "is not what Python prints"),
        ("GaussianDpEvent(1.1)", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=1.1, noise_multiplier=9.0)", "is not what Python"),
        ("GaussianDpEvent('noise_multiplier'=1.1)", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=1.1, clip=open('x'))", "is not what Python prints"),
        ("__import__('os').system('true')", "is not what Python prints"),
        ("(lambda: 1)()", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=1.1+8)", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=True)", "is not what Python prints"),
        ("GaussianDpEvent(noise_multiplier=nan)", "outside"),
        ("GaussianDpEvent(noise_multiplier=inf)", "outside"),
        ("GaussianDpEvent(noise_multiplier=1e999)", "outside"),
        (f"GaussianDpEvent(noise_multiplier={'9' * 500})", "too many digits"),
        ("WrongDpEvent(noise_multiplier=1.1)", "WrongDpEvent is no known"),
        (f"W{'x' * 99}DpEvent()", "is no known privacy event"),
        ("UnsupportedDpEvent()", "says itself"),
        ("NoOpDpEvent()", "no event that costs anything"),
        ("1.5", "is no known privacy event"),
        ("[" * 100_000, "nested too deep"),
        ("A(b=" * 100_000, "nested too deep"),
        ('{"class_name": "GaussianDpEvent", "noise_multiplier": NaN}', "not finite"),
        ('{"class_name": "GaussianDpEvent", "noise_multiplier": 1e999}', "outside"),
        (f'{{"class_name": "GaussianDpEvent", "noise_multiplier": {"9" * 5000}}}', "digits"),
        ('{"class_name": "NoOpDpEvent", "class_name": "GaussianDpEvent"}', "a key twice"),
        ('{"class_name": "os.system", "command": "true"}', "is no known privacy event"),
        ('{"class_name": 5}', "is no known privacy event"),
        ('{"class_name": "GaussianDpEvent", "module_name": "os", "noise_multiplier": 1}', "no kno"),
        ('{"noise_multiplier": 1.0}', "is no known privacy event"),
        ('{"class_name": ', "line 1, column 16: is no JSON"),
        ('{"a":' * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_event_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadFile, match=reason) as refused:
        read(tmp_path, text)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_too_large_or_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        dp_event.read(tmp_path / "missing")
    with pytest.raises(BadFile, match="cannot be read"):
        dp_event.read(tmp_path)
    with pytest.raises(BadFile, match="larger than"):
        dp_event.read("/dev/zero")
    monkeypatch.setattr(bounded_reader, "BYTES_MAX", 10)
    with pytest.raises(BadFile, match="larger than 10 bytes"):
        read(tmp_path, "NoOpDpEvent()")
    (tmp_path / "event.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(BadFile, match="not UTF-8"):
        dp_event.read(tmp_path / "event.txt")


def test_as_deep_as_allowed_is_read() -> None:
    depth = repr_parser.DEPTH_MAX
    value = parse("[" * depth + "1" + "]" * depth)
    for _ in range(depth):
        [value] = value
    assert value == 1
