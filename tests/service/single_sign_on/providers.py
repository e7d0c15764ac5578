"""A provider for the tests, and the identity file that names it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.servers import free_port
from tests.service.single_sign_on.identity_provider import CLIENT, SECRET, SUBJECT

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class IdentityProvider:
    """One that answers."""

    issuer: str

    def tell(self, **said: Any) -> dict[str, Any]:
        """Change what it says next."""
        answer = httpx.post(f"{self.issuer}/control", json=said, timeout=30)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def token(self, **claims: Any) -> str:
        """A token as a pod has one, with other claims."""
        return str(self.tell(token=claims)["token"])

    def file(
        self, folder: Path, *, grants: str = "", client: bool = True, secret: bool = True
    ) -> Path:
        """An identity file that names it."""
        (folder / "secret").write_text(SECRET + "\n")
        lines = [
            "[[provider]]", 'name = "house"', f'issuer = "{self.issuer}"', 'title = "the house"',
        ]  # fmt: skip
        if client:
            lines.append(f'client_id = "{CLIENT}"')
        if client and secret:
            lines.append(f'client_secret_file = "{folder / "secret"}"')
        path = folder / "identity.toml"
        path.write_text("\n".join(lines) + "\n" + (grants or GRANTS))
        return path


GRANTS = f"""
[[grant]]
provider = "house"
group = "officers"
role = "admin"

[[grant]]
provider = "house"
group = "readers"
role = "viewer"

[[grant]]
provider = "house"
subject = "{SUBJECT}"
role = "trainer"
datasets = ["scans"]

[[grant]]
provider = "house"
subject = "{SUBJECT}"
role = "viewer"
"""


@contextmanager
def identity_provider() -> Iterator[IdentityProvider]:
    """One in a process of its own."""
    port = free_port()
    command = [sys.executable, "-m", "tests.service.single_sign_on.identity_provider", str(port)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    provider = IdentityProvider(f"http://127.0.0.1:{port}")
    try:
        for _ in range(1200):
            try:
                provider.tell()
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield provider
    finally:
        process.kill()
        process.wait()
