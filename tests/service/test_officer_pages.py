"""The pages by which an admin closes a run, voids a reservation and corrects steps."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from html import unescape

import httpx
import pytest
from sqlalchemy import Engine

from service.formatting import bound_reason, percent_up, up
from service.identity.keys import Role
from tests.service.browsing import csrf_of, make_key, signed_in
from tests.service.correlated import sound
from tests.service.dumps import dump
from tests.service.samples import (
    BUDGET,
    GAUSSIAN,
    Json,
    append,
    dataset,
    event,
    run,
    setup,
)
from tests.service.test_keys import bearer
from tests.service.test_listing import words

Serve = Callable[..., AbstractContextManager[str]]
ALERT = re.compile(r'id="\w+-(\w+)-hint" role="alert">([^<]*)<')
POISSON = {"kind": "poisson", "sampling_probability": 0.004}
CORRECTION = {
    "branch": "main", "first": "100", "steps": "300", "noise": "0.8", "sampling": "poisson",
    "rate": "0.01", "batch": "", "pass": "", "reason": "Another clipping norm.",
}  # fmt: skip


class Desk:
    """An admin's browser, and the API beside it; a run with 500 steps."""

    def __init__(self, browser: httpx.Client, api: httpx.Client, reader: str) -> None:
        self.browser, self.api, self.reader = browser, api, reader
        self._csrf = csrf_of(browser)
        setup(api, dataset_given={"budget": BUDGET})
        assert append(api, event(0, 500, sampling=POISSON), mode="charge").status_code == 201

    def send(self, path: str, **given: str) -> httpx.Response:
        return self.browser.post(path, data=given | {"csrf": self._csrf})

    def correct(self, do: str = "preview", **given: str) -> httpx.Response:
        own = CORRECTION | ({"rate": ""} if "sampling" in given else {})
        return self.send("/runs/run/correct", **own | given, do=do)

    def figures(self) -> list[str]:
        """What is certified of the run and of the dataset, and the charged share."""
        paths = ("runs/run", "datasets/data")
        found = [self.api.get(f"/v1/{path}/guarantee").json() for path in paths]
        share = self.api.get("/v1/datasets/data").json()["budget"]["share"]
        return [*(str(up(one["epsilon"])) for one in found), str(percent_up(share))]


@contextmanager
def at_desk(engine: Engine, serve: Serve, **given: object) -> Iterator[Desk]:
    key = make_key(engine, "officer", Role.ADMIN)
    reader = make_key(engine, "reader", Role.VIEWER)
    with (
        serve(**given) as address,
        signed_in(address, key) as browser,
        httpx.Client(base_url=address, headers=bearer(key), timeout=60) as api,
    ):
        yield Desk(browser, api, reader)


@pytest.fixture
def desk(engine: Engine, serve: Serve) -> Iterator[Desk]:
    with at_desk(engine, serve) as found:
        yield found


def faults(answer: httpx.Response) -> dict[str, str]:
    return {name: unescape(text) for name, text in ALERT.findall(answer.text)}


def told(answer: httpx.Response) -> list[tuple[str, str]]:
    """(now, with the correction) of each line of the preview."""
    cells = re.findall(r'<td data-label="[^"]*" class="num">(.*?)</td>', answer.text)
    plain = [unescape(re.sub(r"<[^>]+>.*", "", re.sub(r"</?strong>", "", one))) for one in cells]
    return list(zip(plain[::2], plain[1::2], strict=True))


def test_a_preview_says_what_the_correction_then_changes_and_stores_nothing(
    desk: Desk, engine: Engine
) -> None:
    now, before = desk.figures(), dump(engine)
    answer = desk.correct()
    assert answer.status_code == 200
    assert dump(engine) == before
    assert desk.figures() == now
    assert desk.correct("record").status_code == 303
    after = desk.figures()
    assert told(answer) == list(zip(now, after, strict=True))
    assert "steps with less noise can cost far more at it" in answer.text
    assert all(one != other for one, other in zip(now, after, strict=True))
    (done,) = desk.api.get("/v1/runs/run/corrections").json()["corrections"]
    assert (done["first_step"], done["steps"], done["corrected_by"]) == (100, 300, "officer")
    again = desk.correct()
    assert "The same correction is recorded already" in again.text
    assert told(again) == list(zip(after, after, strict=True))
    assert "Another clipping norm." in desk.browser.get("/runs/run/correct").text


