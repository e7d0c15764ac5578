"""A viewer's certificates are told in the log, so there are only so many of them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import Engine

from service.errors import TooManyRequestsError
from service.identity.keys import Role
from service.identity.rate_limit import Buckets
from service.transparency.signing import Signer
from tests.service.dumps import dump
from tests.service.samples import append, event, setup
from tests.service.test_keys import bearer, key
from tests.service.test_limits import Clock

Serve = Callable[..., AbstractContextManager[str]]
PATH = "/v1/runs/run/certificate"


def model(number: int) -> dict[str, str]:
    return {"model_sha256": f"{number:064x}"}


def test_a_viewer_has_so_many_told_and_what_was_told_as_often_as_it_likes(
    engine: Engine, serve: Serve, tmp_path: Path
) -> None:
    signing_key = tmp_path / "signing_key"
    Signer.create(signing_key)
    admin, viewer, other = (
        bearer(key(engine, scope, name))
        for scope, name in (
            (Role.ADMIN, "admin"), (Role.VIEWER, "viewer"), (Role.VIEWER, "other"),
        )
    )  # fmt: skip
    with (
        serve(signing_key_file=signing_key, certificates_per_hour=2) as address,
        httpx.Client(base_url=address, timeout=60, headers=admin) as api,
    ):
        setup(api)
        append(api, event(0, 1))

        def asked(number: int, headers: dict[str, str]) -> httpx.Response:
            return api.get(PATH, params=model(number), headers=headers)

        assert [asked(number, viewer).status_code for number in (1, 2)] == [200, 200]
        before = dump(engine)
        refused = asked(3, viewer)
        assert refused.json()["type"] == "/problems/too-many-requests"
        assert 0 < int(refused.headers["retry-after"]) <= 1800
        first, again = asked(1, viewer), asked(1, other)
        assert (first.status_code, again.status_code) == (200, 200)
        assert (
            first.json()["certificate"]["log"]["position"]
            == (again.json()["certificate"]["log"]["position"])
        )
        assert dump(engine) == before  # nobody wrote anything
        assert asked(3, other).status_code == 200
        assert [asked(number, admin).status_code for number in range(4, 8)] == [200] * 4


def test_an_hour_s_worth_is_saved_up_by_each_key() -> None:
    clock = Clock()
    buckets = Buckets(3, clock=clock)

    def taken(name: str) -> int:
        got = 0
        for _ in range(10):
            try:
                buckets.take(name)
            except TooManyRequestsError:
                continue
            got += 1
        return got

    found: list[Any] = [taken("one"), taken("one"), taken("two")]
    clock.present += 1200
    found += [taken("one"), taken("two")]
    clock.present += 10 * 3600
    assert [*found, taken("one")] == [3, 0, 3, 1, 1, 3]


@pytest.mark.parametrize("per_hour", [0.1, 1.0])
def test_one_is_had_at_once_at_the_least(per_hour: float) -> None:
    buckets = Buckets(per_hour, clock=Clock())
    buckets.take("one")
    with pytest.raises(TooManyRequestsError):
        buckets.take("one")
