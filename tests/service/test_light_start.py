"""What a service loads before it is ready, and what only when it is asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

from service.storage import migrations
from service.storage.engine import connect

# A service on SQLite, asked without a port; HEAVY is what it does without until it is asked.
BEGUN = """
import asyncio, sys
import httpx
from service.app import create_app
from service.settings import Settings

HEAVY = {
    "alembic", "cryptography", "jinja2", "latex2mathml", "markdown_it", "numpy.f2py", "psycopg",
    "scipy._lib._array_api", "sqlalchemy.dialects.postgresql",
}
PAGES = HEAVY & {"jinja2", "latex2mathml", "markdown_it"}
app = create_app(Settings(database_url=sys.argv[1]))

def heavy():
    return HEAVY & set(sys.modules)

async def ask(*paths, **headers):
    to = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=to, base_url="http://127.0.0.1") as client:
        return await asyncio.gather(*(client.get(path, headers=headers) for path in paths))

"""
PROBED = """
assert heavy() == set(), heavy()
paths = "/healthz", "/readyz", "/metrics", "/v1/datasets", "/v1/nothing", "/problems/not-found"
answers = asyncio.run(ask(*paths))
assert [one.status_code for one in answers if one.status_code == 404], answers
assert not any(one.headers["content-type"].startswith("text/html") for one in answers)
assert heavy() == set(), heavy()
"""
LOOKED_AT = """
found, same = asyncio.run(ask("/sign-in", "/sign-in"))
assert (found.status_code, same.status_code) == (200, 200), found
assert heavy() >= PAGES
count = len(app.router.routes)
assert asyncio.run(ask("/sign-in"))[0].status_code == 200
assert len(app.router.routes) == count
assert "/sign-in" in app.state.methods
"""
REFUSED = """
(answer,) = asyncio.run(ask("/metrics", accept="text/html"))
assert answer.status_code == 401
assert answer.headers["content-type"].startswith("text/html")
assert "</html>" in answer.text
"""


@pytest.mark.parametrize("asked", [PROBED, LOOKED_AT, REFUSED], ids=["probes", "page", "refusal"])
def test_a_service_loads_what_it_is_asked_for(asked: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    engine = connect(url)
    migrations.upgrade(engine)
    engine.dispose()
    command = [sys.executable, "-c", BEGUN + asked, url]
    subprocess.run(command, check=True, timeout=120)
