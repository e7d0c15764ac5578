"""A real nginx in front, with nothing but `proxy_pass`: no request passes for one of this machine.

Such a proxy sends its own address as Host and no header that tells of it, so that nothing in a
request shows that it came from elsewhere.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Engine

from benchmarks.servers import free_port
from tests.conftest import AS_ADMIN
from tests.service.dumps import dump
from tests.service.proxy import nginx
from tests.service.samples import dataset

BLOCKS = """
  server {{
    listen 127.0.0.1:{port};
    server_name ledger.example;
    location / {{
      proxy_pass {address};{version}
    }}
  }}
"""
OPEN = ("/healthz", "/readyz", "/sign-in", "/v1/openapi.json", "/problems/not-found")


@pytest.fixture(params=["", "\n      proxy_http_version 1.1;"], ids=["1.0", "1.1"])
def proxied(request: pytest.FixtureRequest, address: str, tmp_path: Path) -> Iterator[str]:
    """The address of the proxy."""
    port = free_port()
    blocks = BLOCKS.format(port=port, address=address, version=request.param)
    with nginx(tmp_path, blocks, port) as front:
        yield front


def test_without_a_token_a_stranger_behind_a_proxy_gets_nothing(
    proxied: str, engine: Engine
) -> None:
    before = dump(engine)
    with httpx.Client(base_url=proxied, headers={"host": "ledger.example"}) as stranger:
        paths = stranger.get("/v1/openapi.json").json()["paths"]
        for path, methods in paths.items():
            if path in OPEN or path.startswith("/problems/"):
                continue
            place = path.replace("{kind}", "x")
            for method in methods:
                answer = stranger.request(method, place.replace("{", "").replace("}", ""), json={})
                assert answer.status_code == 401, (method, path)
        assert stranger.post("/v1/datasets", json=dataset()).status_code == 401
        for page in ("/", "/datasets", "/runs", "/planner"):
            assert stranger.get(page).headers["location"].startswith("/sign-in"), page
    assert dump(engine) == before


def test_with_the_token_the_same_proxy_is_of_use(proxied: str) -> None:
    with httpx.Client(base_url=proxied, headers=AS_ADMIN) as api:
        assert api.post("/v1/datasets", json=dataset()).status_code == 201
        assert api.get("/v1/datasets/data").status_code == 200
