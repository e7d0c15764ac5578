"""Random sequences of requests and decisions by five people: no change by one pair of eyes."""

import random
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
from sqlalchemy import Connection, Engine

from service.errors import LedgerError
from service.ledger.change_requests import four_eyes
from service.ledger.change_requests.decisions import decide
from service.ledger.change_requests.messages import NewChangeRequest
from service.ledger.change_requests.persons import Actor
from service.ledger.datasets import create_dataset
from service.ledger.lookups import find_dataset
from service.schemas.requests import ChangedBudget, DatasetChange, NewDataset
from service.schemas.responses import DatasetAnswer
from service.storage.engine import snapshot, transaction
from service.transparency.activity import all_acts
from tests.service.office import APPROVALS, PEOPLE, WHY, Office, make_keys, working
from tests.service.samples import BUDGET, Json, dataset
from tests.service.test_keys import Serve


@pytest.fixture
def strict(serve: Serve, engine: Engine) -> Iterator[Office]:
    """A service on which two persons agree to what lets more be spent."""
    with working(serve, make_keys(engine), approvals=APPROVALS) as found:
        yield found


def test_no_mixture_of_calls_raises_a_limit_by_one_pair_of_eyes(
    strict: Office, engine: Engine
) -> None:
    chance = random.Random(26)
    asked: list[Json] = []
    for _ in range(CALLS):
        key, what = chance.choice(KEYS), chance.random()
        body = {"reason": str(chance.random()), "budget": drawn(chance)}
        if what < 0.25:
            answer = strict[key].post("/v1/datasets/data/requests", json=body)
        elif what < 0.5:
            etag = strict[key].get("/v1/datasets/data").headers["etag"]
            answer = strict[key].patch("/v1/datasets/data", json=body, headers={"if-match": etag})
        elif asked:
            verb = chance.choice(("approve", "approve", "reject", "withdraw"))
            path = f"/v1/requests/{chance.choice(asked[-4:])['id']}:{verb}"
            answer = strict[key].post(path, json=WHY)
        else:
            continue
        assert answer.status_code < 500, answer.text
        if answer.status_code in (201, 202):
            asked.append(answer.json())
    assert_four_eyes(engine, least=10)


def test_in_a_thousand_sequences_no_limit_is_raised_by_one_pair_of_eyes(engine: Engine) -> None:
    chance = random.Random(27)
    with transaction(engine) as connection:
        new = NewDataset.model_validate(dataset(budget=BUDGET))
        create_dataset(connection, new, by="ann")
    done: Counter[str] = Counter()
    for _ in range(SEQUENCES):
        asked: list[str] = []
        for _ in range(chance.randint(2, 6)):
            try:
                with transaction(engine) as connection:
                    done[act(connection, chance, asked)] += 1
            except LedgerError as refusal:
                done[refusal.slug] += 1
    assert_four_eyes(engine, least=100)
    assert min(done[one] for one in ("approved", "rejected", "withdrawn", "another-person")) > 50


def act(connection: Connection, chance: random.Random, asked: list[str]) -> str:
    """One random act of one of five people; what came of it."""
    key, what = chance.choice(KEYS), chance.random()
    by, budget = Actor(key, PERSON_OF[key]), ChangedBudget(**drawn(chance))
    if what < 0.25 or not asked:
        new = NewChangeRequest(reason=str(chance.random()), budget=budget)
        found, _ = four_eyes.ask_for_budget(connection, "data", new, if_match=None, by=by)
    elif what < 0.5:
        change = DatasetChange(reason=str(chance.random()), budget=budget)
        present = str(find_dataset(connection, "data").revision)
        answer = four_eyes.change_or_ask(
            connection, "data", change, if_match=present, by=by, approvals=frozenset({"limits"})
        )
        if isinstance(answer, DatasetAnswer):
            return "changed"
        found = answer
    else:
        verb = chance.choice(("approve", "approve", "reject", "withdraw"))
        return decide(connection, chance.choice(asked), verb, reason="x", by=by).state
    asked.append(found.id)
    return found.state


def drawn(chance: random.Random) -> Json:
    return {"epsilon": float(chance.randint(1, 9)), "delta": 1e-5}


CALLS: Final = 300
SEQUENCES: Final = 1000
KEYS: Final = [name for name in PEOPLE if name != "vic"]
PERSON_OF: Final = {name: person for name, (person, _) in PEOPLE.items()}


def assert_four_eyes(engine: Engine, *, least: int) -> None:
    """From the log alone: each higher limit was asked for by one person and approved by another."""
    with snapshot(engine) as connection:
        told = list(all_acts(connection, "data"))
    limit, requests, approved = None, {}, None
    raised = lowered = 0
    for act in told:
        content = act.content
        if act.kind == "change_request":
            assert PERSON_OF[act.by or ""] == content["person"]
            requests[content["name"]] = act
        elif act.kind == "change_decision":
            assert PERSON_OF[act.by or ""] == content["person"]
            approved = act if content["decision"] == "approved" else approved
        elif act.kind == "settings":
            new = content["budget_epsilon"]
            if limit is not None and new > limit:
                raised += 1
                assert approved is not None
                asked = requests.pop(approved.content["name"])  # each of them once
                assert asked.content["change"]["budget"]["epsilon"] == new
                assert asked.content["revision"] == content["revision"] - 1
                assert asked.content["person"] != approved.content["person"]
                assert (content["requested_by"], content["changed_by"]) == (asked.by, approved.by)
            else:
                lowered += limit is not None
            approved, limit = None, new
    assert min(raised, lowered) >= least
