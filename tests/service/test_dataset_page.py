"""The page of a dataset: what it tells, to whom, and how an admin changes the limit on it."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Final

import httpx
import pytest
from sqlalchemy import Engine, update

from benchmarks.servers import START_TOKEN
from service.errors import InvalidRequestError
from service.formatting import down, percent_down, percent_up, up
from service.guarantees import event_costs
from service.identity.keys import Role
from service.ledger.incidents import Kind
from service.storage.engine import transaction
from service.storage.tables import reservations
from service.web.dashboard import glossary
from service.web.dashboard.forms import budget_form
from tests.service.browsing import make_key, signed_in
from tests.service.samples import BUDGET, POISSON, Json, append, dataset, event, run, setup

Serve = Callable[..., AbstractContextManager[str]]
HOSTILE: Final = '"><script>alert(1)</script><b/onload=x>&amp;'
INLINE: Final = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle\s*=|\son[a-z]+\s*=|javascript:")
QUIET: Json = {"kind": "gaussian", "noise_multiplier": 8.0}


def page(api: httpx.Client, name: str = "data", **query: object) -> str:
    answer = api.get(f"/datasets/{name}", params={k: str(v) for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    assert not INLINE.search(answer.text)
    assert len(answer.content) < 150_000
    return answer.text


def words(text: str) -> str:
    """The page as it is read: without tags, spaces made one."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", text)).split())


def fields(text: str) -> dict[str, str]:
    """What the form on a page holds."""
    form = text[text.index('/limit"') :].partition("</form>")[0]
    found = re.findall(r'name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in found}


def send(client: httpx.Client, given: dict[str, str], form: str = "limit") -> httpx.Response:
    origin = str(client.base_url).rstrip("/")
    return client.post(f"/datasets/data/{form}", data=given, headers={"origin": origin})


# ---- what it tells


def test_the_headline_is_what_the_api_tells_rounded_up(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1000))
    share = api.get("/v1/datasets/data").json()["budget"]["share"]
    text = words(page(api))
    charged, left = (" ".join(one.split()) for one in (percent_up(share), percent_down(1 - share)))
    assert f"Charged, of the capacity at ε 3 {charged}" in text
    assert "It holds however the steps were chosen." in text
    assert f"Left {left} Reserved 0" in text
    append(api, event(1000, 10**7))
    assert "Over the limit by" in words(page(api))


def test_what_is_proved_stands_beside_with_its_lower_end(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 1000))
    told = api.get("/v1/datasets/data/guarantee").json()["without_reservations"]
    wanted = f"ε at most {up(told['epsilon'])} and at least ≥ {down(told['epsilon_lower'])}"
    assert 'hx-get="/datasets/data/proved?delta=1e-05"' in page(api)
    part = api.get("/datasets/data/proved")
    assert part.status_code == 200
    assert wanted in words(part.text)
    assert "<html" not in part.text
    assert wanted in words(page(api, proved="true"))  # where no script runs


