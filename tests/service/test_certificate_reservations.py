"""Certificates of reservations that go on in a pass which a correction says was another."""

from pathlib import Path

import httpx
from sqlalchemy import Engine

from service.transparency.certificates.verify import verify_bytes
from tests.service.certifying import certified, said, signer_of
from tests.service.samples import BALLS, FULL, append, event, setup
from tests.service.test_reservations import QUIET, reserve


def test_steps_reserved_on_a_branch_of_an_old_order_count_where_none_of_its_pass_is_left(
    api: httpx.Client, engine: Engine, tmp_path: Path
) -> None:
    setup(api, dataset_given={"neighboring_relation": "replace_special"})
    append(api, event(0, 5, mechanism=QUIET, sampling=BALLS))
    opened = {"name": "b", "writer": "writer-of-the-tests-2", "from_step": 5}
    assert api.post("/v1/runs/run/branches", json=opened).status_code == 201
    append(api, event(5, 3, mechanism=QUIET, sampling=BALLS), branch="b")
    ahead = {"mechanism": QUIET, "sampling": BALLS}
    assert reserve(api, "ahead", 5, branch="b", event=ahead).status_code == 201
    really = {"branch": "b", "first_step": 5, "steps": 3, "reason": "the log says so"}
    really |= {"mechanism": QUIET, "sampling": FULL}
    assert api.post("/v1/runs/run/corrections", json=really).status_code == 201
    signer = signer_of(tmp_path)
    raw = certified(engine, signer, "data", kind="dataset")
    certificate = said(raw)
    (_, told) = certificate["facts"]["homes"][0]["reserved"]
    assert (told["sampling"]["steps_per_pass"], told["steps"], told["passes_anew"]) == (1, 0, 2)
    answer = api.get("/v1/datasets/data/guarantee", params={"delta": 1e-5}).json()
    held = next(one for one in certificate["statements"] if one["reservations"])
    for name in ("epsilon", "corrected_epsilon", "status", "assumptions"):
        assert held[name] == answer[name]
    verify_bytes(raw, public_key=signer.public_key)
