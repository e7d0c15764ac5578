"""The page of a run: the numbers of the API, for who may see them, and nothing that runs."""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.guarantees import run_progress
from service.identity import authentication
from service.identity.keys import Role, revoke_key
from service.operations.event_feed import RECHECK_SECONDS
from service.storage import versioned_cache
from service.storage.engine import transaction
from service.transparency.signing import Signer
from service.web.dashboard.pages import run as page
from tests.service.browsing import make_key, signed_in
from tests.service.samples import (
    BUDGET,
    GAUSSIAN,
    POISSON,
    SAMPLING,
    Json,
    append,
    event,
    setup,
)
from tests.service.sse import ids, record, take, until, watching

Serve = Callable[..., AbstractContextManager[str]]
SHUFFLE: Json = {
    "kind": "shuffle",
    "batch_size": 600,
    "reshuffle": "each_pass",
    "steps_per_pass": 100,
}
CONTRADICTED: Json = SAMPLING | {"status": "contradicted", "recorded": SHUFFLE}
LESS: Json = {"kind": "gaussian", "noise_multiplier": 2.0}


def start(api: httpx.Client, *events: Json, **given: Any) -> None:
    setup(api, dataset_given={"budget": BUDGET | {"epsilon": 50.0}}, **given)
    if events:
        assert append(api, *events).status_code == 201


def data(api: httpx.Client, name: str, run_name: str = "run") -> Json:
    answer = api.get(f"/runs/{run_name}/{name}.json")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def whole(api: httpx.Client, name: str = "history") -> Json:
    """Asked for until it is complete, as the page does."""
    while not (found := data(api, name))["complete"]:
        pass
    return found


def test_the_history_is_the_one_of_the_api_to_the_bits(api: httpx.Client) -> None:
    start(api, event(0, 10), event(10, 10, mechanism=LESS), event(20, 40))
    found = whole(api)
    same = api.get("/v1/runs/run/history", params={"points": 60}).json()
    assert found["points"]
    assert [one for one in same["points"] if one in found["points"]] == found["points"]
    assert (found["points"][0], found["points"][-1]) == (same["points"][0], same["points"][-1])
    assert (found["delta"], found["steps"], found["steps_recorded"]) == (1e-5, 60, 60)
    guarantee = api.get("/v1/runs/run/guarantee").json()
    assert found["points"][-1]["epsilon"] == guarantee["epsilon"]
    assert found["points"][-1]["epsilon_lower"] is not None
    assert data(api, "history")["points"] == found["points"]


def test_what_is_recorded_later_is_added_and_what_stood_there_stays(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "PROGRESS_POINTS_MAX", 20)
    start(api, event(0, 20))
    before = {one["steps"]: one for one in whole(api)["points"]}
    append(api, event(20, 61, mechanism=LESS))
    after = {one["steps"]: one for one in whole(api)["points"]}
    assert max(after) == 81
    assert before.keys() & after.keys()
    assert len(after) <= run_progress.PROGRESS_POINTS_MAX + 1
    assert all(before[steps] == after[steps] for steps in before.keys() & after.keys())
    same = api.get("/v1/runs/run/history", params={"points": 81}).json()["points"]
    assert [one for one in same if one["steps"] in after] == [after[one] for one in sorted(after)]


def test_marks_are_closest_where_epsilon_jumps(api: httpx.Client) -> None:
    start(api, event(0, 50), event(50, 1, mechanism={"kind": "none"}), event(51, 49))
    steps = [(one["steps"], one["epsilon"]) for one in whole(api)["points"]]
    assert max(one for one, epsilon in steps if epsilon is not None) == 50
    assert min(one for one, epsilon in steps if epsilon is None) == 51
    assert len(steps) < 100  # beyond it is infinite, which needs no more marks


def test_dear_points_are_few_and_the_latest_is_always_there(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "RUN_SECONDS", 0.0)
    start(api, event(0, 100))
    for total in (100, 150):
        found = data(api, "history")
        assert found["complete"]
        assert found["points"][-1]["steps"] == total
        append(api, event(100, 50))


