"""The commands that ask a service: runs, watch and report, against the real application."""

import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from sqlalchemy import Engine
from typer.testing import CliRunner, Result

from benchmarks.servers import free_port
from service.cli import service_client, watch
from service.cli.main import app
from service.cli.watch import WatchedRun, draw_run, frames_of, line_of
from service.formatting import lower, percent_up, upper
from service.identity.keys import Role, Terms, create_key
from service.storage.engine import transaction
from tests.service.samples import BUDGET, FULL, Json, append, dataset, event, run, setup
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPLEDGER_URL", raising=False)
    monkeypatch.setattr(watch, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(watch, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(watch, "LAST_SECONDS", 0.05)


def command(*words: object, url: str | None = None) -> Result:
    given = [str(word) for word in words] + (["--url", url] if url else [])
    result: Result = CliRunner().invoke(app, given)
    return result


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_runs_are_listed_with_what_their_budgets_say(api: httpx.Client, address: str) -> None:
    setup(api, budget=BUDGET, delta=BUDGET["delta"])
    api.post("/v1/datasets", json=dataset("other"))
    api.post("/v1/runs", json=run("second", dataset="other"))
    append(api, event(0, 100))
    api.post("/v1/runs/second:finish", json={"state": "finished"})
    told = command("runs", url=address)
    assert told.exit_code == 0, told.output
    head, *lines = (line.split("\t") for line in told.stdout.splitlines())
    found = [dict(zip(head, line, strict=True)) for line in lines]
    assert [one["run"] for one in found] == ["run", "second"]
    assert [one["state"] for one in found] == ["active", "finished"]
    budget = api.get("/v1/runs/run").json()["budget"]
    certified = api.get("/v1/runs/run/guarantee").json()
    assert (found[0]["at_least"], found[0]["certified"], found[0]["charged"]) == (
        lower(certified["epsilon_lower"]), upper(certified["epsilon"]), percent_up(budget["share"]),
    )  # fmt: skip
    assert (found[0]["steps"], found[1]["certified"], found[1]["charged"]) == ("100", "-", "-")
    by_dataset = command("runs", "--dataset", "other", "--json", url=address)
    assert [one["name"] for one in json.loads(by_dataset.stdout)] == ["second"]
    second = api.get("/v1/runs/second").json() | {"certified": None}
    assert json.loads(by_dataset.stdout) == [second]
    by_state = command("runs", "--state", "active", "--json", url=address)
    assert [one["name"] for one in json.loads(by_state.stdout)] == ["run"]


def test_a_list_of_several_pages_is_whole(
    api: httpx.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_client, "PAGE_SIZE", 2)
    setup(api)
    for number in range(4):
        api.post("/v1/runs", json=run(f"run-{number}"))
    assert len(command("runs", url=address).stdout.splitlines()) == 6


def test_what_is_refused_is_said_on_one_line(
    api: httpx.Client, address: str, engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    assert "no such run" in refused(command("watch", "nobody", url=address))
    assert "no such run" in refused(command("report", "nobody", url=address))
    assert "query.state" in refused(command("runs", "--state", "asleep", url=address))
    assert "Name a run" in refused(command("report", url=address))
    assert "Name a run" in refused(command("report", "run", "--dataset", "data", url=address))
    assert "--delta" in refused(command("report", "run", "--delta", "2", url=address))
    for strange in ("ftp://example", "http://[::1"):
        assert "http://" in refused(command("runs", url=strange))
    nobody = f"http://127.0.0.1:{free_port()}"
    assert "does not answer" in refused(command("runs", url=nobody))
    with transaction(engine) as connection:
        key = create_key(connection, name="viewer", scope=Role.VIEWER)
    monkeypatch.delenv("DPLEDGER_API_KEY")
    with serve() as closed:
        for words in (("runs",), ("watch", "run"), ("report", "run")):
            assert "DPLEDGER_API_KEY" in refused(command(*words, url=closed))
        # A redirect is not followed: the key goes to the address that was named alone.
        with pytest.raises(service_client.Refused, match="DPLEDGER_API_KEY") as found:
            service_client.Service(closed).open("/runs/run/report")
        assert found.value.status == 303
        monkeypatch.setenv("DPLEDGER_API_KEY", key)
        monkeypatch.setenv("DPLEDGER_URL", closed)
        assert command("runs").stdout.splitlines()[1].startswith("run\tdata")
        assert command("report", "run").stdout.startswith("<!doctype html>")


def test_a_limited_key_is_listed_its_runs_alone(
    engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = Terms(datasets=frozenset({"data"}))
    with transaction(engine) as connection:
        admin = create_key(connection, name="admin", scope=Role.ADMIN)
        viewer = create_key(connection, name="viewer", scope=Role.VIEWER, terms=terms)
    with serve() as address, httpx.Client(base_url=address, headers=bearer(admin)) as api:
        setup(api)
        api.post("/v1/datasets", json=dataset("zebras"))
        api.post("/v1/runs", json=run("striped", dataset="zebras"))
        monkeypatch.setenv("DPLEDGER_API_KEY", viewer)
        assert "striped" not in command("runs", url=address).stdout
        assert "no such run" in refused(command("watch", "striped", url=address))


class Watching:
    """The command in a thread, and what it has printed."""

    def __init__(self, *words: object) -> None:
        self.result: Result | None = None
        self._words = words
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.result = command("watch", *self._words, "--seconds", "0")

    def __enter__(self) -> "Watching":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        assert not self._thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < 60
        time.sleep(0.01)


def test_a_run_is_followed_until_it_is_finished(
    api: httpx.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    before = watch._look

    def counted(*given: Any) -> WatchedRun:
        seen = before(*given)
        looks.append(line_of(seen))
        return seen

    monkeypatch.setattr(watch, "_look", counted)
    monkeypatch.setattr(watch, "LAST_SECONDS", 5.0)  # which the last incident takes to arrive
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    with Watching("run", "--url", address) as watching:
        until(lambda: len(looks) >= 1)
        append(api, event(10, 90))
        until(lambda: any(line.startswith("100 steps") for line in looks))
        append(api, event(100, 10**6, sampling=FULL))
        until(lambda: any("OVERDRAWN" in line for line in looks))
        api.post("/v1/runs/run:finish", json={"state": "finished"})
    assert watching.result is not None
    assert watching.result.exit_code == 0, watching.result.output
    lines = watching.result.stdout.splitlines()
    guarantee = api.get("/v1/runs/run/guarantee").json()
    assert lines[0].startswith("10 steps; epsilon at most ")
    assert lines[-1].endswith("; finished")
    assert f"epsilon at most {upper(guarantee['epsilon'])} (at least " in lines[-1]
    budget = r"; charged [0-3]\.?\d* of the dataset's 3, [0-3]\.?\d* left; active$"
    assert re.search(budget, lines[0])
    assert any(line.startswith("incident: overdraft at sequence") for line in lines)


def test_a_run_that_is_over_is_told_at_once_and_without_a_delta_one_is_asked_for(
    api: httpx.Client, address: str
) -> None:
    setup(api)
    append(api, event(0, 10))
    api.post("/v1/runs/run:finish", json={"state": "aborted"})
    told = command("watch", "run", url=address)
    assert told.exit_code == 0
    assert told.stdout.startswith("10 steps; no epsilon: ")
    assert "query.delta" in told.stdout
    told = command("watch", "run", "--delta", "1e-5", url=address)
    assert re.fullmatch(
        r"10 steps; epsilon at most \S+ \(at least \S+\) at delta 1e-05; no budget; aborted\n",
        told.stdout,
    )


def test_a_stream_that_breaks_off_is_asked_for_again_from_there(
    api: httpx.Client, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    append(api, event(0, 1))
    asked: list[str | None] = []
    before = service_client.Service.open

    def cut(self: service_client.Service, path: str, headers: Any = None, **query: Any) -> Any:
        if not path.endswith("/stream"):
            return before(self, path, headers, **query)
        asked.append((headers or {}).get("Last-Event-ID"))
        if len(asked) == 1:
            return io.BytesIO(b'id: 1\nevent: entry\ndata: {"sequence": 1}\n\n')
        if len(asked) == 2:
            raise service_client.AwayError("gone")
        return before(self, path, headers, **query)

    monkeypatch.setattr(service_client.Service, "open", cut)
    with Watching("run", "--delta", "1e-5", "--url", address):
        until(lambda: len(asked) >= 3)
        api.post("/v1/runs/run:finish", json={"state": "finished"})
    assert asked[:3] == [None, "1", "1"]


def lines(text: str) -> Iterator[bytes]:
    return iter(text.encode().splitlines(keepends=True))


def test_frames_are_read_as_browsers_do() -> None:
    text = 'retry: 2000\n\n:\n\nid: 7\nevent: entry\ndata: {"a":1}\n\nevent: incident\ndata:{}\n\n'
    body: Any = lines(text)
    assert list(frames_of(body)) == [("entry", "7", {"a": 1}), ("incident", None, {})]


def seen(**given: Any) -> WatchedRun:
    told: Json = {"name": "run", "dataset": "data", "state": "active", "steps": 7,
                  "sampling_status": "declared", "budget": None}  # fmt: skip
    guarantee: Json = {
        "epsilon": 2.379605,
        "epsilon_lower": 2.379595,
        "delta": 1e-5,
        "reason": None,
    }
    budget: Json = {"epsilon": 4.0, "spent": 3.0, "remaining": 1.5000019, "overdrawn": False}
    base: dict[str, Any] = {"guarantee": guarantee, "budget": budget, "whose": "run"}
    return WatchedRun(told | given.pop("run", {}), **(base | given))


def drawn(given: WatchedRun) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_run(given))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_the_picture_shows_both_ends_and_what_is_left() -> None:
    text = drawn(seen())
    assert "epsilon at most 2.37961 (at least 2.37959) at delta 1e-05" in text
    assert "charged 3 of the run's 4, 1.50000 left" in text
    assert "━" in text
    infinite: Json = {"epsilon": None, "epsilon_lower": None, "delta": 1e-5, "reason": "No noise."}
    assert "epsilon infinite: No noise." in drawn(seen(guarantee=infinite))
    assert "no budget" in drawn(seen(budget=None))
    contradicted = drawn(seen(run={"sampling_status": "contradicted"}))
    assert "samples in another way" in contradicted
    assert "overdraft at sequence 3" in drawn(
        seen(incidents=[{"kind": "overdraft", "sequence": 3}])
    )


@pytest.mark.parametrize("value", [1.0000001, 2.379612345, 1e-7, 123456.7])
def test_both_ends_are_rounded_away_from_each_other(value: float) -> None:
    assert float(lower(value)) <= value <= float(upper(value))


def test_a_statement_is_written_to_a_file_or_to_standard_output(
    api: httpx.Client, address: str, tmp_path: Path
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    page = command("report", "run", url=address).stdout
    assert "Privacy statement" in page
    assert "<style>" in page
    file = tmp_path / "statement.html"
    told = command("report", "--dataset", "data", "--delta", "1e-7", "--out", file, url=address)
    assert told.stdout == f"{file}\n"
    assert "1e-7" in file.read_text(encoding="utf-8")
    assert "There is no" in refused(command("report", "--dataset", "none", url=address))
    assert "statement.html" in refused(
        command("report", "run", "--out", file / "statement.html", url=address)
    )
