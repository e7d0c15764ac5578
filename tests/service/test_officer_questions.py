"""Pages answer what officers asked: who may handle an incident, and whether a step has run."""

import re

import httpx
import pytest
from sqlalchemy import Engine

from service.identity.keys import Role
from tests.service.browsing import signed_in
from tests.service.office import key_of_each
from tests.service.samples import BUDGET, POISSON, append, event, setup
from tests.service.test_dataset_page import page, words
from tests.service.test_incident_notes import inbox
from tests.service.test_keys import Serve

LINK = re.compile(r'<a class="small" href="(/incidents\?[^"]*)">(\w+)</a>')
WHO = "Keys of scope owner, approver and admin handle incidents"


@pytest.mark.parametrize(
    ("scope", "link"),
    [
        (Role.VIEWER, None), (Role.TRAINER, "Comment"), (Role.OWNER, "Handle"),
        (Role.APPROVER, "Handle"), (Role.ADMIN, "Handle"),
    ],
)  # fmt: skip
def test_who_may_handle_an_incident_is_led_to_its_form_and_others_read_who_may(
    api: httpx.Client, engine: Engine, serve: Serve, scope: Role, link: str | None
) -> None:
    setup(api, dataset_given={"budget": BUDGET})
    assert append(api, event(0, 10**6), mode="charge").status_code == 409
    (name,) = [one["id"] for one in inbox(api)]
    keys = key_of_each(engine)
    with serve() as address, signed_in(address, keys[scope]) as client:
        text = page(client)
        assert [found for _, found in LINK.findall(text)] == ([link] if link else [])
        assert (WHO in words(text)) == (link != "Handle")
        assert ("trainers may comment on them" in words(text)) == (link is None)
        # The form that the link leads to has the button that it promises.
        shown = client.get(f"/incidents?state=any&incident={name}").text
        buttons = re.findall(r'<button type="submit" name="action" value="(\w+)"', shown)
        assert ("acknowledge" in buttons) == (link == "Handle")
        assert ("comment" in buttons) == (link is not None)


def test_reserved_steps_are_not_called_nothing(api: httpx.Client) -> None:
    setup(api, dataset_given={"budget": BUDGET, "privacy_unit": "patient"})
    lease = {"name": "lease", "event": event(0, 100, sampling=POISSON), "ttl_seconds": 3600}
    assert api.post("/v1/runs/run/reservations", json=lease).status_code == 201
    text = words(api.get("/datasets/data/proved").text)
    assert "No step is recorded yet. Steps are reserved and may be running:" in text
    assert re.search(r"with all of them ε is at most 0\.\d+", text)
    assert "revealed" not in text
    assert append(api, event(0, 100, sampling=POISSON), mode="charge").status_code == 201
    text = words(api.get("/datasets/data/proved").text)
    assert "No step" not in text
    assert "reserved" not in text
