"""Reports: sentences that promise no more than the numbers, on a page, on paper and as a file."""

import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import Decimal
from html import unescape
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine

from service import formatting
from service.guarantees.statements import one_person, statement
from service.guarantees.statements.statement import StatementReport
from service.identity.keys import Role, Terms, create_key
from service.storage.engine import snapshot, transaction
from tests.conftest import AS_ADMIN
from tests.service.samples import (
    BATCH_SIZES,
    BUDGET,
    FULL,
    SAMPLING,
    append,
    dataset,
    event,
    run,
    setup,
)
from tests.service.test_hidden_runs import finish, planned, start
from tests.service.test_keys import bearer

Serve = Callable[..., AbstractContextManager[str]]
EPSILON = st.floats(0, 50)
DELTA = st.floats(1e-12, 1e-2)


def of_run(engine: Engine, name: str = "run", **given_: list[float]) -> StatementReport:
    with snapshot(engine) as connection:
        return statement.run_report(connection, name, **given_)


def of_dataset(engine: Engine, name: str = "data") -> StatementReport:
    with snapshot(engine) as connection:
        return statement.dataset_report(connection, name)


def told(report: StatementReport) -> str:
    parts = (report.promised, report.addressed, report.outside, report.assumed)
    remarks = [one.text for one in report.remarks]
    return " ".join([*(text for part in parts for text in part), *remarks])


def tones(report: StatementReport) -> dict[str, str]:
    return {one.text: one.tone for one in report.remarks}


def text_of(page: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


@given(epsilon=EPSILON)
def test_an_epsilon_is_never_written_below_itself(epsilon: float) -> None:
    written = Decimal(formatting.four_digits_up(epsilon).replace(",", ""))
    assert written >= Decimal(epsilon)
    assert written <= Decimal(epsilon) * Decimal("1.001") + Decimal("1e-300")


@given(delta=DELTA)
def test_a_chance_is_never_written_below_itself(delta: float) -> None:
    number = int(formatting.one_in(delta).removeprefix("one in ").replace(",", ""))
    assert Decimal(1) / number >= Decimal(repr(delta))
    assert number >= 1 / delta - 1 - 1e-6


def test_a_round_chance_is_written_as_one() -> None:
    assert formatting.one_in(1e-5) == "one in 100,000"
    assert formatting.one_in(1e-6) == "one in 1,000,000"


@given(epsilon=EPSILON, delta=DELTA, rate=st.floats(0, 1))
def test_who_is_found_grows_with_epsilon_and_delta_and_is_a_share(
    epsilon: float, delta: float, rate: float
) -> None:
    found = one_person.found_at_most(epsilon, delta, rate)
    assert rate <= found <= 1
    assert found <= one_person.found_at_most(epsilon + 0.5, delta, rate)
    assert found <= one_person.found_at_most(epsilon, delta + 1e-3, rate)
    # Both error rates of any test, as (epsilon, delta) bounds them.
    assert found >= min(1.0, math.exp(epsilon) * rate + delta) or found >= (
        1 - math.exp(-epsilon) * (1 - delta - rate)
    )


def test_the_numbers_are_those_of_the_guarantee(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET, "privacy_unit": "patient"})
    append(api, event(0, 300))
    found = of_run(engine)
    for one in found.at_deltas:
        asked = api.get("/v1/runs/run/guarantee", params={"delta": one.delta or 0}).json()
        assert one.model_dump() == asked
    assert found.headline.delta == BUDGET["delta"]
    assert found.delta_was_set
    deltas = [one.delta for one in found.at_deltas]
    assert deltas == sorted(deltas, key=lambda delta: -(delta or 0))
    assert formatting.four_digits_up(found.headline.epsilon or 0) in found.promised[0]
    assert "patient" in told(found)
    assert "60,000" in told(found)
    whole = of_dataset(engine)
    assert whole.headline.epsilon == found.headline.epsilon
    head = api.get("/v1/datasets/data/log").json()
    assert (found.log.size, found.log.root, found.log.sequence) == (
        head["size"], head["root"], head["sequence"],
    )  # fmt: skip
    named = {one.id for one in found.theorems}
    assert set(found.headline.theorems) <= named


def test_deltas_that_are_asked_for_come_first_and_are_few(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    append(api, event(0, 10))
    found = of_run(engine, deltas=[1e-7, 1e-9])
    assert found.headline.delta == 1e-7
    assert {1e-7, 1e-9} <= {one.delta for one in found.at_deltas}
    with pytest.raises(Exception, match=r"query\.delta"):
        of_run(engine, deltas=[10.0**-power for power in range(2, 7)])


def test_without_a_delta_one_is_chosen_below_one_in_the_records(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api)
    append(api, event(0, 10))
    found = of_run(engine)
    assert found.headline.delta == 1e-5
    assert not found.delta_was_set
    page = text_of(api.get("/runs/run/report").text)
    assert "No δ was set" in page


def test_where_nothing_finite_is_proved_nothing_is_promised(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 5, mechanism={"kind": "none"}, sampling=FULL))
    for found in (of_run(engine), of_dataset(engine)):
        assert found.headline.epsilon is None
        assert "There is no guarantee for" in found.promised[0]
        assert not found.addressed
        assert any("exceed" in text and tone == "bad" for text, tone in tones(found).items())
    page = text_of(api.get("/runs/run/report").text)
    assert "No finite ε" in page
    assert "There is no guarantee." in page