def test_a_look_at_a_long_run_takes_little_and_says_that_there_is_more(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_progress, "PROGRESS_SECONDS", 0.0)
    start(api, event(0, 1_000_000))
    found = data(api, "history")
    assert not found["complete"]
    assert found["again_seconds"] < 1
    assert [one["steps"] for one in found["points"]] == [1_000_000]
    assert len(data(api, "history")["points"]) > 1


def test_the_meaning_is_the_curve_of_the_api_in_words(api: httpx.Client) -> None:
    start(api, event(0, 1000))
    found = data(api, "meaning")
    assert found["curve"] == api.get("/v1/runs/run/curve", params={"points": 200}).json()
    (one,) = [each for each in found["sentences"] if each["false_positive_rate"] == 0.01]
    said = re.fullmatch(
        r"An attacker who is wrong 1\u202f% of the time on non-members finds at most "
        r"([\d.]+)\u202f% of members\.", one["text"],
    )  # fmt: skip
    assert said
    assert 0 <= float(said[1]) / 100 - one["true_positive_rate"] < 1e-3
    assert found == data(api, "meaning")


def test_where_nothing_is_proved_no_attacker_is_held_off(api: httpx.Client) -> None:
    start(api, event(0, 1, mechanism={"kind": "none"}))
    found = data(api, "meaning")
    assert found["curve"]["profile"] == []
    assert "Nothing is proved" in found["advantage"]
    assert all("possibly every member" in one["text"] for one in found["sentences"])
    assert "no finite bound" in api.get("/runs/run/guarantee").text


def test_the_schedule_keeps_extremes_however_often_it_changes(api: httpx.Client) -> None:
    start(api)
    record(api, 0, 1500)
    append(api, event(1500, 1, mechanism={"kind": "gaussian", "noise_multiplier": 0.7}))
    append(api, event(1501, 99, sampling=POISSON | {"sampling_probability": 0.5}))
    found = whole(api, "schedule")
    spans = found["spans"]
    assert len(spans) <= 400
    assert sum(one["steps"] for one in spans) == found["steps"] == 1600
    assert [one["first_step"] for one in spans[1:]] == [
        one["first_step"] + one["steps"] for one in spans[:-1]
    ]
    noises = [one["noise_multiplier"] for one in spans]
    assert (min(one["least"] for one in noises), max(one["most"] for one in noises)) == (0.7, 3.0)
    assert max(one["sampling_rate"]["most"] for one in spans) == 0.5


def test_a_steady_run_has_one_span(api: httpx.Client) -> None:
    start(api, event(0, 100))
    append(api, event(100, 100))
    (span,) = whole(api, "schedule")["spans"]
    assert (span["steps"], span["mechanism"], span["sampling"]) == (200, "gaussian", "poisson")
    assert span["noise_multiplier"] == {"least": 1.1, "most": 1.1}
    assert span["sampling_rate"] == {"least": 0.01, "most": 0.01}


def test_the_page_tells_the_guarantee_once_it_is_known(api: httpx.Client) -> None:
    start(api, event(0, 100))
    assert 'data-told="no"' in api.get("/runs/run").text
    part = api.get("/runs/run/guarantee").text
    found = api.get("/v1/runs/run/guarantee").json()
    assert f'data-epsilon="{found["epsilon"]}"' in part
    for name in found["theorems"]:
        assert f'href="/theorems/{name}"' in part
    assert "<html" not in part
    whole_page = api.get("/runs/run").text
    assert 'data-told="yes"' in whole_page
    assert part.strip() in whole_page
    append(api, event(100, 1))
    assert 'data-told="no"' in api.get("/runs/run").text


def test_what_others_wrote_is_shown_as_text(api: httpx.Client) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=y>'\""
    setup(api, dataset_given={"privacy_unit": evil}, labels={"note": evil}, delta=1e-5)
    finding = CONTRADICTED | {"reason": evil}
    assert api.post("/v1/runs/run/findings", json=finding).status_code == 201
    append(api, event(0, 10, sampling=SHUFFLE))
    text = api.get("/runs/run").text + api.get("/runs/run/guarantee").text
    assert text.count("&lt;script&gt;alert(1)") >= 3
    assert "<script>" not in text
    assert "<img src=x" not in text


