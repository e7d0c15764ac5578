"""A real nginx; nothing is skipped if it is missing."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.service.sse import until

_GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "scale.md"
_CONFIG = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  {blocks}
}}
"""


def blocks_of_guide(heading: str, port: int, changed: Mapping[str, str]) -> str:
    """The nginx configuration below a heading of docs/guide/scale.md, with some words changed.

    It listens at a port of this machine.
    """
    section = _GUIDE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    (blocks,) = re.findall(r"```\n(map .*?)```", section, re.DOTALL)
    for written, here in {"listen 8000": f"listen 127.0.0.1:{port}", **changed}.items():
        assert written in blocks
        blocks = blocks.replace(written, here)
    return str(blocks)


@contextmanager
def nginx(folder: Path, blocks: str, port: int) -> Iterator[str]:
    """Debian's nginx with these blocks, which listens at a port; its address."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found is not None, "Install nginx: apt-get install nginx-light (or nginx)."
    file = folder / "nginx.conf"
    file.write_text(_CONFIG.format(folder=folder, blocks=blocks), encoding="utf-8")
    process = subprocess.Popen([found, "-c", str(file), "-e", str(folder / "error.log")])
    front = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        try:
            return httpx.get(f"{front}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(answers)
        yield front
    finally:
        process.terminate()
        process.wait()