def test_who_spent_what_is_the_explanation(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert api.post("/v1/runs", json=run("other")).status_code == 201
    append(api, event(0, 100))
    append(api, event(0, 400, mechanism=QUIET), run="other")
    text = words(page(api))
    for one in api.get("/v1/datasets/data/explain").json()["runs"]:
        assert one["run"] in text
        assert f"{up(one['epsilon'])} {up(one['epsilon_without'])}" in text


def test_runs_beyond_a_dozen_are_told_together(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": {"epsilon": 90.0, "delta": 1e-5}})
    for number in range(14):
        assert api.post("/v1/runs", json=run(f"run-{number}")).status_code == 201
        append(api, event(0, 100 + number), run=f"run-{number}")
    text = page(api)
    assert "2 others together" in text
    assert "7 other runs" in words(text)  # of the picture


def test_a_dataset_without_a_limit_is_told_at_a_delta(api: httpx.Client) -> None:
    setup(api)
    append(api, event(0, 500))
    for delta in (1e-5, 1e-7):
        told = api.get("/v1/datasets/data/explain", params={"delta": delta}).json()
        assert f"at δ = {delta:.0e}".replace("e-0", "e-") in words(page(api, delta=delta))
        assert up(told["epsilon"]) in page(api, delta=delta)
    assert "everything fits" in page(api)
    assert api.get("/datasets/data", params={"delta": "2"}).status_code == 422


def test_an_empty_dataset_teaches(api: httpx.Client) -> None:
    assert api.post("/v1/datasets", json=dataset(budget=BUDGET)).status_code == 201
    text = page(api)
    assert "start_run" in text
    assert "Spending over time</h2>" not in text
    assert "has no limit" not in text


def test_what_still_fits_is_what_a_charge_admits(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 200))
    found = re.search(r"noise 1\.1 usual ([\d,]+) steps", words(page(api)))
    assert found is not None
    steps = int(found[1].replace(",", ""))
    sampling = POISSON | {"sampling_probability": 256 / 60000}
    too_long = event(200, steps + 1, sampling=sampling)
    assert append(api, too_long, mode="charge").status_code == 409
    fits = event(200, steps, sampling=sampling)
    assert append(api, fits, mode="charge").status_code == 201
    assert "noise 1.1 usual nothing" in words(page(api))


def test_incidents_come_with_what_to_do(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100_000))
    text = words(page(api))
    assert "overdrawn" in text
    assert glossary.ADVICE[Kind.OVERDRAFT].do in text
    assert text.index("Incidents") < text.index("Overdraft")


def test_every_kind_of_incident_has_advice() -> None:
    assert set(glossary.ADVICE) == set(Kind)


def test_the_family_is_drawn_with_its_parents(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    for name, parent in (("child", "data"), ("grandchild", "child")):
        body = dataset(name, parents=[parent], rows_per_parent_record="at_most_one")
        assert api.post("/v1/datasets", json=body).status_code == 201
    text = page(api, "child")
    assert 'href="/datasets/data"' in text
    assert 'href="/datasets/grandchild"' in text
    assert text.count("pedigree-line") == 2
    assert "pedigree-line" not in page_of_alone(api)


def page_of_alone(api: httpx.Client) -> str:
    assert api.post("/v1/datasets", json=dataset("alone")).status_code == 201
    return page(api, "alone")


def test_what_cannot_be_explained_leaves_the_rest(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 10), event(10, 10, mechanism=QUIET))
    monkeypatch.setattr(event_costs, "PRICED_EVENTS_MAX", 1)
    text = page(api)
    assert "more than 1 different events" in text
    assert "of the capacity at ε 3" in words(text)


def test_what_has_no_bound_is_said_to_have_none(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    none: Json = {"kind": "none"}
    append(api, event(0, 5), event(5, 1, mechanism=none, sampling={"kind": "full"}))
    text = words(page(api))
    assert "no finite bound" in text
    assert "no finite ε is proved" in text


def test_a_certificate_is_had_from_the_page(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 5))
    answer = api.get("/datasets/data/certificate")
    told = api.get("/v1/datasets/data/certificate")
    assert answer.status_code == told.status_code
    if told.status_code == 200:  # the service has a key to sign with
        assert answer.json().keys() == told.json().keys()


def test_what_is_not_there_is_a_page_that_says_so(api: httpx.Client) -> None:
    answer = api.get("/datasets/nothing", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "Not found" in answer.text
    assert api.get("/datasets/..%2f", headers={"accept": "text/html"}).status_code in (404, 422)


# ---- to whom


def test_what_people_wrote_is_never_markup(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET, "privacy_unit": HOSTILE})
    append(api, event(0, 5))
    change = {"reason": HOSTILE, "budget": {"epsilon": 4.0, "delta": 1e-5}}
    answer = api.patch("/v1/datasets/data", json=change, headers={"if-match": '"1"'})
    assert answer.status_code == 200
    text = page(api)
    assert "<script>alert" not in text
    assert "<b/onload" not in text
    assert text.count("alert(1)&lt;/script&gt;") >= 4  # unit, mark, incident, history