PERMANENT = "it cannot be changed or withdrawn, and a corrected step cannot be corrected again"


def test_a_preview_says_why_there_is_no_bound_and_what_follows(desk: Desk) -> None:
    form = words(desk.browser.get("/runs/run/correct").text)
    assert PERMANENT in form
    assert "For some samplings no finite ε is proved" in form
    bounded = words(desk.correct().text)
    assert PERMANENT in bounded
    assert "With the correction no finite" not in bounded
    shuffled = {"sampling": "shuffle", "batch": "600", "pass": "100"}
    said = words(desk.correct(**shuffled).text)
    nothing = "Nothing more is then admitted on data and on datasets that were made from it"
    assert "With the correction no finite ε is proved. Under “add or remove one”" in said
    fixed = "The dataset's neighbouring relation was fixed when it was created, because every ε"
    assert fixed in said
    assert nothing in said
    assert desk.correct("record", **shuffled).status_code == 303
    reason = desk.api.get("/v1/runs/run/guarantee").json()["reason"]
    assert "Use replace_special or replace_one." in reason  # which no dataset that is there can
    assert "Use replace" not in said
    assert bound_reason(reason) in said
    assert fixed in words(desk.browser.get("/runs/run/guarantee").text)
    refused = append(desk.api, event(500, 1, sampling=POISSON), mode="charge")
    assert refused.status_code == 409
    limit = {"reason": "higher", "budget": {"epsilon": 9e5, "delta": 1e-5}}
    assert desk.api.patch("/v1/datasets/data", json=limit, headers={"if-match": "1"}).is_success
    refused = append(desk.api, event(500, 1, sampling=POISSON), mode="charge")
    assert refused.status_code == 409
    again = desk.correct("record", noise="2.0")
    assert again.status_code == 409
    assert "a step can be corrected once" in again.text
    assert nothing not in words(desk.correct(**shuffled).text)  # it is so already


def test_a_preview_says_that_an_envelope_has_no_item_for_it(engine: Engine, serve: Serve) -> None:
    with at_desk(engine, serve) as desk:
        held = dataset("held", budget={
            "epsilon": 1.0, "delta": 1e-5, "filter": "envelope",
            "envelope": [{"mechanism": GAUSSIAN, "sampling": POISSON, "steps": 200}],
        })  # fmt: skip
        assert desk.api.post("/v1/datasets", json=held).status_code == 201
        assert desk.api.post("/v1/runs", json=run("fits", dataset="held")).status_code == 201
        assert append(desk.api, event(0, 150, sampling=POISSON), run="fits").status_code == 201
        given = CORRECTION | {"first": "0", "steps": "100", "do": "preview"}
        said = words(desk.send("/runs/fits/correct", **given).text)
        assert "With the correction the limit counts no finite share. The envelope" in said
        assert "no finite ε is proved. " not in said
        assert "Nothing more is then admitted on held" in said


def test_steps_that_go_on_while_a_correction_is_previewed_are_not_lost(desk: Desk) -> None:
    assert desk.correct().status_code == 200
    assert append(desk.api, event(500, 10, sampling=POISSON), mode="charge").status_code == 201
    assert desk.correct("record").status_code == 303
    assert desk.api.get("/v1/runs/run").json()["steps"] == 510


