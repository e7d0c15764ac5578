"""The lists of datasets and of runs, and runs side by side: what they tell, in which order."""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import Engine, event, select, update

from service.formatting import down, percent_up, up
from service.identity.keys import Role
from service.ledger import views
from service.operations import budget_summaries
from service.operations.certified_epsilons import CertifiedEpsilons
from service.schemas.event_codec import canonical
from service.storage.engine import connect, snapshot, transaction
from service.storage.tables import datasets, reservations, runs
from service.transparency import activity
from service.web.dashboard import listing
from service.web.dashboard.pages import compare
from tests.service.browsing import make_key, signed_in
from tests.service.samples import BATCH_SIZES, BUDGET, FULL, Json, append, dataset, run, setup
from tests.service.samples import event as steps

Serve = Callable[..., AbstractContextManager[str]]
QUIET: Final[Json] = {"kind": "gaussian", "noise_multiplier": 8.0}
CYCLIC: Final[Json] = {"kind": "cyclic", "batch_size": 6000, "steps_per_pass": 10}
LARGE: Final[Json] = {"epsilon": 50.0, "delta": 1e-5}
ROW: Final = re.compile(r'<th scope="row"><a href="/(?:datasets|runs)/([^"]+)"')
INLINE: Final = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:")
PAGES_MAX: Final = 9  # that a list here may have
HOSTILE: Final = '"><script>alert(1)</script>'


def page(api: httpx.Client, path: str, query: Mapping[str, Any] | None = None) -> str:
    answer = api.get(path, params=dict(query) if query else None)  # else httpx drops the query
    assert answer.status_code == 200, answer.text
    assert not INLINE.search(answer.text)
    return answer.text


def listed(text: str) -> list[str]:
    return ROW.findall(text)


def link(text: str, way: str) -> str | None:
    found = re.search(rf'<a rel="{way}" href="([^"]+)"', text)
    return None if found is None else unescape(found[1])


