"""Tables and histories: each row is an event, and a bad one is named by its place."""

import csv as stdlib
import json
import pickle
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client.importers import bounded_reader, csv, opacus, samplings
from dpledger_client.importers.bounded_reader import BadFile
from dpledger_client.importers.flower import State, read, read_state
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROWS = st.lists(
    st.tuples(st.floats(1e-9, 1e9), st.floats(1e-12, 1.0), st.integers(1, 10**9)),
    min_size=1,
    max_size=20,
)
SHUFFLE = dp.shuffle(batch_size=256, steps_per_pass=235)


def event(noise: float, rate: float, steps: int) -> dict[str, Any]:
    return dp.event(
        mechanism=dp.gaussian(noise_multiplier=noise),
        sampling=dp.poisson(sampling_probability=rate),
        steps=steps,
    )


def file(folder: Path, text: str, name: str = "history") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def table(folder: Path, *rows: str, header: str = "noise_multiplier,sample_rate,steps") -> Path:
    return file(folder, "\n".join((header, *rows)) + "\n")


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_table_is_read_as_it_was_written(
    tmp_path: Path, rows: list[tuple[float, float, int]]
) -> None:
    with (tmp_path / "table").open("w", newline="") as out:
        writer = stdlib.writer(out)
        writer.writerow(["steps", "noise_multiplier", "sampling_probability"])
        writer.writerows([steps, noise, rate] for noise, rate, steps in rows)
    assert csv.read(tmp_path / "table") == [event(*row) for row in rows]


@given(ROWS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_history_is_read_as_it_was_written(
    tmp_path: Path, rows: list[tuple[float, float, int]]
) -> None:
    state = {"history": rows, "mechanism": "rdp"}
    for content in (state, {"privacy_accountant_state_dict": state, "epoch": 3}):
        path = file(tmp_path, json.dumps(content))
        assert opacus.read(path) == [event(*row) for row in rows]


def test_spaces_a_byte_order_mark_and_windows_lines_are_no_fault(tmp_path: Path) -> None:
    text = "\ufeffnoise_multiplier, sample_rate, steps\r\n 1.1, 0.5, 10\r\n"
    assert csv.read(file(tmp_path, text)) == [event(1.1, 0.5, 10)]


def test_a_run_without_noise_is_told_as_such(tmp_path: Path) -> None:
    [found] = csv.read(table(tmp_path, "0.0,0.5,10"))
    assert found["mechanism"] == dp.no_noise()


def test_the_sampling_that_is_told_takes_the_place_of_the_rates(tmp_path: Path) -> None:
    [found] = csv.read(table(tmp_path, "1.1,0.5,10"), sampling=SHUFFLE)
    assert (found["sampling"], found["steps"]) == (SHUFFLE, 10)
    path = file(tmp_path, json.dumps({"history": [[1.1, 0.5, 10]], "mechanism": "prv"}))
    [found] = opacus.read(path, sampling=SHUFFLE)
    assert found["sampling"] == SHUFFLE


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("-1,0.5,10", "noise_multiplier: must be a number in"),
        ("1e-10,0.5,10", "noise_multiplier: must be a number in"),
        ("nan,0.5,10", "noise_multiplier: must be a number in"),
        ("inf,0.5,10", "noise_multiplier: must be a number in"),
        ("1_0,0.5,10", "noise_multiplier: must be a number in"),
        (",0.5,10", "noise_multiplier: must be a number in"),
        (f"{'1' * 500},0.5,10", "noise_multiplier: must be a number in"),
        ("1.1,0,10", r"sample_rate: must be a number in \[1e-12, 1\]"),
        ("1.1,1.5,10", "sample_rate: must be a number in"),
        ("1.1,nan,10", "sample_rate: must be a number in"),
        ("1.1,half,10", "sample_rate: must be a number in"),
        ("1.1,0.5,0", r"steps: must be a whole number in \[1, 1000000000\]"),
        ("1.1,0.5,-5", "steps: must be a whole number"),
        ("1.1,0.5,2.5", "steps: must be a whole number"),
        ("1.1,0.5,1e3", "steps: must be a whole number"),
        ("1.1,0.5,\u0661", "steps: must be a whole number"),
        (f"1.1,0.5,{'9' * 5000}", "steps: must be a whole number"),
        ("1.1,0.5,1000000001", "steps: must be a whole number"),
        ("1.1,0.5", "has 2 fields, the header 3"),
        ("1.1,0.5,10,5", "has 4 fields, the header 3"),
        ("", "has 0 fields, the header 3"),
        ('1.1,0.5,"10" 0', "is no CSV"),
        ('1.1,0.5,"10', "is no CSV"),
        # Which of the two depends on the csv module's limit, which other libraries set.
        (f"1.1,0.5,{'9' * 200_000}", "(is no CSV|steps: must be a whole number)"),
    ],
)
def test_a_bad_row_is_named_by_its_line_and_field(tmp_path: Path, row: str, reason: str) -> None:
    with pytest.raises(BadFile, match=rf"line 3.*{reason}") as refused:
        csv.read(table(tmp_path, "1.1,0.5,10", row))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "header",
    [
        "noise_multiplier,sample_rate", "noise_multiplier,sample_rate,steps,clip", "1.1,0.5,10",
        "noise_multiplier,sample_rate,sampling_probability,steps", "",
        "noise_multiplier,steps,steps",
    ],
)  # fmt: skip
def test_another_header_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(BadFile, match="line 1: must name"):
        csv.read(table(tmp_path, "1.1,0.5,10", header=header))


