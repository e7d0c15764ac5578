"""How many records each pass of a shuffled loader leaves out: said, compared, shown."""

import httpx
import pytest

from tests.service.samples import POISSON, Json, append, event, setup
from tests.service.test_run_page import SHUFFLE, whole

BOUNDED: Json = {"neighboring_relation": "replace_special", "accept": ["published", "derived"]}


@pytest.mark.parametrize(("steps", "left"), [(99, 600), (100, 0)])
def test_a_run_tells_how_many_records_its_passes_leave_out(
    api: httpx.Client, steps: int, left: int
) -> None:
    setup(api)
    for said in (SHUFFLE, SHUFFLE | {"left_out": left}):
        told = event(0, 99, sampling=said | {"steps_per_pass": steps})
        assert append(api, told, mode="record").status_code in (200, 201)  # the same steps again
    (span,) = whole(api, "schedule")["spans"]
    assert (span["sampling"], span["left_out"]) == ("shuffle", left)
    append(api, event(99, 1, sampling=POISSON), mode="record")
    assert [one["left_out"] for one in whole(api, "schedule")["spans"]] == [left, None]


def test_a_number_that_the_other_fields_contradict_is_refused(api: httpx.Client) -> None:
    setup(api)
    wrong = event(0, 99, sampling=SHUFFLE | {"steps_per_pass": 99, "left_out": 96})
    answer = append(api, wrong, mode="record")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert error["location"] == "body.events[0].sampling.left_out"
    assert error["message"] == (
        "must be 600 for this dataset: of 60000 records, 99 steps of 600 leave 600 out"
    )
    for value in (-1, 1.5, 10**12 + 1, "0"):
        asked = event(0, 99, sampling=SHUFFLE | {"left_out": value})
        assert append(api, asked, mode="record").status_code == 422


def test_only_a_pass_that_leaves_records_out_is_amplified(api: httpx.Client) -> None:
    told = {}
    for steps, left in ((99, 600), (100, 0)):
        sampling = SHUFFLE | {"steps_per_pass": steps, "left_out": left}
        planned = event(0, 10 * steps, sampling=sampling)
        planned["mechanism"] = {"kind": "gaussian", "noise_multiplier": 4.0}
        body = BOUNDED | {"dataset_size": 60_000, "delta": 1e-5, "events": [planned]}
        told[left] = api.post("/v1/plan", json=body).json()
    assert told[0]["bound"] == "gaussian-per-pass"
    assert "shuffled-batches" in told[600]["bound"]
    assert told[600]["epsilon"] < 0.5 * told[0]["epsilon"]