def words(text: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def bracket_of(lower: float | None, upper: float) -> str:
    at_least = "" if lower is None else f" and at least ≥ {down(lower)}"
    return f"ε at most {up(upper)}{at_least}"


@pytest.fixture
def many(api: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> httpx.Client:
    """Seven datasets, every second with a limit, of a run each; three on a page."""
    monkeypatch.setattr(listing, "PART_SIZE", 3)
    for number, letter in enumerate("dacgbfe"):
        limit = {"budget": BUDGET} if number % 2 else {}
        setup(api, dataset_given={"name": f"{letter}-data", **limit}, dataset=f"{letter}-data",
              name=f"{letter}-run")  # fmt: skip
    return api


def walked(api: httpx.Client, path: str, **query: str) -> list[list[str]]:
    """Every page of a list, there and back."""
    text = page(api, path, query)
    there = [listed(text)]
    while (later := link(text, "next")) is not None and len(there) < PAGES_MAX:
        text = page(api, later)
        there.append(listed(text))
    back = [listed(text)]
    while (earlier := link(text, "prev")) is not None and len(back) < PAGES_MAX:
        text = page(api, earlier)
        back.append(listed(text))
    assert back[::-1] == there
    return there


def names(parts: list[list[str]]) -> list[str]:
    return [name for part in parts for name in part]


@pytest.mark.parametrize("noun", ["data", "run"])
def test_each_order_is_walked_there_and_back(many: httpx.Client, noun: str) -> None:
    path = "/datasets" if noun == "data" else "/runs"
    oldest = [f"{letter}-{noun}" for letter in "dacgbfe"]
    parts = walked(many, path, sort="oldest")
    assert [len(part) for part in parts] == [3, 3, 1]
    assert names(parts) == oldest
    assert names(walked(many, path)) == oldest[::-1]
    assert names(walked(many, path, sort="name")) == sorted(oldest)


def test_what_is_asked_for_stays_from_part_to_part(many: httpx.Client) -> None:
    limited = walked(many, "/datasets", limit="none", sort="name")
    assert names(limited) == ["b-data", "c-data", "d-data", "e-data"]
    assert names(walked(many, "/datasets", limit="set")) == ["f-data", "g-data", "a-data"]


def test_names_are_found_by_their_parts(many: httpx.Client) -> None:
    assert listed(page(many, "/datasets", {"name": " B-D "})) == ["b-data"]
    assert listed(page(many, "/runs", {"name": "%"})) == []
    assert listed(page(many, "/runs", {"name": "_run"})) == []
    assert listed(page(many, "/runs", {"dataset": "c-data"})) == ["c-run"]
    assert "No run matches" in page(many, "/runs", {"dataset": "nothing"})


def test_runs_are_found_by_their_state(many: httpx.Client) -> None:
    assert many.post("/v1/runs/c-run:finish", json={"state": "finished"}).status_code == 200
    assert listed(page(many, "/runs", {"state": "finished", "name": "", "dataset": ""})) == [
        "c-run"
    ]
    assert "c-run" not in page(many, "/runs", {"state": "active", "sort": "oldest"})


@pytest.mark.parametrize("path", ["/datasets", "/runs"])
def test_nothing_that_is_asked_for_is_markup_or_breaks_it(many: httpx.Client, path: str) -> None:
    assert "<script>alert" not in page(many, path, {"name": HOSTILE})
    assert listed(page(many, path, {"after": "x"})) == listed(page(many, path))
    assert listed(page(many, path, {"after": str(2**70)})) == listed(page(many, path))
    for wrong in ({"sort": "sideways"}, {"name": "a" * 64}):
        assert many.get(path, params=wrong).status_code == 422


def test_empty_lists_teach(api: httpx.Client) -> None:
    assert "curl" in page(api, "/datasets")
    assert "start_run" in page(api, "/runs")
    assert "No runs yet" in page(api, "/compare")


def test_a_limited_key_lists_and_compares_its_own_alone(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    for name in ("letters", "zebras"):
        setup(api, dataset_given={"name": name}, dataset=name, name=f"{name}-run", delta=1e-5)
    key = make_key(engine, "ada", scope=Role.TRAINER, datasets=frozenset({"letters"}))
    with serve() as address, signed_in(address, key) as client:
        assert listed(page(client, "/datasets")) == ["letters"]
        assert listed(page(client, "/runs")) == ["letters-run"]
        assert listed(page(client, "/runs", {"dataset": "zebras"})) == []
        assert "zebras" not in page(client, "/compare")
        for asked in ("zebras-run", "letters-run,zebras-run", "nothing"):
            assert client.get("/compare", params={"runs": asked}).status_code == 404
        assert "letters-run" in page(client, "/compare", {"runs": "letters-run"})


# ---- what a glance tells


@pytest.fixture
def varied(api: httpx.Client, engine: Engine) -> httpx.Client:
    """Datasets and runs of every sort that a glance may meet."""
    relation = {"neighboring_relation": "replace_special"}
    for name in ("plain", "passes", "corrected", "expired", "unlimited"):
        limit = {} if name == "unlimited" else {"budget": LARGE}
        setup(
            api, dataset_given={"name": name, **limit, **relation}, dataset=name, name=f"{name}-run"
        )
        append(api, steps(0, 100, mechanism=QUIET), run=f"{name}-run")
    above = dataset("above", budget=LARGE, **relation)
    assert api.post("/v1/datasets", json=above).status_code == 201
    body = dataset("below", parents=["above"], rows_per_parent_record="exactly_one", **relation)
    assert api.post("/v1/datasets", json=body).status_code == 201
    own = {"plan": [{"steps": 50, "mechanism": QUIET, "sampling": FULL}], "budget": LARGE}
    assert (
        api.post("/v1/runs", json=run("below-run", dataset="below", delta=1e-5, **own)).status_code
        == 201
    )
    append(api, steps(0, 25, mechanism=QUIET, sampling=CYCLIC), run="below-run")
    append(api, steps(100, 25, mechanism=QUIET, sampling=CYCLIC), run="passes-run")
    correction = steps(0, 50) | {"reason": "mistaken"}
    assert api.post("/v1/runs/corrected-run/corrections", json=correction).status_code == 201
    lease = {"name": "lease", "event": steps(100, 100), "ttl_seconds": 60}
    assert api.post("/v1/runs/expired-run/reservations", json=lease).status_code == 201
    with transaction(engine) as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(reservations).values(expires_at=past))
    return api


def test_a_glance_at_budgets_tells_what_each_alone_tells(
    varied: httpx.Client, engine: Engine
) -> None:
    with snapshot(engine) as connection:
        rows = list(connection.execute(select(datasets).order_by(datasets.c.id)))
        found = budget_summaries.budgets_of(connection, rows)
        for row in rows:
            assert found[row.id] == views.budget_of_dataset(connection, row), row.name
        counts = budget_summaries.count_runs(connection, [row.id for row in rows])
    assert sorted(counts.values()) == [0, 1, 1, 1, 1, 1, 1]
    assert [row.name for row in rows if found[row.id] is None] == ["unlimited", "below"]


def test_a_glance_at_runs_tells_their_guarantees(varied: httpx.Client, engine: Engine) -> None:
    with snapshot(engine) as connection:
        rows = list(connection.execute(select(runs)))
        found = CertifiedEpsilons().of_runs(connection, rows, seconds=10)
        lengths = budget_summaries.steps_of(connection, [row.id for row in rows])
    for row in rows:
        if row.name not in found:
            assert row.name == "unlimited-run"
            continue
        told, certified = varied.get(f"/v1/runs/{row.name}/guarantee").json(), found[row.name]
        for field in ("epsilon_lower", "epsilon", "delta"):
            assert getattr(certified, field) == told[field], (row.name, field)
        assert lengths[row.id][0] == varied.get(f"/v1/runs/{row.name}").json()["steps"]


def test_lists_tell_what_the_api_tells_rounded_to_the_safe_side(varied: httpx.Client) -> None:
    text = words(page(varied, "/datasets"))
    for one in varied.get("/v1/datasets").json()["datasets"]:
        if one["budget"]:
            share = " ".join(percent_up(one["budget"]["share"]).split())
            told = varied.get(f"/v1/datasets/{one['name']}/guarantee").json()
            certified = told["without_reservations"]
            bracket = bracket_of(certified["epsilon_lower"], certified["epsilon"])
            over = " overdrawn" if one["budget"]["overdrawn"] else ""
            assert f"{one['name']} {share} of ε 50{over} {bracket}" in text
    text = words(page(varied, "/runs"))
    told = varied.get("/v1/runs/plain-run/guarantee").json()
    bracket = bracket_of(told["epsilon_lower"], told["epsilon"])
    assert f"plain-run {bracket} 1e-5 100 active plain" in text


def test_what_a_list_has_no_time_for_is_there_when_it_is_asked_again(
    varied: httpx.Client, engine: Engine
) -> None:
    certified, found = CertifiedEpsilons(), [0]
    with snapshot(engine) as connection:
        rows = list(connection.execute(select(runs)))
        while len(found) <= len(rows):
            found.append(len(certified.of_runs(connection, rows, seconds=0)))
    with_delta = len(rows) - 1  # of unlimited-run
    assert found == [*range(with_delta + 1), *[with_delta] * (len(rows) - with_delta)]


def test_a_kept_epsilon_is_worked_out_again_after_a_step_and_a_correction(
    varied: httpx.Client,
) -> None:
    def certified() -> float:
        page = varied.get("/v1/runs", params={"certified": True, "dataset": "plain"}).json()
        value: float = page["certified"]["plain-run"]["epsilon"]
        assert value == varied.get("/v1/runs/plain-run/guarantee").json()["epsilon"]
        return value

    first = certified()
    append(varied, steps(100, 50), run="plain-run")
    second = certified()
    less = {"kind": "gaussian", "noise_multiplier": 0.6}
    correction = steps(0, 50, mechanism=less) | {"reason": "mistaken"}
    assert varied.post("/v1/runs/plain-run/corrections", json=correction).status_code == 201
    assert first < second < certified()
    assert varied.get("/v1/runs").json()["certified"] is None


def test_a_list_asks_the_database_few_things_however_long_it_is(
    api: httpx.Client, database_url: str
) -> None:
    def asked(count: int) -> int:
        statements: list[str] = []
        engine = connect(database_url)

        @event.listens_for(engine, "before_cursor_execute")
        def _note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
            statements.append(statement)

        with snapshot(engine) as connection:
            rows = list(connection.execute(select(datasets).limit(count)))
            budget_summaries.budgets_of(connection, rows)
            of_runs = list(connection.execute(select(runs).limit(count)))
            CertifiedEpsilons().of_runs(connection, of_runs, seconds=10)
        engine.dispose()
        return len(statements)

    for number in range(5):
        given = {"name": f"data-{number}", "budget": BUDGET}
        setup(api, dataset_given=given, dataset=f"data-{number}", name=f"run-{number}")
        append(api, steps(0, 10), run=f"run-{number}")
    assert asked(5) == asked(1)


# ---- side by side


def compared(text: str) -> dict[str, tuple[bool, list[str]]]:
    """Each line: whether it is marked as different, and what it tells of each run."""
    body = text[text.index("<tbody>") : text.index("</tbody>")]
    rows = re.findall(r'<tr( class="differs")?><th scope="row">(.*?)</th>(.*?)</tr>', body, re.S)
    return {
        words(name): (bool(marked), [words(cell) for cell in re.findall(r"<td>(.*?)</td>", cells)])
        for marked, name, cells in rows
    }


@pytest.fixture
def pair(api: httpx.Client) -> httpx.Client:
    setup(api, dataset_given={"budget": BUDGET}, name="loud")
    assert api.post("/v1/runs", json=run("quiet", delta=1e-6)).status_code == 201
    append(api, steps(0, 100), run="loud")
    append(api, steps(0, 100, mechanism=QUIET), run="quiet")
    return api


def test_runs_stand_side_by_side_at_one_delta(pair: httpx.Client) -> None:
    lines = compared(page(pair, "/compare", {"runs": "loud,quiet"}))
    told = [
        pair.get(f"/v1/runs/{name}/guarantee", params={"delta": 1e-6}).json()
        for name in ("loud", "quiet")
    ]
    assert lines["ε at δ = 1e-6"][1] == [
        f"ε at most {up(one['epsilon'])} and at least ≥ {down(one['epsilon_lower'])}"
        for one in told
    ]
    assert lines["Without amplification"][1] == [up(one["unamplified_epsilon"]) for one in told]
    marked = {name for name, (differs, _) in lines.items() if differs}
    (noise,) = [name for name in lines if name.startswith("Noise multiplier all: Gaussian")]
    assert marked == {noise, "ε at δ = 1e-6", "Without amplification"}
    assert "Steps 100" in words(page(pair, "/compare", {"runs": "loud,quiet"}).split("alike")[-1])


def test_another_delta_may_be_chosen(pair: httpx.Client) -> None:
    lines = compared(page(pair, "/compare", {"runs": "loud,quiet", "delta": "0.001"}))
    assert "ε at δ = 0.001" in lines
    assert pair.get("/compare", params={"runs": "loud", "delta": "7"}).status_code == 422


def test_verdicts_are_compared(pair: httpx.Client) -> None:
    assert pair.post("/v1/runs/quiet/findings", json=BATCH_SIZES).status_code == 201
    lines = compared(page(pair, "/compare", {"runs": "loud,quiet"}))
    differs, (first, second) = lines["Outside the guarantee"]
    assert differs
    assert (first, second) == ("nothing", "batch sizes refuted on main")


def test_ticked_runs_are_asked_for_one_by_one_or_together(pair: httpx.Client) -> None:
    together = page(pair, "/compare", {"runs": "loud,quiet"})
    ticked = pair.get("/compare", params=[("runs", "loud"), ("runs", "quiet"), ("runs", "loud")])
    assert compared(ticked.text) == compared(together)
    assert 'name="runs" value="loud"' in page(pair, "/compare")  # offered


def test_a_few_runs_are_compared_at_once(
    pair: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "COMPARED_RUNS_MAX", 1)
    text = page(pair, "/compare", {"runs": "loud,quiet"})
    assert "1 are left out" in words(text)
    assert compared(text)["State"] == (False, ["active"])


def test_names_that_are_none_are_not_found(pair: httpx.Client) -> None:
    for name in (HOSTILE, "Loud", "a" * 500):
        answer = pair.get("/compare", params={"runs": name}, headers={"accept": "text/html"})
        assert answer.status_code == 404
        assert "<script>alert" not in answer.text


def test_a_page_of_long_acts_ends_early_and_the_next_goes_on(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api)
    path, whole = "/v1/datasets/data/acts", api.get("/v1/datasets/data/acts").json()
    lengths = [len(canonical(one["content"])) for one in whole["acts"]]
    assert len(lengths) >= 3
    for characters in (1, lengths[0] + lengths[1], sum(lengths)):
        monkeypatch.setattr(activity, "PAGE_CHARACTERS", characters)
        found, sizes, token = [], [], None
        while True:
            given: Json = {} if token is None else {"page_token": token}
            answer = api.get(path, params=given).json()
            found += answer["acts"]
            sizes.append(len(answer["acts"]))
            if (token := answer["next_page_token"]) is None:
                break
        assert found == whole["acts"]
        assert sizes[0] == {1: 1, sum(lengths): len(lengths)}.get(characters, 2)