def test_a_table_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadFile, match="no rows"):
        csv.read(table(tmp_path))
    monkeypatch.setattr(csv, "ROWS_MAX", 3)
    assert len(csv.read(table(tmp_path, *["1.1,0.5,10"] * 3))) == 3
    with pytest.raises(BadFile, match="line 5: the table has more than 3 rows"):
        csv.read(table(tmp_path, *["1.1,0.5,10"] * 4))
    with pytest.raises(BadFile, match="larger than"):
        csv.read("/dev/zero")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"history": []}, "no privacy_accountant_state_dict"),
        ({"mechanism": "rdp"}, "no privacy_accountant_state_dict"),
        ([], "no privacy_accountant_state_dict"),
        ({"history": [], "mechanism": "rdp"}, "history: is empty"),
        ({"history": {}, "mechanism": "rdp"}, "history: must be a list"),
        ({"history": [[1, 1, 1]], "mechanism": "rdp", "clip": 1}, "and nothing else"),
        ({"history": [[1.1, 0.5, 10], [1.1, 0.5]], "mechanism": "rdp"}, r"history\[1\]: must be"),
        ({"history": [[1.1, 0.5, True]], "mechanism": "rdp"}, r"history\[0\], steps"),
        ({"history": [[1.1, 0.5, 2.0]], "mechanism": "rdp"}, r"history\[0\], steps"),
        ({"history": [[1.1, 4.0, 2]], "mechanism": "rdp"}, r"history\[0\], sample_rate"),
        ({"history": [[10**400, 0.5, 2]], "mechanism": "rdp"}, r"history\[0\], noise_multiplier"),
        ({"history": [[True, 0.5, 2]], "mechanism": "rdp"}, r"history\[0\], noise_multiplier"),
        ({"history": [["1", 0.5, 2]], "mechanism": "rdp"}, r"history\[0\], noise_multiplier"),
    ],
)
def test_a_bad_history_is_named_by_its_place(tmp_path: Path, state: Any, reason: str) -> None:
    with pytest.raises(BadFile, match=reason):
        opacus.read(file(tmp_path, json.dumps(state)))


def test_a_history_of_too_many_rows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_reader, "ROWS_MAX", 3)
    path = file(tmp_path, json.dumps({"history": [[1.1, 0.5, 2]] * 4, "mechanism": "rdp"}))
    with pytest.raises(BadFile, match="history: has more than 3 rows"):
        opacus.read(path)