def test_a_large_epsilon_is_said_to_protect_nobody(api: httpx.Client, engine: Engine) -> None:
    setup(api, delta=1e-5)
    append(api, event(0, 1000, sampling=FULL))
    found = told(of_run(engine))
    assert "no meaningful protection" in found
    assert "possibly all of the people" in found


def test_what_went_wrong_is_said(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    contradicted = SAMPLING | {"status": "contradicted", "recorded": FULL, "reason": "in order"}
    api.post("/v1/runs/run/findings", json=contradicted)
    api.post("/v1/runs/run/findings", json=BATCH_SIZES)
    api.post("/v1/runs/run:finish", json={"state": "finished"})
    append(api, event(10, 1))
    append(api, event(11, 10**6, sampling=FULL))
    for found in (of_run(engine), of_dataset(engine)):
        text = told(found)
        for part in ("in another way than declared", "may be too low", "exceeded a limit",
                     "after a run had ended", "not closed"):  # fmt: skip
            assert part in text
    assert "verdict on the batch sizes" in told(of_run(engine))


def test_a_run_without_a_budget_is_held_by_its_datasets(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    api.post("/v1/datasets", json=dataset("free"))
    api.post("/v1/runs", json=run("loose", dataset="free"))
    append(api, event(0, 10))
    assert "dataset's budget of epsilon 3" in told(of_run(engine))
    assert "No budget is set" in told(of_run(engine, "loose"))


def test_reservations_are_counted_in_a_datasets_statement_and_said_to_be(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    ahead = {"name": "ahead", "event": event(10, 50), "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=ahead).status_code == 201
    found = of_dataset(engine)
    assert (found.headline.epsilon or 0) > (of_run(engine).headline.epsilon or 0)
    assert "count as if they had" in told(found)
    page = " ".join(api.get("/datasets/data/report").text.split())
    ran = api.get("/v1/datasets/data/guarantee").json()["without_reservations"]["epsilon"]
    assert f"have not run count here; without them ε is at most {formatting.up(ran)}." in page
    assert api.post("/v1/reservations/ahead:void", json={"reason": "done"}).status_code == 200
    assert "without them ε" not in api.get("/datasets/data/report").text


def test_what_is_hidden_is_said_to_be_assumed_once_it_is(api: httpx.Client, engine: Engine) -> None:
    start(api)
    append(api, planned(steps=60))
    before = of_run(engine)
    assert before.headline.release == "every_step"
    assert "Every step counts as shown." in told(before)
    finish(api)
    after = of_run(engine)
    assert (after.headline.epsilon or 0) < (before.headline.epsilon or 0)
    assert "the final model of the run run, and none of its earlier states" in told(after)
    assert "no measurement of one" in told(after)


def test_the_page_is_complete_and_the_file_needs_nothing_else(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    for path in ("/runs/run/report", "/datasets/data/report"):
        page = api.get(path)
        assert page.status_code == 200
        assert len(page.content) < 150_000
        assert "style=" not in page.text
        assert "<style" not in page.text
        text = text_of(page.text)
        for heading in ("What is promised", "To whom", "What is not promised", "What was assumed",
                        "What happened", "For experts", "How to check it"):  # fmt: skip
            assert heading in text
        assert "dpledger verify certificate.json" in text
        file = api.get(path, params={"format": "file"})
        assert file.headers["content-disposition"].startswith("attachment; filename=")
        assert not re.search(r'(src|href)="', file.text)
        assert "sha256-" in file.text
        assert text_of(file.text).count("What is promised") == 1
    assert api.get("/runs/nobody/report").status_code == 404
    assert api.get("/runs/run/report", params={"delta": 2}).status_code == 422


def test_a_statement_follows_what_is_recorded(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    before = text_of(api.get("/runs/run/report").text)
    append(api, event(100, 100))
    after = text_of(api.get("/runs/run/report").text)
    assert "Steps recorded 100 " in before
    assert "Steps recorded 200 " in after


def test_what_a_trainer_wrote_is_only_text(api: httpx.Client) -> None:
    setup(api, dataset_given={"privacy_unit": "<script>alert(1)</script>"})
    append(api, event(0, 1))
    for query in ({}, {"format": "file"}):
        assert "<script>alert" not in api.get("/runs/run/report", params=query).text


def test_a_command_reads_a_statement_with_its_key_and_a_limited_one_only_its_own(
    engine: Engine, serve: Serve
) -> None:
    terms = Terms(datasets=frozenset({"data"}))
    with transaction(engine) as connection:
        admin = bearer(create_key(connection, name="admin", scope=Role.ADMIN))
        viewer = bearer(create_key(connection, name="viewer", scope=Role.VIEWER, terms=terms))
    with serve() as address, httpx.Client(base_url=address, timeout=30, headers=AS_ADMIN) as api:
        api.headers.update(admin)
        setup(api)
        api.post("/v1/datasets", json=dataset("other"))
        append(api, event(0, 10))
        api.headers.pop("authorization")
        assert api.get("/runs/run/report", headers=viewer).status_code == 200
        assert api.get("/datasets/other/report", headers=viewer).status_code == 404
        assert api.get("/runs/run/report", headers=bearer("dpl_wrong")).status_code == 401
        assert api.get("/runs/run/report").status_code == 303


def test_paper_shows_no_navigation_and_has_margins() -> None:
    style = Path(statement.__file__).parents[2] / "web" / "dashboard" / "static" / "report.css"
    text = style.read_text(encoding="utf-8")
    paper = text.partition("@media print")[2]
    assert re.search(r"\.on-screen, \.top, \.bottom[^}]*display: none", paper)
    assert "@page" in text
    assert "break-inside: avoid" in paper
