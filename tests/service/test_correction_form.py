"""The form of a correction: it begins with what was recorded, or with what was detected."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import Engine

from tests.service.samples import SAMPLING, append, event
from tests.service.test_officer_pages import POISSON, Desk, at_desk, faults, told

Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture
def desk(engine: Engine, serve: Serve) -> Iterator[Desk]:
    with at_desk(engine, serve) as found:
        yield found


def test_the_form_of_a_correction_begins_with_what_was_recorded_last(desk: Desk) -> None:
    shown = {"branch": "main", "first": "0", "steps": "500", "noise": "1.1", "rate": "0.004"}
    assert filled(desk) == shown | {"sampling": "poisson", "batch": "", "pass": ""}
    text = desk.browser.get("/runs/run/correct").text
    assert "recorded as Gaussian, noise multiplier 1.1 · Poisson, sampling probability" in text
    loader = {"kind": "shuffle", "batch_size": 60, "steps_per_pass": 1000, "reshuffle": "once"}
    noise = {"kind": "gaussian", "noise_multiplier": 0.7 + 0.1}  # a number of many digits
    sent = event(500, 4, sampling=loader, mechanism=noise)
    assert append(desk.api, sent).status_code == 201
    assert append(desk.api, sent | {"first_step": 504, "steps": 2}).status_code == 201
    # What was recorded before was something else: the form begins behind it.
    assert filled(desk) == {
        "branch": "main", "first": "500", "steps": "6", "noise": repr(0.7 + 0.1), "rate": "",
        "sampling": "shuffle_once", "batch": "60", "pass": "1000",
    }  # fmt: skip
    # Sent as it is, it changes nothing.
    same = desk.send("/runs/run/correct", **filled(desk), do="preview", reason="As it is.")
    assert same.status_code == 200, faults(same)
    assert all(one == other for one, other in told(same))
    laplace = {"kind": "laplace", "noise_multiplier": 4.0}
    done = append(desk.api, event(506, 1, sampling=POISSON, mechanism=laplace))
    assert done.status_code == 201, done.text
    assert filled(desk).items() >= {"first": "506", "steps": "1", "noise": ""}.items()


def test_a_contradicted_run_begins_with_what_its_code_was_seen_to_do(desk: Desk) -> None:
    loader = {"kind": "shuffle", "batch_size": 240, "steps_per_pass": 250, "reshuffle": "each_pass"}
    found = SAMPLING | {"status": "contradicted", "declared": POISSON, "reason": "It shuffles."}
    assert desk.correct("record", first="0", steps="10").status_code == 303  # not of the sampling
    for batch in (120, 240):
        recorded = loader | {"batch_size": batch, "steps_per_pass": 60_000 // batch}
        sent = desk.api.post("/v1/runs/run/findings", json=found | {"recorded": recorded})
        assert sent.status_code == 201, sent.text
    assert desk.api.post("/v1/runs/run/findings", json=SAMPLING).status_code == 201
    shown = {"first": "10", "steps": "490", "noise": "1.1", "rate": "", "sampling": "shuffle"}
    assert filled(desk).items() >= (shown | {"batch": "240", "pass": "250"}).items()
    assert "that the code was seen to use" in desk.browser.get("/runs/run/correct").text
    caveat = "the code of a run was seen to sample otherwise than was recorded"
    assert caveat in desk.browser.get("/datasets/data/proved").text
    sent_form = filled(desk) | {"reason": "The loader shuffles."}
    assert desk.send("/runs/run/correct", **sent_form, do="record").status_code == 303
    assert caveat not in desk.browser.get("/datasets/data/proved").text


def test_a_branch_without_steps_has_nothing_to_correct(desk: Desk) -> None:
    branch = {"name": "b", "from_branch": "main", "from_step": 20, "writer": "writer-of-branch-b"}
    assert desk.api.post("/v1/runs/run/branches", json=branch).status_code == 201
    assert filled(desk).items() >= {"branch": "b", "first": "", "noise": ""}.items()
    assert "recorded as" not in desk.browser.get("/runs/run/correct").text
    assert append(desk.api, event(20, 5, sampling=POISSON), branch="b").status_code == 201
    assert filled(desk).items() >= {"branch": "b", "first": "20", "steps": "5"}.items()


def test_steps_that_are_corrected_are_not_offered_again(desk: Desk) -> None:
    form = "/runs/run/correct"
    assert desk.correct("record", first="300", steps="200").status_code == 303
    assert filled(desk).items() >= {"first": "0", "steps": "300"}.items()
    assert "The last steps that are not corrected were recorded as" in desk.browser.get(form).text
    assert desk.correct("record", first="100", steps="50").status_code == 303
    assert filled(desk).items() >= {"first": "150", "steps": "150"}.items()
    # Sent as it is, it is not refused.
    assert desk.send(form, **filled(desk), do="record", reason="x").status_code == 303
    assert filled(desk).items() >= {"first": "0", "steps": "100"}.items()
    again = desk.correct("record", first="90", steps="30", reason="y")
    assert again.status_code == 409
    assert "Steps 100 to 149 were already corrected" in again.text
    assert desk.correct("record", first="0", steps="100").status_code == 303
    text = desk.browser.get(form).text
    assert "Every recorded step is corrected already" in text
    assert 'action="/runs/run/correct"' not in text  # a form that would be refused
    assert desk.send(form, first="5", do="record").status_code == 422  # is shown with its faults
    # What is recorded after that is offered.
    assert append(desk.api, event(500, 7, sampling=POISSON)).status_code == 201
    assert filled(desk).items() >= {"first": "500", "steps": "7"}.items()


def filled(desk: Desk) -> dict[str, str]:
    """What stands in the form of a correction, but for the reason."""
    text = desk.browser.get("/runs/run/correct").text
    form = text[text.index('action="/runs/run/correct"') :].partition("</form>")[0]
    typed = dict(re.findall(r'<input id="correct-\w+" name="(\w+)" value="([^"]*)"', form))
    chosen = re.findall(r'name="(\w+)"[^>]*>(?:<option value="\w+">[^<]*</option>)*'
                        r'<option value="(\w+)" selected>', form)  # fmt: skip
    typed.pop("reason")
    return typed | dict(chosen)
