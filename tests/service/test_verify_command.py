"""The command verify: what it prints, how it ends, and what it believes of what was kept."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.storage import migrations
from service.storage.engine import transaction
from service.transparency.verification.saved_heads import (
    Kept,
    KeptError,
    KeptLog,
    SavedHead,
    join_heads,
    of_checkpoints,
    of_witness,
)
from tests.conftest import without_triggers
from tests.service.keeping import Files, keep
from tests.service.samples import append, event, setup


def verify(*words: object) -> Result:
    result: Result = CliRunner().invoke(app, ["verify", *(str(word) for word in words)])
    return result


@pytest.fixture
def files(api: httpx.Client, engine: Engine, tmp_path: Path) -> Files:
    """What is kept of a ledger of three entries."""
    setup(api)
    for step in range(3):
        append(api, event(step * 5, 5))
    return keep(engine, tmp_path)


def edit(engine: Engine, statement: str, **values: object) -> None:
    with transaction(engine) as connection, without_triggers(connection):
        connection.execute(text(statement), values)


def test_a_sound_ledger_says_what_was_checked(files: Files, database_url: str) -> None:
    done = verify(database_url, "--witness", files.witness, "--public-key", files.public_key)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("checked: ")
    assert " 1 dataset, 3 entries, " in done.stdout
    assert "held against: the witness\n" in done.stdout
    assert done.stdout.endswith("nothing is broken\n")


def test_nothing_kept_is_said(files: Files, database_url: str) -> None:
    done = verify(database_url)
    assert done.exit_code == 0
    assert "itself alone; give --witness or --checkpoint" in done.stdout


@pytest.mark.parametrize(
    ("kept", "named"), [(False, False), (False, True), (True, False), (True, True)]
)
def test_what_nobody_vouches_for_is_not_authenticated(
    files: Files, database_url: str, kept: bool, named: bool
) -> None:
    words: list[object] = [database_url]
    words += ["--witness", files.witness] if kept else []
    words += ["--public-key", files.public_key] if named else []
    done = verify(*words)
    before, last = done.stdout.splitlines()[-2:]
    assert done.exit_code == 0
    assert (last == "nothing is broken") == (kept and named)
    if not (kept and named):
        assert before == "nothing is broken"
        assert last.startswith("NOT AUTHENTICATED: nothing that was kept" if not kept
                               else "NOT AUTHENTICATED: no key was named")  # fmt: skip
    assert json.loads(verify(*words, "--json").stdout)["authenticated"] == (kept and named)


def test_what_is_broken_is_not_called_anything_else(
    files: Files, engine: Engine, database_url: str
) -> None:
    edit(engine, "UPDATE entries SET verdict = 'overdraft' WHERE sequence = 2")
    done = verify(database_url)
    assert (done.exit_code, "nothing is broken" in done.stdout) == (1, False)
    assert not json.loads(verify(database_url, "--json").stdout)["authenticated"]


def test_the_first_broken_entry_is_named(files: Files, engine: Engine, database_url: str) -> None:
    edit(engine, "UPDATE entries SET verdict = 'overdraft' WHERE sequence = 2")
    done = verify(database_url, "--witness", files.witness)
    assert done.exit_code == 1
    first = next(line for line in done.stdout.splitlines() if line.startswith("broken: "))
    assert first.startswith("broken: dataset data, entry 2 (run run, branch main, steps 5..9): ")
    done = verify(database_url, "--witness", files.witness, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert not told["sound"]
    assert told["broken_total"] == len(told["broken"])
    texts = [one["text"] for one in told["broken"]]
    assert (
        "dataset data, entry 2 (run run, branch main, steps 5..9): differs from the witness"
        in texts
    )
    del (first_of := told["broken"][0])["text"]
    assert first_of == {"dataset": "data", "position": 6, "sequence": 2, "exact": True}


def test_of_many_broken_places_ten_are_printed(
    files: Files, engine: Engine, database_url: str
) -> None:
    edit(engine, "UPDATE acts SET content = '{}'")
    edit(engine, "UPDATE entries SET mode = 'charge'")
    done = verify(database_url)
    assert done.stdout.count("broken: ") == 10
    assert "more; --json lists them" in done.stdout


def test_the_checkpoint_of_one_dataset_is_enough(
    files: Files, engine: Engine, database_url: str, tmp_path: Path
) -> None:
    one = tmp_path / "checkpoint.json"
    one.write_text(files.checkpoints.read_text().splitlines()[-1])
    asked = (database_url, "--checkpoint", one, "--public-key", files.public_key)
    assert verify(*asked).exit_code == 0
    edit(engine, "DELETE FROM entries WHERE sequence = 3")
    done = verify(*asked)
    assert done.exit_code == 1
    assert "entry 3" in done.stdout


def test_a_checkpoint_with_every_head_is_enough(
    files: Files, engine: Engine, database_url: str
) -> None:
    asked = (database_url, "--checkpoint", files.whole, "--public-key", files.public_key)
    assert verify(*asked).exit_code == 0
    edit(engine, "DELETE FROM entries WHERE sequence = 3")
    done = verify(*asked)
    assert done.exit_code == 1
    assert "entry 3" in done.stdout


@pytest.mark.parametrize("change", ["size", "left out", "signature"])
def test_a_checkpoint_whose_heads_were_changed_is_not_believed(files: Files, change: str) -> None:
    found = json.loads(files.whole.read_text())
    if change == "size":
        found["heads"][-1]["size"] += 1
    elif change == "left out":
        found["heads"].pop()
    else:
        found["signature"] = "A" * len(found["signature"])
    files.whole.write_text(json.dumps(found))
    with pytest.raises(KeptError, match="not signed"):
        of_checkpoints(files.whole, None)


# ---- what cannot be read


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("sqlite:////nowhere/at/all.db", "there is no such file"),
        ("mysql://a@b/c", "DPLEDGER_DATABASE_URL"),
        ("://", "TARGET"),
        ("/nowhere/at/all.json", "No such file"),
    ],
)
def test_what_is_not_there_is_said_on_one_line(target: str, words: str) -> None:
    done = verify(target)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "noise.db"
    file.write_bytes(b"noise" * 1000)
    done = verify(f"sqlite:///{file}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert file.read_bytes() == b"noise" * 1000


def test_a_database_without_its_url_is_told_which_it_has(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    sqlite3.connect(file).execute("CREATE TABLE one (id INTEGER)").connection.close()
    done = verify(file)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"{file} is a database: name it as sqlite:///{file}\n"


def test_a_ledger_of_another_schema_is_refused(engine: Engine, database_url: str) -> None:
    set_it = "UPDATE alembic_version SET version_num = :revision"
    edit(engine, set_it, revision="0005")
    try:
        done = verify(database_url)
    finally:
        edit(engine, set_it, revision=migrations.head())
    assert (done.exit_code, done.stdout) == (2, "")
    assert "0005" in done.stderr


def test_a_certificate_is_not_held_against_a_witness(files: Files) -> None:
    done = verify(files.checkpoints, "--witness", files.witness)
    assert done.exit_code == 2
    assert "held against a database" in done.stderr
    assert "sqlite:///FILE" in done.stderr


def test_a_file_that_is_no_certificate_is_broken(files: Files) -> None:
    done = verify(files.witness)
    assert done.exit_code == 1
    assert done.stderr.startswith("broken: ")


# ---- what was kept is believed only where it can be


def _other_key(tmp_path: Path) -> str:
    from service.transparency.signing import Signer

    return Signer.create(tmp_path / "other_key").public_key


def test_what_another_key_signed_is_not_believed(
    files: Files, database_url: str, tmp_path: Path
) -> None:
    key = _other_key(tmp_path)
    for option, file in (("--witness", files.witness), ("--checkpoint", files.checkpoints)):
        done = verify(database_url, option, file, "--public-key", key)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "not signed" in done.stderr


@pytest.mark.parametrize("key", ["nonsense", "A" * 42, "A" * 44, "!" * 43, ""])
def test_what_is_no_key_is_refused_before_anything_is_read(
    files: Files, database_url: str, key: str
) -> None:
    for target in (database_url, files.checkpoints):
        done = verify(target, "--public-key", key)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("--public-key: must be a key")


def _changed(file: Path, change: Any) -> None:
    one, *others = file.read_text().splitlines()
    found = json.loads(one)
    change(found)
    file.write_text("\n".join([json.dumps(found), *others]) + "\n")


def test_a_checkpoint_that_was_changed_is_not_believed(files: Files) -> None:
    _changed(files.checkpoints, lambda found: found["head"].update(size=found["head"]["size"] + 1))
    with pytest.raises(KeptError, match="not signed"):
        of_checkpoints(files.checkpoints, None)


def test_a_witness_whose_leaves_were_changed_is_not_believed(files: Files) -> None:
    def change(found: Any) -> None:
        moved = found["heads"][-1]
        moved["leaves"] = ("B" if moved["leaves"][0] == "A" else "A") + moved["leaves"][1:]

    _changed(files.witness, change)
    with pytest.raises(KeptError, match="data"):
        of_witness(files.witness, None)


@pytest.mark.parametrize("content", [b"", b"{}", b"[", b"\xff\xfe", b"[" * 100_000, b"{}\n{}\n"])
def test_files_that_hold_nothing_that_was_kept_are_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kept"
    file.write_bytes(content)
    for read in (of_witness, of_checkpoints):
        with pytest.raises(KeptError, match="kept"):
            read(file, None)
    for read in (of_witness, of_checkpoints):
        with pytest.raises(KeptError, match="No such file"):
            read(tmp_path / "nothing", None)


def test_a_file_of_checkpoints_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.transparency.verification.saved_heads.HEADS_BYTES_MAX", 10)
    (tmp_path / "kept").write_bytes(b" " * 11)
    with pytest.raises(KeptError, match="larger"):
        of_checkpoints(tmp_path / "kept", None)


def test_what_was_kept_of_two_ledgers_is_not_mixed() -> None:
    one, other = Kept(ledger_id="a" * 32), Kept(ledger_id="b" * 32)
    with pytest.raises(KeptError, match="different ledgers"):
        join_heads(one, other)
    heads = (SavedHead(3, b"r", "the checkpoint"),)
    both = join_heads(Kept({"d": KeptLog(b"x" * 64)}, "a" * 32), Kept({"d": KeptLog(heads=heads)}))
    assert both.ledger_id == "a" * 32
    assert (both.of("d").size, both.of("d").longest, both.of("e").longest) == (2, 3, 0)