def test_a_limited_key_sees_its_own_datasets_and_no_name_of_another(
    api: httpx.Client, engine: Engine, serve: Serve
) -> None:
    setup(api, dataset_given={"budget": BUDGET, "name": "zebras"}, dataset="zebras", name="stripes")
    append(api, event(0, 5), run="stripes")
    body = dataset("letters", parents=["zebras"], rows_per_parent_record="at_most_one")
    assert api.post("/v1/datasets", json=body).status_code == 201
    assert api.post("/v1/runs", json=run("reader", dataset="letters")).status_code == 201
    append(api, event(0, 9), run="reader")
    below = make_key(engine, "ada", scope=Role.TRAINER, datasets=frozenset({"letters"}))
    above = make_key(engine, "eve", scope=Role.TRAINER, datasets=frozenset({"zebras"}))
    with serve() as address:
        with signed_in(address, below) as client:
            text = page(client, "letters")
            assert "zebras" not in text
            assert "another dataset" in text
            for path in ("/datasets/zebras", "/datasets/zebras/proved"):
                assert client.get(path).status_code == 404
        with signed_in(address, above) as client:
            text = page(client, "zebras")
            assert "stripes" in text
            assert "reader" not in text
            assert "letters" not in text


# ---- how its limit is changed


@pytest.fixture
def admin(engine: Engine, api: httpx.Client, serve: Serve) -> Iterator[httpx.Client]:
    """Somebody who may change it, on a dataset with a limit of 3 and something spent."""
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    key = make_key(engine, "officer", scope=Role.ADMIN)
    with serve() as address, signed_in(address, key) as client:
        yield client


def settings(client: httpx.Client, engine: Engine) -> list[Json]:
    key = make_key(engine, f"reader-{datetime.now(UTC).timestamp():.0f}")
    headers = {"authorization": f"Bearer {key}"}

    def ask() -> httpx.Response:
        return httpx.get(f"{client.base_url}/v1/datasets/data/settings", headers=headers)

    for _ in range(200):
        if (answer := ask()).status_code == 200:
            break
    found: list[Json] = answer.json()["settings"]
    return found


