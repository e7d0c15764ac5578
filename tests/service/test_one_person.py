"""What one person is promised: numbers that were computed in another way, and their words."""

import math

import httpx
import pytest
from scipy.optimize import brentq
from scipy.stats import norm
from sqlalchemy import Engine

from service.guarantees.guarantee import Question, dataset_guarantee, run_guarantee
from service.guarantees.statements import one_person
from service.guarantees.statements.one_person import PersonCase, PersonPromise
from service.guarantees.statements.statement_text import person_notes, person_rows
from service.ledger.lookups import dataset_of, find_dataset, find_run
from service.ledger.views import budget_of_dataset
from service.storage.engine import snapshot
from tests.service.samples import BUDGET, FULL, append, dataset, event, run, setup
from tests.service.test_fixed_plans import PLAN
from tests.service.test_reports import text_of

STEPS = 100
SIGMA = 20.0  # a hundred steps of it are one of noise 2
MU = math.sqrt(STEPS) / SIGMA
WIDE = {"epsilon": 30.0, "delta": 1e-5}


def gaussian(steps: int, **given: object) -> dict[str, object]:
    noise = {"kind": "gaussian", "noise_multiplier": SIGMA}
    return event(0, steps, mechanism=noise, sampling=FULL, **given)


def of_dataset(
    engine: Engine, name: str = "data", *, reserved: bool = False
) -> PersonPromise | None:
    with snapshot(engine) as connection:
        row = find_dataset(connection, name)
        found = dataset_guarantee(connection, name, Question(delta=1e-5))
        return one_person.promise_of_dataset(connection, row, found, reserved=reserved)


def of_run(engine: Engine, name: str = "run") -> PersonPromise | None:
    with snapshot(engine) as connection:
        row = find_run(connection, name)
        home = dataset_of(connection, row)
        found = run_guarantee(connection, name, Question(delta=1e-5))
        budget = budget_of_dataset(connection, home)
        return one_person.promise_of_run(connection, row, home, found, budget)


def case(found: PersonPromise | None, kind: str, rows: int = 1) -> PersonCase:
    assert found is not None
    return next(one for one in found.cases if one.kind == kind and one.rows == rows)


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    below = norm.cdf(-epsilon / mu - mu / 2)
    return float(norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * below)


def gaussian_epsilon(delta: float, mu: float) -> float:
    return float(brentq(lambda epsilon: gaussian_delta(epsilon, mu) - delta, 0, 100))


def found_by_best_test(mu: float) -> float:
    """Neyman and Pearson: the power at level 1 % between two normal laws that are mu apart."""
    return float(norm.sf(norm.isf(0.01) - mu))


def test_the_certified_risk_is_that_of_the_best_test(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": WIDE})
    append(api, gaussian(STEPS))
    for found in (of_run(engine), of_dataset(engine)):
        first = case(found, "certified")
        assert first.found == pytest.approx(found_by_best_test(MU), rel=1e-6)
        assert first.found >= found_by_best_test(MU)
        assert first.epsilon == pytest.approx(gaussian_epsilon(1e-5, MU), rel=1e-3)
        # What one point of the profile says is three times as much.
        at_one_point = one_person.found_at_most(first.epsilon or 0, 1e-5, 0.01)
        assert first.found < at_one_point / 2


@pytest.mark.parametrize("rows", one_person.PERSON_ROWS)
def test_several_records_lose_no_more_than_is_said_and_what_the_chain_says(
    api: httpx.Client, engine: Engine, rows: int
) -> None:
    setup(api, dataset_given={"budget": WIDE})
    append(api, gaussian(STEPS))
    told = case(of_dataset(engine), "rows", rows)
    # All k records together shift the sum by at most k: k mu apart.
    assert told.epsilon is not None
    assert told.epsilon >= gaussian_epsilon(1e-5, rows * MU)
    assert told.found >= found_by_best_test(rows * MU)

    def lost(epsilon: float) -> float:
        ways = math.expm1(rows * epsilon) / math.expm1(epsilon)
        return gaussian_delta(epsilon, MU) * ways - 1e-5

    chain = rows * brentq(lost, 1e-3, 20)
    assert chain <= told.epsilon <= 1.03 * chain  # read from a grid of epsilons


def test_the_limit_and_what_is_charged_are_those_of_the_budget(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 300))
    budget = api.get("/v1/datasets/data").json()["budget"]
    found = of_dataset(engine)
    assert found is not None
    assert found.charged == budget["share"]
    assert case(found, "charged").epsilon == budget["spent"]
    limit = case(found, "limit")
    assert (limit.epsilon, limit.delta) == (BUDGET["epsilon"], BUDGET["delta"])
    # (epsilon, delta) bounds both errors: at most min of these two lines (Kairouz et al. 2015).
    epsilon, delta = BUDGET["epsilon"], BUDGET["delta"]
    lines = (math.exp(epsilon) * 0.01 + delta, 1 - math.exp(-epsilon) * (0.99 - delta))
    assert limit.found == pytest.approx(min(lines), rel=1e-9)
    assert limit.found >= case(found, "charged").found >= case(found, "certified").found
    share = of_run(engine)
    assert share is not None
    assert share.charged == pytest.approx(found.charged, rel=1e-9)


def test_beyond_its_limit_a_dataset_is_promised_no_limit(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10**6))
    found = of_dataset(engine)
    assert found is not None
    assert "limit" not in {one.kind for one in found.cases}


