"""The command `dpledger-client import`: a document or a run, or one line that says why not."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import dpledger_client as dp
import pytest
from dpledger_client import Client
from dpledger_client.cli import main
from dpledger_client.importers import command, ledger_document
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from service.cli.main import app
from service.schemas.ledger_document import LedgerDocument
from tests.client.test_importers_tables import flower

TABLE = "noise_multiplier,sample_rate,steps\n1.1,0.004,1000\n1.1,0.004,500\n1.2,0.004,10\n"
RELATION = ("--relation", "add_or_remove_one")
EVENTS = st.lists(
    st.builds(
        dp.event,
        mechanism=st.sampled_from(
            [dp.gaussian(noise_multiplier=1.0), dp.laplace(noise_multiplier=2.0), dp.no_noise()]
        ),
        sampling=st.sampled_from([dp.full(), dp.poisson(sampling_probability=0.5)]),
        steps=st.integers(1, 10**9),
    ),
    max_size=10,
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPLEDGER_SPOOL", str(tmp_path / "spool"))
    return tmp_path / "spool"


def run(*words: object) -> int:
    return main(["import", *(str(word) for word in words)])


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dpledger-client: ")
    assert len(said.err.splitlines()) == 1
    return said.err


@given(EVENTS)
def test_a_document_holds_each_step_once_and_the_service_reads_it(
    events: list[dict[str, Any]],
) -> None:
    made = ledger_document.document(events, neighboring_relation="replace_one", dataset_size=100)
    read = LedgerDocument.model_validate_json(ledger_document.text_of(made))
    assert sum(one.steps for one in read.events) == sum(one["steps"] for one in events)
    ends = [0, *(one["first_step"] + one["steps"] for one in made["events"])]
    assert [one["first_step"] for one in made["events"]] == ends[:-1]
    content = [(one["mechanism"], one["sampling"]) for one in made["events"]]
    assert all(one != two for one, two in pairwise(content))


def test_a_document_has_a_known_relation_and_no_more_steps_than_a_run() -> None:
    with pytest.raises(ValueError, match="must be one of"):
        ledger_document.document([], neighboring_relation="add-or-remove-one")
    many = dp.event(mechanism=dp.no_noise(), sampling=dp.full(), steps=10**12)
    ledger_document.document([many], neighboring_relation="replace_one")
    with pytest.raises(ValueError, match="more than 1e"):
        ledger_document.document([many, many], neighboring_relation="replace_one")


def test_the_service_s_command_line_accounts_what_was_imported(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "document.json"
    assert run("csv", table, *RELATION, "--out", out) == 0
    assert command.AS_POISSON in complaint(capsys)
    words = ["epsilon", str(out), "--delta", "1e-5", "--json"]
    guarantee = json.loads(CliRunner().invoke(app, words).stdout)
    assert guarantee["steps"] == 1510
    assert guarantee["bound"] == "poisson-gaussian"
    assert 0 < guarantee["epsilon_lower"] <= guarantee["epsilon"] < 1
    assert {path.name for path in tmp_path.iterdir()} == {"table.csv", "document.json"}


def test_without_a_target_the_document_is_printed(
    table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--dataset-size", 60000, "--sampling", "shuffle:256,steps_per_pass=235")
    assert run("csv", table, "--relation", "replace_one", *given) == 0
    said = capsys.readouterr()
    made = LedgerDocument.model_validate_json(said.out)
    assert made.dataset_size == 60000
    assert {one.sampling.kind for one in made.events} == {"shuffle"}
    assert command.AS_TOLD in said.err
    assert made.labels is not None
    assert made.labels["imported-sampling"] == command.AS_TOLD
    assert made.labels["imported-from"] == "csv, on the word of the file"
    assert len(made.labels["imported-sha256"]) == 64


def test_each_kind_of_file_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = {"history": [[1.1, 0.5, 10]], "mechanism": "rdp"}
    tree = "SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=10)"
    for kind, text, relation in (
        ("opacus", json.dumps(history), RELATION),
        ("dp-event", tree, RELATION),
        ("flower", json.dumps(flower()), ()),
    ):
        (tmp_path / kind).write_text(text)
        assert run(kind, tmp_path / kind, *relation) == 0
        made = LedgerDocument.model_validate_json(capsys.readouterr().out)
        assert made.neighboring_relation == "add_or_remove_one"
        assert sum(one.steps for one in made.events) in (7, 10)
    assert made.dataset_size == 100


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "does not say the neighbouring relation"),
        ((*RELATION, "--run", "one"), "go together"),
        ((*RELATION, "--dataset", "letters"), "go together"),
        ((*RELATION, "--dataset-size", 0), "--dataset-size must lie"),
        ((*RELATION, "--sampling", "sorted"), "The sampling must be"),
        ((*RELATION, "--out", "/proc/none/document.json"), "No such file"),
    ],
)
def test_a_bad_argument_is_one_line_and_status_2(
    table: Path, capsys: pytest.CaptureFixture[str], words: tuple[Any, ...], reason: str
) -> None:
    assert run("csv", table, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert reason in said.err.splitlines()[-1]


def test_a_bad_file_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "table.csv", tmp_path / "document.json"
    path.write_text(TABLE + "1.1,2.0,10\n")
    assert run("csv", path, *RELATION, "--out", out) == 2
    said = complaint(capsys)
    assert "table.csv: line 5, sample_rate: must be a number in [1e-12, 1]" in said
    assert run("csv", tmp_path / "missing", *RELATION, "--out", out) == 2
    assert "cannot be read" in complaint(capsys)
    assert run("dp-event", path, *RELATION, "--sampling", "shuffle:5,steps_per_pass=3") == 2
    assert "--sampling is not for dp-event" in complaint(capsys)
    (tmp_path / "state").write_text(json.dumps(flower()))
    assert run("flower", tmp_path / "state", "--dataset-size", 99) == 2
    assert "dataset_size is 100 for the file's clients, not 99" in complaint(capsys)
    assert not out.exists()


def test_a_document_that_cannot_be_written_leaves_the_old_one(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "document.json"
    out.write_text("old")
    before = {path.name for path in tmp_path.iterdir()}

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    assert run("csv", table, *RELATION, "--out", out) == 2
    assert out.read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_an_import_is_recorded_as_a_run(
    address: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(address) as client:
        client.create_dataset(
            "letters",
            dataset_size=60000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="letter",
            budget={"epsilon": 0.1, "delta": 1e-5},
        )
        target = ("--url", address, "--run", "old", "--dataset", "letters")
        assert run("csv", table, *target) == 0
        assert capsys.readouterr().out == "old: 1510 steps, 0 of them still to be sent\n"
        found = client.ledger("old")
        assert [(one["first_step"], one["steps"]) for one in found["events"]] == [
            (0, 1500), (1500, 10),
        ]  # fmt: skip
        assert found["labels"]["imported-sampling"] == command.AS_POISSON
        assert client.run("old")["state"] == "finished"
        assert client.dataset("letters")["spent"] > 0.1  # what happened is recorded all the same
        assert run("csv", table, *target) == 2  # a second time is another run, by another name
        assert client.run("old")["steps"] == 1510


def test_an_import_is_not_recorded_for_another_dataset_than_it_is_of(
    address: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Client(address) as client:
        client.create_dataset(
            "letters",
            dataset_size=60000,
            neighboring_relation="replace_one",
            privacy_unit="letter",
        )
        target = ("--url", address, "--run", "old", "--dataset", "letters")
        assert run("csv", table, *RELATION, *target) == 2
        assert "relation is replace_one for the dataset" in complaint(capsys)
        assert run("csv", table, "--dataset-size", 5, *target) == 2
        assert "dataset_size is 60000 for the dataset, not 5" in complaint(capsys)
        assert list(client.runs()) == []


def test_more_steps_than_an_event_may_have_are_several_events(address: str, tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("noise_multiplier,sample_rate,steps\n" + "9.0,0.5,1000000000\n" * 3)
    with Client(address) as client:
        client.create_dataset(
            "letters",
            dataset_size=60000,
            neighboring_relation="add_or_remove_one",
            privacy_unit="letter",
        )
        target = ("--url", address, "--run", "old", "--dataset", "letters")
        assert run("csv", path, *target) == 0
        assert client.run("old")["steps"] == 3 * 10**9
