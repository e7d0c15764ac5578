"""Lists: sorted by any column, counted, found by label and key, and as files."""

import csv
import io
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import beyond
from service.identity.keys import Role
from service.web.dashboard import listing
from tests.service.browsing import make_key, signed_in
from tests.service.samples import Json, append, run, setup
from tests.service.samples import event as steps
from tests.service.test_listing import bracket_of, link, listed, names, page, walked, words
from tests.service.test_listing import many as many
from tests.service.test_listing import varied as varied

Serve = Callable[..., AbstractContextManager[str]]


@pytest.mark.parametrize(
    ("path", "sort", "first"),
    [
        ("/datasets", "-name", "g-data"),
        ("/datasets", "limit", "d-data"),
        ("/datasets", "-limit", "f-data"),
        ("/runs", "-dataset", "g-run"),
        ("/runs", "-steps", "c-run"),
        ("/runs", "by", "d-run"),
    ],
)
def test_each_column_is_walked_there_and_back(
    many: httpx.Client, path: str, sort: str, first: str
) -> None:
    append(many, steps(0, 7), run="c-run")
    parts = walked(many, path, sort=sort)
    assert [len(part) for part in parts] == [3, 3, 1]
    found = names(parts)
    assert found[0] == first
    assert len(set(found)) == 7
    opposite = sort.removeprefix("-") if sort.startswith("-") else f"-{sort}"
    assert names(walked(many, path, sort=opposite)) == found[::-1]


def test_heads_sort_and_the_address_keeps_what_was_asked_for(many: httpx.Client) -> None:
    text = page(many, "/datasets", {"limit": "none", "sort": "name"})
    assert (
        'aria-sort="ascending"><a class="sorts" href="/datasets?limit=none&amp;sort=-name"' in text
    )
    assert "4 found" in words(text)
    assert "7 in all" in words(page(many, "/datasets"))
    following = link(page(many, "/datasets", {"limit": "none", "sort": "name"}), "next")
    assert following is not None
    assert following.startswith("/datasets?limit=none&sort=name&after=")


def test_runs_are_found_by_label_and_key(api: httpx.Client) -> None:
    setup(api, name="one", labels={"model": "resnet", "team": 'a"b'})
    for name, labels in (("two", {"model": "resnet-50"}), ("three", {"a": "model", "b": "resnet"})):
        assert api.post("/v1/runs", json=run(name, labels=labels)).status_code == 201
    assert listed(page(api, "/runs", {"label": "model=resnet"})) == ["one"]
    assert listed(page(api, "/runs", {"label": 'team=a"b'})) == ["one"]
    assert listed(page(api, "/runs", {"label": "resnet"})) == ["three", "two", "one"]
    assert listed(page(api, "/runs", {"label": "%"})) == []
    assert listed(page(api, "/runs", {"by": "start-token", "label": "model=resnet"})) == ["one"]
    text = page(api, "/runs")
    assert "model=resnet-50" in words(text)
    assert 'href="/runs?label=model%3Dresnet"' in text


def test_ticks_stay_from_part_to_part(many: httpx.Client) -> None:
    text = page(many, "/runs", {"sort": "name", "runs": ["a-run", "g-run"]})
    assert len(re.findall(r'value="a-run"[^>]* checked', text)) == 1
    form = text[text.index("data-ticks") :]
    assert '<input type="hidden" name="runs" value="g-run">' in form
    following = link(text, "next")
    assert following is not None
    assert "runs=a-run&runs=g-run" in following
    assert many.get("/runs", params={"runs": ["x"] * 51}).status_code == 422


def csv_of(api: httpx.Client, path: str, query: Mapping[str, Any] | None = None) -> list[Json]:
    answer = api.get(path, params=dict(query) if query else None)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].endswith(f'filename="{path[1:]}"')
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def test_lists_are_files_too(many: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "CSV_ROWS", 2)
    append(many, steps(0, 10), run="a-run")
    found = csv_of(many, "/datasets.csv")
    assert [one["dataset"][0] for one in found] == list("efbgcad")
    one = next(one for one in found if one["dataset"] == "a-data")
    told = many.get("/v1/datasets/a-data").json()
    assert float(one["charged_share_upper"]) == told["budget"]["share"]
    certified = many.get("/v1/datasets/a-data/guarantee").json()["without_reservations"]
    assert float(one["certified_epsilon_upper"]) == certified["epsilon"]
    assert (one["created_by"], one["runs"], one["entries"]) == ("start-token", "1", "1")
    without = next(one for one in found if one["dataset"] == "e-data")
    assert (without["limit_epsilon"], without["charged_share_upper"]) == ("", "")
    found = csv_of(many, "/runs.csv", {"dataset": "a-data"})
    assert [(one["run"], one["steps"], one["key"]) for one in found] == [
        ("a-run", "10", "start-token")
    ]
    assert csv_of(many, "/runs.csv", {"name": "nothing"}) == []


def test_no_cell_is_a_formula() -> None:
    line = listing.csv_line(["=1+1", "+1", "-1", "@a", "\t=1", "a=b", None, 0.5, 'a"b', "a,b"])
    told = next(csv.reader([line]))
    assert told == ["'=1+1", "'+1", "'-1", "'@a", "'\t=1", "a=b", "", "0.5", 'a"b', "a,b"]


def test_a_dataset_without_a_limit_tells_what_is_certified(varied: httpx.Client) -> None:
    told = varied.get("/v1/datasets/unlimited/guarantee", params={"delta": 1e-5}).json()
    bracket = bracket_of(told["epsilon_lower"], told["epsilon"])
    assert f"unlimited no limit {bracket} at δ 1e-5" in words(page(varied, "/datasets"))
    assert f"{bracket} at δ 1e-5" in words(page(varied, "/"))


def test_an_overdraft_is_told_by_how_much(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 0.5, "delta": 1e-5}})
    append(api, steps(0, 3000))
    budget = api.get("/v1/datasets/data").json()["budget"]
    over = beyond(budget["spent"], budget["epsilon"])
    assert budget["overdrawn"]
    assert float(beyond(1.25, 1.0)) >= 0.25
    assert beyond(None, 1.0) == "no finite bound"
    for path in ("/", "/datasets", "/datasets/data"):
        assert f"overdrawn by ε {over}" in words(page(api, path)), path


def test_the_runs_of_a_key_are_added_up(api: httpx.Client, engine: Engine, serve: Serve) -> None:
    setup(api, name="one")
    append(api, steps(0, 5), run="one")
    key = make_key(engine, "ada", scope=Role.TRAINER)
    with serve() as address, signed_in(address, key) as client:
        bearing = {"authorization": f"Bearer {key}"}
        for name in ("two", "three"):
            posted = client.post("/v1/runs", json=run(name), headers=bearing)
            assert posted.status_code == 201
        text = words(page(client, "/datasets"))
        assert "ada 2 2 1 0" in text
        assert "start-token 1 1 1 5" in text