def test_a_contradiction_stands_at_the_top_with_what_to_do(api: httpx.Client) -> None:
    start(api)
    assert "The code samples in another way" not in api.get("/runs/run").text
    api.post("/v1/runs/run/findings", json=CONTRADICTED)
    append(api, event(0, 10, sampling=SHUFFLE))
    text = api.get("/runs/run").text
    assert text.index("The code samples in another way") < text.index(">Certified and charged</h2>")
    assert "What to do" in text
    assert "Sampling contradicted" in text  # the incident


def test_an_empty_run_teaches_and_an_ended_one_says_so(api: httpx.Client) -> None:
    setup(api)
    text = api.get("/runs/run").text
    assert "No step has been recorded yet" in text
    assert "names a δ" in text
    api.post("/v1/runs/run:finish", json={"state": "finished"})
    assert 'data-state="finished"' in api.get("/runs/run").text
    append(api, event(0, 1))
    assert "Steps were recorded after this run had ended" in api.get("/runs/run").text


def test_data_without_a_delta_or_a_run_is_refused_as_json(api: httpx.Client) -> None:
    setup(api)
    assert api.get("/runs/run/history.json").json()["errors"][0]["location"] == "query.delta"
    for name in ("history", "schedule", "meaning"):
        answer = api.get(f"/runs/nobody/{name}.json")
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/not-found")
    answer = api.get("/runs/nobody")
    assert (answer.status_code, answer.headers["content-type"][:9]) == (404, "text/html")


PARTS = ("", "/guarantee", "/history.json", "/schedule.json", "/meaning.json", "/stream")