def test_without_sampling_the_same_steps_reveal_more(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    found = of_dataset(engine)
    whole = api.get("/v1/datasets/data/guarantee").json()
    assert case(found, "every_step").epsilon == whole["unamplified_epsilon"]
    setup(api, dataset_given={"name": "full-data"}, name="full", dataset="full-data", delta=1e-5)
    append(api, gaussian(1), run="full")
    kinds = {one.kind for one in getattr(of_run(engine, "full"), "cases", [])}
    assert kinds == {"certified", "elsewhere", "rows"}


def test_two_datasets_with_the_same_person_add_up(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": WIDE})
    append(api, gaussian(STEPS))
    told = case(of_dataset(engine), "elsewhere")
    # Both together are one release that is sqrt(2) mu apart: never more than the sum says.
    assert told.epsilon is not None
    assert gaussian_epsilon(1e-5, math.sqrt(2) * MU) <= told.epsilon
    assert told.epsilon == pytest.approx(2 * gaussian_epsilon(5e-6, MU), rel=0.03)
    assert told.found >= found_by_best_test(math.sqrt(2) * MU)


def test_no_chain_is_told_where_its_links_have_other_sizes(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    shuffled = {"kind": "fixed_size", "batch_size": 256}
    append(api, event(0, 10, sampling=shuffled))
    found = of_dataset(engine)
    assert found is not None
    assert not found.groups_known
    assert "rows" not in {one.kind for one in found.cases}
    assert any("no bound is proved here" in text for text in person_notes(found))


def test_corrections_count_in_every_number(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": WIDE})
    append(api, event(0, 100))
    before = case(of_run(engine), "certified")
    really = {"first_step": 0, "steps": 100, "reason": "full batches", "sampling": FULL}
    noise = {"kind": "gaussian", "noise_multiplier": SIGMA}
    answer = api.post("/v1/runs/run/corrections", json=really | {"mechanism": noise})
    assert answer.status_code == 201, answer.text
    after = case(of_run(engine), "certified")
    assert after.found > before.found
    assert after.found >= found_by_best_test(MU)


def test_nothing_is_told_where_nothing_finite_is_certified(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 5, mechanism={"kind": "none"}, sampling=FULL))
    assert of_dataset(engine) is None
    assert of_run(engine) is None
    assert "For one person" not in text_of(api.get("/datasets/data/report").text)
    assert "An attacker with" not in text_of(api.get("/datasets/data/proved").text)


def test_reserved_steps_count_where_that_is_asked(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10))
    ahead = {"name": "ahead", "event": event(10, 50), "ttl_seconds": 600}
    assert api.post("/v1/runs/run/reservations", json=ahead).status_code == 201
    less, more = of_dataset(engine), of_dataset(engine, reserved=True)
    assert case(less, "certified").found < case(more, "certified").found


def test_family_and_what_is_not_covered_are_said(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    api.post(
        "/v1/datasets", json=dataset("copy", parents=["data"], rows_per_parent_record="at_most_one")
    )
    api.post("/v1/runs", json=run("other", dataset="copy"))
    append(api, event(0, 10))
    append(api, event(0, 5), run="other")
    parent, child = of_dataset(engine), of_dataset(engine, "copy")
    assert parent is not None
    assert child is not None
    assert "1 dataset made from this one" in " ".join(person_notes(parent))
    assert "made from 1 other." in " ".join(person_notes(child))
    for found in (parent, child):
        assert "Not covered" in person_notes(found)[-1]
        assert person_rows(found)[0].first


def test_pages_say_it_with_the_same_numbers(api: httpx.Client, engine: Engine) -> None:
    setup(api, dataset_given={"budget": BUDGET, "privacy_unit": "patient"})
    append(api, event(0, 300))
    found = of_dataset(engine)
    assert found is not None
    rows = person_rows(found)
    sentence = "An attacker with a false-positive rate of 1 % finds at most"
    for path in ("/datasets/data/proved", "/datasets/data?proved=true", "/datasets/data/report"):
        text = text_of(api.get(path).text)
        assert sentence in text
        for row in rows:
            assert " ".join(f"{row.case} {row.epsilon} {row.found}".split()) in text
    assert sentence in text_of(api.get("/runs/run/report").text)
    for path in ("/datasets/data/report", "/runs/run/report", "/datasets/data/proved"):
        assert " spent" not in text_of(api.get(path).text)


def test_before_a_step_nothing_is_said_of_an_attacker(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET, "privacy_unit": "patient"})
    text = text_of(api.get("/datasets/data/proved").text)
    assert "No step is recorded or reserved yet: nothing about one patient is revealed." in text
    assert "%" not in text
    text = text_of(api.get("/datasets/data/report").text)
    assert "nothing in the data is revealed by it" in text
    assert "An attacker with" not in text
    append(api, event(0, 1))
    text = text_of(api.get("/datasets/data/proved").text)
    assert "of the people in the data; who guesses without the result finds 1 %." in text
    assert "No step is recorded" not in text


def test_a_statement_leads_to_the_theorem_that_it_names(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 1, sampling=FULL))
    link = '<a href="/docs/theory/composition">docs/theory/composition.md</a>'
    for path in ("/datasets/data/report", "/datasets/data/proved?delta=1e-5", "/runs/run/report"):
        assert link in api.get(path).text
    assert api.get("/docs/theory/composition").status_code == 200
    file = api.get("/datasets/data/report?format=file").text  # a page of no service
    assert "Theorem 3 of dpledger&#39;s docs/theory/composition.md" in file
    assert link not in file


def test_of_a_run_on_its_plan_every_case_counts_the_whole_plan(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, plan=PLAN, budget={"epsilon": 9.0, "delta": 1e-5})
    append(api, PLAN[0] | {"first_step": 0, "steps": 5}).raise_for_status()
    found = of_run(engine)
    whole, elsewhere = case(found, "certified").epsilon, case(found, "elsewhere").epsilon
    assert whole is not None
    assert elsewhere is not None
    assert elsewhere > whole > 1