class Trap:
    """What runs when it is read as a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("magic", [b"", b"PK\x03\x04"])
def test_a_pickle_is_not_run(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(magic + pickle.dumps({"history": Trap(tmp_path / "run")}))
    with pytest.raises(BadFile, match=r"checkpoint.*JSON"):
        opacus.read(path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(BadFile, match="cannot be read"):
        opacus.read(tmp_path)


def flower(**changed: Any) -> dict[str, Any]:
    config = {
        "target_delta": 1e-5,
        "population_size": 100,
        "neighboring_relation": "add-or-remove-one",
        "sampling_method": "no-amplification",
        "max_epsilon": None,
    }
    one = {"noise_multiplier": 1.1, "sample_size": 10, "population_size": 100}
    state = {
        "schema_version": 1,
        "backend": "rdp",
        "config": config,
        "orders": [2.0, 3.0],
        "compositions": [{"event": one, "count": 7}],
    }
    for place, value in changed.items():
        *path, last = place.split("__")
        inner: Any = state
        for step in path:
            inner = inner[int(step) if step.isdigit() else step]
        inner[last] = value
    return state


def read_flower(folder: Path, **changed: Any) -> State:
    return read_state(file(folder, json.dumps(flower(**changed))))


@pytest.mark.parametrize(
    ("method", "relation", "sampling"),
    [
        ("poisson", "add-or-remove-one", dp.poisson(sampling_probability=0.1)),
        ("without-replacement", "replace-one", dp.fixed_size(batch_size=10)),
        # Who joined is told; and one client makes room for another.
        ("no-amplification", "add-or-remove-one", dp.fixed_size(batch_size=100)),
    ],
)
def test_rounds_of_clients_are_steps_of_records(
    tmp_path: Path, method: str, relation: str, sampling: dict[str, Any]
) -> None:
    state = read_flower(
        tmp_path, config__sampling_method=method, config__neighboring_relation=relation
    )
    noise = dp.gaussian(noise_multiplier=1.1)
    assert state.events == [dp.event(mechanism=noise, sampling=sampling, steps=7)]
    assert state.neighboring_relation == relation.replace("-", "_")
    assert state.dataset_size == 100
    path = tmp_path / "history"
    assert read(path) == state.events
    [told] = read(path, sampling=dp.full())
    assert told["sampling"] == dp.full()


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("schema_version", 2),
        ("backend", "dpledger"),
        ("backend", "pld"),
        ("extra", 1),
        ("config", None),
        ("config__population_size", 0),
        ("config__population_size", 99),
        ("config__population_size", True),
        ("config__neighboring_relation", "replace-special"),
        ("config__neighboring_relation", ["replace-one"]),
        ("config__sampling_method", "cyclic"),
        ("compositions", []),
        ("compositions", 5),
        ("compositions__0__count", 0),
        ("compositions__0__count", 10**9 + 1),
        ("compositions__0__event__noise_multiplier", 0.0),
        ("compositions__0__event__noise_multiplier", "1"),
        ("compositions__0__event__sample_size", 101),
        ("compositions__0__event__sample_size", 1.5),
        ("compositions__0__event__population_size", 101),
        ("compositions__0__event__clipping_norm", 1.0),
    ],
)
def test_a_bad_state_is_named_by_its_place(tmp_path: Path, place: str, value: Any) -> None:
    with pytest.raises(BadFile, match=r"must|is empty"):
        read_flower(tmp_path, **{place: value})


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        ("poisson", None),
        ("shuffle:256,steps_per_pass=235", dp.shuffle(batch_size=256, steps_per_pass=235)),
        ("shuffle:batch_size=256,steps_per_pass=9", dp.shuffle(batch_size=256, steps_per_pass=9)),
        (
            "shuffle:256,steps_per_pass=234,reshuffle=once",
            dp.shuffle(batch_size=256, steps_per_pass=234, reshuffle="once"),
        ),
        ("cyclic:256,steps_per_pass=7", dp.cyclic(batch_size=256, steps_per_pass=7)),
        ("fixed_size:256", dp.fixed_size(batch_size=256)),
        ("with_replacement:256", dp.with_replacement(batch_size=256)),
        ("balls_and_bins:235", dp.balls_and_bins(steps_per_pass=235)),
        ("full", dp.full()),
        ("unknown", dp.unknown()),
    ],
)
def test_samplings_have_a_spelling(text: str, sampling: dict[str, Any] | None) -> None:
    assert samplings.parse(text) == sampling


@pytest.mark.parametrize(
    "text",
    [
        "", "poisson:0.1", "shuffle", "shuffle:", "shuffle:0", "shuffle:-1", "shuffle:1.5",
        "shuffle:256,256", "shuffle:256,reshuffle=never", "shuffle:256,seed=1", "full:1",
        "shuffle:reshuffle=once", "non_uniform:1", "shuffle:\u0661", "cyclic:9999999999999",
        "shuffle:256,steps_per_pass=", "shuffle:256", "cyclic:256",
    ],
)  # fmt: skip
def test_any_other_spelling_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|has|needs"):
        samplings.parse(text)


def test_a_spelling_without_the_length_of_a_pass_says_which_numbers_fit() -> None:
    with pytest.raises(
        ValueError, match=r"--sampling shuffle:10,steps_per_pass=\.\.\.: .* 2 .* 1 "
    ):
        samplings.parse("shuffle:10", dataset_size=15)
    with pytest.raises(ValueError, match=r"ceil\(dataset_size / batch_size\)"):
        samplings.parse("cyclic:10")