@pytest.mark.parametrize(
    ("given", "status", "places"),
    [
        ({"first": "x", "steps": "", "noise": "little"}, 422, {"first", "steps", "noise"}),
        ({"noise": "-1"}, 422, {"noise"}),
        ({"sampling": "other"}, 422, {"sampling"}), ({"rate": "2"}, 422, {"rate"}),
        ({"sampling": "shuffle", "batch": "60"}, 422, {"pass"}),
        ({"sampling": "fixed_size", "batch": ""}, 422, {"batch"}),
        ({"steps": "401"}, 409, {"steps"}), ({"branch": "other"}, 409, {"branch"}),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_correction_is_said_beside_its_field(
    desk: Desk, engine: Engine, given: dict[str, str], status: int, places: set[str]
) -> None:
    before = dump(engine)
    for do in ("preview", "record"):
        answer = desk.correct(do, **given)
        assert (answer.status_code, set(faults(answer))) == (status, places)
    assert dump(engine) == before


def test_a_preview_needs_no_reason_and_a_correction_does(desk: Desk) -> None:
    shown = desk.correct("preview", reason="")
    assert shown.status_code == 200
    assert 'name="reason" value=""' in shown.text
    assert told(shown) == told(desk.correct("preview"))
    wrong = desk.correct("record", reason="")
    assert (wrong.status_code, set(faults(wrong))) == (422, {"reason"})
    assert desk.api.get("/v1/runs/run/corrections").json()["corrections"] == []


@pytest.mark.parametrize(
    ("kind", "others", "sampling"),
    [
        ("shuffle", {"rate"}, {"batch_size": 600, "steps_per_pass": 100, "reshuffle": "each_pass"}),
        ("shuffle_once", {"rate"}, {"batch_size": 600, "steps_per_pass": 100, "reshuffle": "once"}),
        ("cyclic", {"rate"}, {"batch_size": 600, "steps_per_pass": 100}),
        ("fixed_size", {"rate", "pass"}, {"batch_size": 600}),
        ("full", {"rate", "batch", "pass"}, {}), ("unknown", {"rate", "batch", "pass"}, {}),
        ("poisson", {"batch", "pass"}, {"sampling_probability": 0.01}),
    ],
)  # fmt: skip
def test_each_sampling_of_the_form_is_recorded_with_its_own_fields_alone(
    desk: Desk, kind: str, others: set[str], sampling: Json
) -> None:
    given = {"sampling": kind, "rate": "0.01", "batch": "600", "pass": "100"}
    refused = desk.correct("record", **given)
    fault = "must be empty: the sampling that is chosen has none"
    assert (refused.status_code, faults(refused)) == (422, dict.fromkeys(others, fault))
    assert desk.api.get("/v1/runs/run/corrections").json()["corrections"] == []
    given |= dict.fromkeys(others, "")
    assert desk.correct("record", **given).status_code == 303
    (done,) = desk.api.get("/v1/runs/run/corrections").json()["corrections"]
    expected = sampling | {"kind": "shuffle" if kind == "shuffle_once" else kind}
    assert done["sampling"].items() >= expected.items()


def test_a_stale_run_is_closed_for_a_reason_that_the_log_keeps(desk: Desk, engine: Engine) -> None:
    empty = desk.send("/runs/run/finish", state="aborted", reason=" ")
    assert (empty.status_code, set(faults(empty))) == (422, {"reason"})
    wrong = desk.send("/runs/run/finish", state="reopened", reason="x")
    assert (wrong.status_code, set(faults(wrong))) == (422, {"state"})
    done = desk.send("/runs/run/finish", state="aborted", reason="Its machine is gone.")
    assert (done.status_code, done.headers["location"]) == (303, "/runs/run")
    assert desk.api.get("/v1/runs/run").json()["state"] == "aborted"
    acts = desk.api.get("/v1/datasets/data/acts", params={"kind": "run_end_reason"}).json()["acts"]
    said = {"run": "run", "state": "aborted", "reason": "Its machine is gone."}
    assert [(one["by"], one["content"]) for one in acts] == [("officer", said)]
    assert sound(engine) == []  # verification takes the act beside that of the state
    other = desk.send("/runs/run/finish", state="finished", reason="x")
    assert other.status_code == 409
    assert "closed already" in desk.browser.get("/runs/run/finish").text
    assert "/runs/run/finish" not in desk.browser.get("/runs/run").text


def test_a_trainers_own_end_needs_no_reason(desk: Desk) -> None:
    assert desk.api.post("/v1/runs/run:finish", json={"state": "finished"}).status_code == 200
    kinds = [act["kind"] for act in desk.api.get("/v1/datasets/data/acts").json()["acts"]]
    assert "run_end_reason" not in kinds
    assert desk.api.post("/v1/runs", json=run("other")).status_code == 201
    body = {"state": "aborted", "reason": "Lost."}
    assert desk.api.post("/v1/runs/other:finish", json=body).status_code == 200
    acts = desk.api.get("/v1/datasets/data/acts").json()["acts"]
    assert acts[-1]["content"]["reason"] == "Lost."


def test_a_reservation_is_voided_from_the_datasets_page(desk: Desk) -> None:
    lease = {"name": "lease", "event": event(500, 100, sampling=POISSON), "ttl_seconds": 3600}
    assert desk.api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    assert 'href="/reservations/lease/void"' in desk.browser.get("/datasets/data").text
    assert "100 are not recorded" in desk.browser.get("/reservations/lease/void").text
    empty = desk.send("/reservations/lease/void", reason="")
    assert (empty.status_code, set(faults(empty))) == (422, {"reason"})
    done = desk.send("/reservations/lease/void", reason="The trainer never started.")
    assert done.headers["location"] == "/datasets/data#reservations"
    found = desk.api.get("/v1/reservations/lease").json()
    assert (found["state"], found["reason"]) == ("voided", "The trainer never started.")
    assert desk.api.get("/v1/datasets/data").json()["budget"]["share_reserved"] == 0
    assert desk.browser.get("/reservations/none/void").status_code == 404


def test_only_an_admins_own_form_is_taken(desk: Desk, engine: Engine) -> None:
    paths = ("/runs/run/finish", "/runs/run/correct", "/reservations/lease/void")
    before = dump(engine)
    for path in paths:
        assert desk.browser.post(path, data=CORRECTION | {"csrf": "00"}).status_code == 403
    with signed_in(str(desk.browser.base_url).rstrip("/"), desk.reader) as reader:
        for path in paths:
            assert reader.get(path).status_code == 403
            sent = CORRECTION | {"csrf": csrf_of(reader)}
            assert reader.post(path, data=sent).status_code == 403
        text = reader.get("/runs/run").text + reader.get("/datasets/data").text
        assert not any(path in text for path in paths)
    assert dump(engine) | {"sessions": []} == before | {"sessions": []}


def test_what_needs_a_second_person_waits_on_these_pages_too(engine: Engine, serve: Serve) -> None:
    with at_desk(engine, serve, approvals=("voids", "corrections")) as desk:
        lease = {"name": "lease", "event": event(500, 100, sampling=POISSON), "ttl_seconds": 3600}
        assert desk.api.post("/v1/runs/run/reservations", json=lease).status_code == 201
        before = desk.figures()
        waiting = [
            desk.send("/reservations/lease/void", reason="The trainer never started."),
            desk.correct("record", noise="2.0", rate="0.004"),  # it lowers epsilon
        ]
        found = desk.api.get("/v1/requests").json()["requests"]
        assert [one["kind"] for one in found] == ["void", "correction"]
        places = [f"/requests/{one['id']}" for one in found]
        assert "A void of a reservation: lease" in desk.browser.get(places[0]).text
        assert [one.headers["location"] for one in waiting] == places
        assert desk.api.get("/v1/reservations/lease").json()["state"] == "pending"
        assert desk.figures() == before


def test_no_person_frees_what_another_holds(engine: Engine, serve: Serve) -> None:
    trainer = make_key(engine, "eve", Role.TRAINER)
    with at_desk(engine, serve, approvals=("voids",)) as desk:
        own = bearer(trainer)
        lease = {"name": "lease", "event": event(500, 100, sampling=POISSON), "ttl_seconds": 3600}
        assert (
            desk.api.post("/v1/runs/run/reservations", json=lease, headers=own).status_code == 201
        )
        back = {"last_step": 499}
        waits = desk.api.post("/v1/reservations/lease:release", json=back)
        assert waits.status_code == 202
        assert waits.json()["kind"] == "void"
        assert desk.api.get("/v1/reservations/lease").json()["state"] == "pending"
        step = {"mechanism": GAUSSIAN, "sampling": POISSON, "steps": 50}
        planned = run("planned") | {"plan": [step], "budget": {"epsilon": 1.0, "delta": 1e-5}}
        answer = desk.api.post("/v1/runs", json=planned, headers=own)
        assert answer.status_code == 201, answer.text
        end = {"state": "aborted"}
        refused = desk.api.post("/v1/runs/planned:finish", json=end)
        assert refused.json()["type"] == "/problems/another-person"
        page = desk.send("/runs/planned/finish", state="aborted", reason="Gone.")
        assert page.status_code == 409
        assert "returns what its plan holds" in page.text
        assert desk.api.post("/v1/runs/planned:finish", json=end, headers=own).status_code == 200
        done = desk.api.post("/v1/reservations/lease:release", json=back, headers=own)
        assert done.status_code == 200


def test_a_correction_of_steps_that_are_not_recorded_is_refused_before_it_is_compared(
    engine: Engine, serve: Serve
) -> None:
    with at_desk(engine, serve, approvals=("corrections",)) as desk:
        new = {
            "branch": "main", "first_step": 499, "steps": 2, "reason": "x",
            "mechanism": {"kind": "gaussian", "noise_multiplier": 0.5}, "sampling": POISSON,
        }  # fmt: skip
        answer = desk.api.post("/v1/runs/run/corrections", json=new)
        assert answer.json()["type"] == "/problems/out-of-sequence"
        assert desk.api.get("/v1/requests").json()["requests"] == []
        assert desk.api.post("/v1/runs/run/corrections", json=new | {"steps": 1}).status_code == 201


def test_a_closed_run_without_steps_awaits_none(desk: Desk) -> None:
    assert desk.api.post("/v1/runs", json=run("unused")).status_code == 201
    assert "No step has been recorded yet" in desk.browser.get("/runs/unused").text
    assert desk.send("/runs/unused/finish", state="aborted", reason="Unused.").status_code == 303
    part = desk.browser.get("/runs/unused/guarantee").text
    assert "No step</p>" in part
    assert "appears with the first" not in part
    assert "No step has been recorded yet" not in desk.browser.get("/runs/unused").text


def test_steps_without_a_bound_are_not_called_reserved(desk: Desk) -> None:
    assert append(desk.api, event(500, 1, mechanism={"kind": "none"})).status_code == 201
    page = desk.browser.get("/").text
    assert ">no finite bound</strong>" in page
    assert 'data-label="Reserved" class="num empty-cell"' in page
    note = "Charged by this run alone"
    other = run("other")
    assert desk.api.post("/v1/runs", json=other).status_code == 201
    assert append(desk.api, event(0, 5, sampling=POISSON), run="other").status_code == 201
    statement = desk.browser.get("/runs/other/report").text
    whole = words(desk.browser.get("/datasets/data/report").text)
    assert "no finite bound for what is charged, left 0" in whole
    assert whole.count("no finite bound — ") >= 3  # at each delta, without a lower end
    assert note in statement
    assert "The limit is exceeded: nothing more is admitted." in statement


def test_a_run_is_closed_without_a_word_about_its_end(desk: Desk) -> None:
    shown = desk.browser.get("/runs/run/finish").text
    assert '<option value="aborted" selected>' in shown
    assert "Leave the first if you do not know" in shown
    assert desk.send("/runs/run/finish", reason="Its machine is gone.").status_code == 303
    assert desk.api.get("/v1/runs/run").json()["state"] == "aborted"