def test_an_admin_changes_the_limit_for_a_reason(admin: httpx.Client) -> None:
    given = fields(page(admin))
    assert (given["epsilon"], given["delta"], given["revision"]) == ("3", "1e-5", "1")
    answer = send(admin, given | {"epsilon": "4.5", "reason": "More was collected"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/datasets/data#limits")
    text = page(admin)
    assert "of the capacity at ε 4.5" in words(text)
    assert "ε 4.5 at δ 1e-5 just now by officer More was collected" in words(text)
    assert fields(text)["revision"] == "2"
    assert "layers-mark" in text


def test_a_stale_form_is_refused_and_shows_what_is_there_now(admin: httpx.Client) -> None:
    given = fields(page(admin))
    assert send(admin, given | {"epsilon": "4.5", "reason": "first"}).status_code == 303
    late = send(admin, given | {"epsilon": "9", "reason": "second"})
    assert late.status_code == 409
    assert "The settings changed meanwhile" in late.text
    assert "of the capacity at ε 4.5" in words(late.text)
    again = fields(late.text)
    assert (again["epsilon"], again["reason"], again["revision"]) == ("9", "second", "2")
    assert send(admin, again).status_code == 303
    assert "of the capacity at ε 9" in words(page(admin))


WRONG: Final = (
    ({"epsilon": "much"}, "epsilon", budget_form.NOT_A_NUMBER),
    ({"epsilon": "-1"}, "epsilon", "must"),
    ({"epsilon": "nan"}, "epsilon", "finite"),
    ({"epsilon": ""}, "epsilon", budget_form.NOT_A_NUMBER),
    ({"delta": "1e-7"}, "delta", "cannot change once answers were seen"),
    ({"reason": ""}, "reason", "must not be empty"),
    ({"reason": "a\x07b"}, "reason", "printable"),
    ({"epsilon": "3"}, "form", "the settings of data are already so: nothing would change"),
    ({"revision": ""}, "form", "revision"),
    ({"epsilon": HOSTILE}, "epsilon", budget_form.NOT_A_NUMBER),
)


def test_what_is_wrong_is_said_beside_its_field(admin: httpx.Client) -> None:
    given = fields(page(admin)) | {"epsilon": "4", "reason": "why"}
    for wrong, field, said in WRONG:
        answer = send(admin, given | wrong)
        assert answer.status_code in (409, 422)
        assert "<script>alert" not in answer.text
        place = 'class="fault" role="alert"' if field == "form" else f'id="limit-{field}-hint"'
        beside = answer.text[answer.text.index(place) :]
        assert said in unescape(beside[: beside.index("</p>")])
        assert answer.text.count('aria-invalid="true"') == (field != "form")
        assert 'href="#change-limit"' in answer.text  # said at the top, too
    assert fields(page(admin))["revision"] == "1"
    again = admin.get("/datasets/data/limit")  # the answer is loaded again
    assert (again.status_code, again.headers["location"]) == (303, "/datasets/data#limits")


def test_a_form_of_another_session_changes_nothing(admin: httpx.Client) -> None:
    given = fields(page(admin)) | {"epsilon": "9", "reason": "why"}
    own = given.pop("csrf")
    for sent in ({}, {"csrf": ""}, {"csrf": "0" * len(own)}, {"csrf": own[:-1]}):
        assert send(admin, given | sent).status_code == 403
    assert fields(page(admin))["epsilon"] == "3"


def test_a_form_of_another_site_changes_nothing(admin: httpx.Client) -> None:
    given = fields(page(admin)) | {"epsilon": "9", "reason": "why"}
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": str(admin.base_url).rstrip("/"), "sec-fetch-site": "cross-site"},
    ):
        answer = admin.post("/datasets/data/limit", data=given, headers=headers)
        assert answer.status_code == 403
    assert fields(page(admin))["epsilon"] == "3"


def test_only_an_owner_or_an_admin_sees_the_form_and_may_send_it(
    admin: httpx.Client, engine: Engine, serve: Serve
) -> None:
    given = fields(page(admin)) | {"epsilon": "9", "reason": "why"}
    key = make_key(engine, "looker", scope=Role.VIEWER)
    with serve() as address, signed_in(address, key) as client:
        text = page(client)
        assert "Only a key of scope owner or admin can change it" in text
        assert "/limit" not in text
        assert send(client, given).status_code == 403
    assert fields(page(admin))["epsilon"] == "3"


def test_the_change_is_kept_as_the_api_keeps_it(admin: httpx.Client, engine: Engine) -> None:
    given = fields(page(admin))
    assert send(admin, given | {"epsilon": "2.5", "reason": "Less"}).status_code == 303
    first, second = settings(admin, engine)
    assert (first["epsilon"], second["epsilon"]) == (3.0, 2.5)
    assert (second["reason"], second["changed_by"], second["revision"]) == ("Less", "officer", 2)


def test_the_start_token_changes_it_too(api: httpx.Client, address: str) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    with signed_in(address, START_TOKEN) as client:
        given = fields(page(client)) | {"epsilon": "5", "reason": "why"}
        assert send(client, given).status_code == 303
    assert api.get("/v1/datasets/data").json()["budget"]["epsilon"] == 5.0
    (_, changed) = api.get("/v1/datasets/data/settings").json()["settings"]
    assert changed["changed_by"] == "start-token"


def test_a_number_in_the_form_is_read_back_as_the_same() -> None:
    for value in (3.0, 7.123456789, 123456.5, 1e-5, 0.1 + 0.2, 1e6):
        text = budget_form._to_input(value)
        assert float(text) == value
    with pytest.raises(InvalidRequestError):
        budget_form.change_of({"epsilon": "1,000", "delta": "1e-5", "reason": "why"})


def test_an_expired_reservation_is_told_below_the_picture(
    api: httpx.Client, engine: Engine
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    append(api, event(0, 100))
    lease = {"name": "lease", "event": event(100, 100), "ttl_seconds": 60}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    with transaction(engine) as connection:
        past = datetime.now(UTC) - timedelta(hours=1)
        connection.execute(update(reservations).values(expires_at=past))
    text = words(page(api))
    assert "Reservations that expired add" in text
    assert "reservations that expired 100" in text