def test_only_who_is_signed_in_and_may_see_the_dataset_sees_its_runs(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    start(api, event(0, 10))
    own = make_key(engine, "own", datasets=frozenset({"data"}))
    other = make_key(engine, "other", datasets=frozenset({"elsewhere"}))
    with serve() as address:
        with httpx.Client(base_url=address) as nobody:
            for part in PARTS:
                assert nobody.get(f"/runs/run{part}").status_code in {303, 401}
        with signed_in(address, own) as client:
            assert all(client.get(f"/runs/run{part}").status_code == 200 for part in PARTS[:-1])
        with signed_in(address, other) as client:
            for part in (*PARTS, "/certificate?format=json"):
                assert client.get(f"/runs/run{part}").status_code == 404


def test_the_stream_tells_what_is_recorded(api: httpx.Client) -> None:
    start(api)
    with watching(api, "/runs/run/stream") as stream:
        (state,) = take(stream, 1)
        assert state.data["state"] == api.get("/v1/runs/run").json()
        record(api, 0, 2)
        assert ids(take(stream, 2)) == [1, 2]
    with watching(api, "/runs/run/stream", **{"last-event-id": "1"}) as stream:
        assert ids(take(stream, 1)) == [2]


def test_the_stream_ends_with_the_key_of_the_session(
    api: httpx.Client, engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "KEY_REFRESH_SECONDS", 0.1)
    start(api)
    key = make_key(engine, "viewer")
    with (
        serve() as address,
        signed_in(address, key) as client,
        watching(client, "/runs/run/stream") as stream,
    ):
        take(stream, 1)
        with transaction(engine) as connection:
            revoke_key(connection, "viewer")
        assert list(stream) == []


def test_the_stream_of_a_command_goes_on_while_its_key_is_in_force(
    api: httpx.Client, engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "KEY_REFRESH_SECONDS", 0.1)
    start(api)
    key = make_key(engine, "command", scope=Role.ADMIN)
    bearer = {"authorization": f"Bearer {key}"}
    with (
        serve() as address,
        httpx.Client(base_url=address, headers=bearer) as client,
        watching(client, "/runs/run/stream") as stream,
    ):
        take(stream, 1)
        time.sleep(2 * RECHECK_SECONDS)
        record(client, 0, 1)
        assert ids(take(stream, 1)) == [1]
        with transaction(engine) as connection:
            revoke_key(connection, "command")
        assert list(stream) == []


def test_a_stream_comes_again_now_and_then_so_that_its_session_is_looked_at(
    api: httpx.Client, engine: Engine, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "STREAM_SECONDS", 0.0)
    start(api)
    key = make_key(engine, "viewer")
    with (
        serve() as address,
        signed_in(address, key) as client,
        watching(client, "/runs/run/stream") as stream,
    ):
        assert len(list(stream)) <= 1


def test_who_watches_is_asked_to_look_more_seldom_the_more_there_are(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(api, event(0, 10))
    alone = whole(api)["again_seconds"]
    monkeypatch.setattr(page, "READERS_A_SECOND", 0.1)
    with watching(api, "/runs/run/stream") as stream:
        take(stream, 1)
        assert whole(api)["again_seconds"] >= 10 > alone


def test_many_who_watch_are_given_what_one_of_them_was_and_who_looks_alone_what_is_new(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versioned_cache, "SHARED", 1e6)
    monkeypatch.setattr(page, "ANSWERS_A_SECOND", 1e-3)
    start(api, event(0, 10))
    with watching(api, "/runs/run/stream") as stream:
        take(stream, 1)
        assert (whole(api)["steps"], data(api, "meaning")["curve"]["steps"]) == (10, 10)
        append(api, event(10, 1))
        assert (data(api, "history")["steps"], data(api, "meaning")["curve"]["steps"]) == (10, 10)
        assert api.post("/v1/runs/run:finish", json={"state": "finished"}).status_code == 200
        found = data(api, "history")  # that it is at its end is told to all at once
        assert (found["state"], found["steps"]) == ("finished", 11)

    def alone() -> bool:
        return bool(data(api, "history")["steps"] == 11)

    until(alone)
    assert data(api, "meaning")["curve"]["steps"] == 11


def test_a_certificate_is_a_file_at_the_rate_of_the_api(
    api: httpx.Client, engine: Engine, serve: Serve, tmp_path: Path
) -> None:
    start(api, event(0, 10))
    viewer, admin = make_key(engine, "viewer"), make_key(engine, "admin", Role.ADMIN)
    Signer.create(tmp_path / "key")
    given = {"signing_key_file": tmp_path / "key", "certificates_per_hour": 2}
    with serve(**given) as address, signed_in(address, viewer) as client:
        found = client.get("/runs/run/certificate", params={"format": "json"})
        named = found.headers["content-disposition"]
        assert named == 'attachment; filename="run.certificate.json"'
        envelope = found.json()
        assert envelope["certificate"]["facts"]["subject"] == {"kind": "run", "name": "run"}
        key = {"authorization": f"Bearer {viewer}"}
        same = httpx.get(f"{address}/v1/runs/run/certificate", headers=key).json()
        assert same["certificate"]["facts"] == envelope["certificate"]["facts"]
        shown = client.get("/runs/run/certificate", params={"format": "html"})
        assert shown.headers["content-disposition"].endswith('run.certificate.html"')
        assert "Certificate of run run" in shown.text
        assert client.get("/runs/run/certificate?format=pdf").status_code == 422
        statuses = []
        for first in (10, 11):  # something new to tell each time
            key = {"authorization": f"Bearer {admin}"}
            body = {"events": [event(first, 1)]}
            httpx.post(f"{address}/v1/runs/run/events", json=body, headers=key)
            statuses.append(client.get("/runs/run/certificate?format=json").status_code)
        assert statuses == [200, 429]


def test_a_page_is_light_and_quick(api: httpx.Client) -> None:
    start(api, event(0, 1_000_000, mechanism=GAUSSIAN))
    api.get("/runs/run/guarantee")
    took = []
    for _ in range(5):
        started = time.process_time()  # of the service, too: it does not stand still
        answer = api.get("/runs/run")
        took.append(time.process_time() - started)
    assert len(answer.content) < 40_000
    assert sorted(took)[2] < 0.5  # a twentieth of that is usual
