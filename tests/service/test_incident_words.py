"""Incidents of a limit say the shares that the page of the dataset shows."""

import re

import httpx

from tests.service.samples import BUDGET, Json, append, event, setup
from tests.service.test_dataset_page import page, words

RENYI: Json = BUDGET | {"filter": "fixed_order_renyi", "orders": [8.0]}


def incident(text: str, kind: str) -> str:
    found = re.search(rf"{kind} run .*?\u00b7 at δ|{kind} run .*?limit 3", text)
    assert found, text
    return found[0]


def test_a_threshold_and_a_refusal_say_the_share_that_the_page_shows(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": RENYI})
    steps, at_once = 0, 200
    while (budget := api.get("/v1/datasets/data").json()["budget"])["share"] < 0.8:
        assert append(api, event(steps, at_once), mode="charge").status_code == 201
        steps += at_once
    assert append(api, event(steps, 10**5), mode="charge").status_code == 409
    # The share and the ratio of the epsilons are different numbers: the incident tells them apart.
    assert abs(budget["share"] - budget["spent"] / budget["epsilon"]) > 0.02
    text = words(page(api))
    headline = re.search(r"Charged, of the capacity at ε 3 ([\d.]+ %)", text)
    assert headline
    for kind in ("Threshold", "Refusal"):
        assert f"charged {headline[1]} of the capacity" in incident(text, kind)
    assert "passed 80 % of the capacity" in incident(text, "Threshold")
    assert re.search(r"the steps would add [\d,]+ %", incident(text, "Refusal"))
    assert re.search(r"as an ε: charged [\d.]+, reserved 0, ", incident(text, "Threshold"))
